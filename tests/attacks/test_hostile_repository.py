"""S1, S2, TrustFall (CVE-2026-33068): a cloned repository, and every command typed in it."""

import json
import os
import pty
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest

from multitap.cli.app import SECTIONS
from multitap.trust.projects import Projects
from tests.attacks.hostile_repository import CANARY, build, listening
from tests.terminals import terminal
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(600)  # two dozen processes, on a machine that may be busy

LINES = (
    *("status", "status --json", "tools", "tools --schema", "call run_echo text=x", "call web_x"),
    *("resources", "read file:///etc/passwd", "prompts", "prompt linked", "doctor", "doctor run"),
    *("config check", "config show", "config explain run", "logs run", "stats", "reload"),
    *("restart run", "trust", "trust --list", "serve", "import", "import --yes"),
)
OTHERS = (
    *("import --project", "import all --yes", "add x -- echo --no-check", "export cursor"),
    *("install cursor", "uninstall cursor", "enable run", "disable run", "rename run other"),
    *("undo", "set run timeout 3", "remove run", "undo", "tokens", "chat hello", "console"),
    *("calls", "stop", "token list", "help", "trace run", "login web", "logout web", "secret list"),
    *("vault list", "vault rotate"),
    *("tasks", "call run_echo --detach"),
    *("pins list", "pins review", "pins review --accept", "pins reset run", "sandbox show run"),
    *(
        "sandbox learn run",
        "policy explain run_echo",
        "access list",
        "access check",
        "access explain somebody",
        "audit",
        "audit --verify",
        "status",
        "generate run",
    ),
    "cluster status --cluster redis://127.0.0.1:1",
    "state check",
)
ASKS_OTHERS = {"search", "demo", "self"}
"""Commands that have nothing to do with servers of a project: one asks a registry by design."""
HANDSHAKE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
ONE_AFTER_ANOTHER = """
import shlex, sys
from multitap.cli.app import run

for line in sys.argv[1:]:
    print(f"$ {line}", flush=True)
    try:
        run(shlex.split(line))
    except SystemExit:
        continue
"""
LIBRARY = """
import asyncio
from multitap import MCPClientWrapper, MCPConfigLoader, MCPManager, ToolRegistry, open_hub
from multitap.config import Surroundings, kode, load, otter
from multitap.env.configured import ConfiguredEnvironment
from multitap.errors import ConfigError
from multitap import open_hub
from multitap.hub.reload import Reloader

async def main():
    async with open_hub() as hub:
        await hub.settled()
        assert not hub.links, hub.links
    async with ConfiguredEnvironment.load() as world:
        assert not world.skills
        assert not world.settings.prompts
    manager = MCPManager()
    await manager.initialize(ToolRegistry())
    await manager.shutdown()
    for search in (kode, otter):
        files = Reloader(lambda: load(search(Surroundings.here())))
        async with open_hub(files) as hub:
            await hub.settled()
    for config in MCPConfigLoader.load():
        try:
            await MCPClientWrapper(config).connect()
        except ConfigError:
            continue
        raise AssertionError(config)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    base = tmp_path_factory.mktemp("clone")
    folder, home = base / "repository", base / "home"
    folder.mkdir()
    home.mkdir()
    with listening() as listener:
        marks = build(folder, home, listener.port)
        yield folder, home, marks, listener


def environment(home):
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    own = {"HOME": str(home), "MULTITAP_WAIT": "2", "MULTITAP_ALONE": "1"}
    return {**kept, **own, "CANARY": CANARY}


def typed(repository, *words, stdin="", program=("-m", "multitap")):
    folder, home, *_ = repository
    return subprocess.run(
        [sys.executable, "-P", *program, *words],
        cwd=folder,
        env=environment(home),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture(scope="module")
def ended(repository):
    """How every command ended."""
    first = json.dumps(HANDSHAKE) + "\n"
    with ThreadPoolExecutor(3) as pool:
        done = [
            pool.submit(typed, repository, *line.split(), stdin=first if line == "serve" else "")
            for line in LINES
        ]
        return {line: one.result() for line, one in zip(LINES, done, strict=True)}


def nothing_happened(repository):
    _, _, marks, listener = repository
    return [path.name for path in marks.iterdir()] == [] and listener.heard == []


def test_s1_no_command_runs_or_connects_anything_of_a_cloned_repository(repository, ended):
    assert {line for line, one in ended.items() if "Traceback" in one.stderr} == set()
    assert nothing_happened(repository)


@pytest.mark.slow
def test_s1_nothing_happens_whatever_else_is_typed(repository, ended):
    known = {line.split()[0] for line in (*LINES, *OTHERS)} | ASKS_OTHERS
    assert {*chain.from_iterable(SECTIONS.values())} <= known
    others = typed(repository, *OTHERS, program=("-c", ONE_AFTER_ANOTHER))

    assert others.stdout.count("$ ") >= len(OTHERS), others.stdout
    assert "Traceback" not in others.stderr
    assert CANARY not in others.stdout + others.stderr
    assert nothing_happened(repository)


def test_s2_no_command_puts_a_variable_or_a_file_into_what_it_shows(ended):
    assert not [line for line, one in ended.items() if CANARY in one.stdout + one.stderr]


def test_every_command_that_looks_at_servers_says_what_to_do(ended):
    for line in ("status", "tools", "doctor", "serve", "call run_echo text=x"):
        assert "multitap trust" in ended[line].stderr + ended[line].stdout, line
    states = {
        one["name"]: one["state"] for one in json.loads(ended["status --json"].stdout)["servers"]
    }
    assert (states["run"], states["lazy"], states["found"]) == ("not trusted",) * 3
    assert states["exfiltrate"] == "error"


def test_a_client_that_starts_the_gateway_is_told_what_is_missing(ended):
    [answer] = map(json.loads, ended["serve"].stdout.splitlines())

    instructions = answer["result"]["instructions"]
    assert "5 servers of the user's project are not used as they are now" in instructions
    assert "multitap trust" in instructions
    # a stranger chose the names, and a model reads the instructions
    assert "exfiltrate" not in instructions


def test_completion_starts_nothing(repository):
    folder, home, *_ = repository
    asked = {"_MULTITAP_COMPLETE": "bash_complete", "COMP_CWORD": "2"}
    for word in ("doctor", "call"):
        subprocess.run(
            [sys.executable, "-P", "-m", "multitap"],
            cwd=folder,
            env={
                **environment(home),
                **asked,
                "COMP_WORDS": f"multitap {word} r",
                "COMP_CWORD": "2",
            },
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )

    assert nothing_happened(repository)


def test_the_library_starts_nothing_either(repository):
    folder, home, *_ = repository
    done = subprocess.run(
        [sys.executable, "-P", "-c", LIBRARY],
        cwd=folder,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert nothing_happened(repository)


@pytest.mark.parametrize("line", ["status", "call run_echo text=x"])
def test_trustfall_a_mere_enter_at_the_question_of_a_command_trusts_nothing(
    repository, monkeypatch, line
):
    folder, home, *_ = repository
    monkeypatch.chdir(folder)
    # content that was not refused before
    monkeypatch.setenv("XDG_STATE_HOME", str(home / f"state of {line[:4]}"))
    for name, value in environment(home).items():
        monkeypatch.setenv(name, value)
    with terminal((sys.executable, "-P", "-m", "multitap", *line.split())) as person:
        person.reads(r"(?s)project .*Trust it\?")
        person.type("")
        code, _ = person.ends()

    assert code != 0
    assert Projects().trusted() == {}
    assert nothing_happened(repository)


def test_trustfall_a_mere_enter_trusts_nothing(repository):
    folder, home, *_ = repository
    screen, keyboard = pty.openpty()
    os.write(screen, b"\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "multitap", "trust"],
        cwd=folder,
        env=environment(home),
        stdin=keyboard,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    os.close(keyboard)
    os.close(screen)
    listed = typed(repository, "trust", "--list", "--json")

    assert done.returncode == 1
    assert "Trust it?" in done.stderr
    assert json.loads(listed.stdout) == []
    assert nothing_happened(repository)


def test_the_whole_command_is_shown_and_nothing_in_it_can_hide(repository, tmp_path):
    folder, home = tmp_path / "x", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    hidden = "\\u001b[2K\\u202Eevil\\u200b\\u3164\\u2800\\ufe0f" + "a" * 3000
    (folder / "multitap.toml").write_text(
        f'[servers.a]\ncommand = "sh"\nargs = ["-c", "{hidden}"]\n'
    )

    shown = typed((folder, home, *repository[2:]), "trust").stdout

    assert "\\x1b[2K\\u202eevil\\u200b\\u3164\\u2800\\ufe0f" + "a" * 3000 in shown
    assert not {"\x1b", "\u202e", "\u200b", "\u3164", "\u2800", "\ufe0f"} & {*shown}
