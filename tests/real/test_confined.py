"""Real servers that need no key, confined: as they are, or with learned rules."""

import json
import os
import sys
from subprocess import run

import pytest

from multitap.config.models import StdioServer
from multitap.sandbox.levels import sandbox_support
from tests.real.conftest import NPM, PYTHON, program
from tests.real.more_servers import real_servers

SUPPORT = sandbox_support()
pytestmark = [
    pytest.mark.wide,
    pytest.mark.network,
    pytest.mark.timeout(900),
    pytest.mark.skipif(SUPPORT.reason is not None, reason=str(SUPPORT.reason)),
]
PATIENCE = 400


def servers(place):
    """Their entries, and one call of each that shows that it works."""
    npx, uvx = program("npx"), program("uvx")
    everything, filesystem, memory = NPM
    time, git = PYTHON
    found = {
        "everything": ({"command": npx, "args": ["-y", everything]}, ("echo", {"message": "hi"})),
        "filesystem": (
            {"command": npx, "args": ["-y", filesystem, str(place)]},
            ("read_text_file", {"path": f"{place}/note.txt"}),
        ),
        "memory": ({"command": npx, "args": ["-y", memory]}, ("read_graph", {})),
        "time": (
            {"command": uvx, "args": [time, "--local-timezone", "UTC"]},
            ("convert_time", {"source_timezone": "UTC", "time": "12:00", "target_timezone": "UTC"}),
        ),
        "git": (
            {"command": uvx, "args": [git, "--repository", str(place)]},
            ("git_status", {"repo_path": str(place)}),
        ),
    }
    more = {name: (one.entry, one.calls[0]) for name, one in real_servers(place).items()}
    return found | more


NAMES = (
    *("everything", "filesystem", "memory", "time", "git", "sequential", "runner", "pdf"),
    *("kubernetes", "playwright", "mui", "fetch", "sqlite", "calculator", "cli", "editor"),
    *("sitter", "excel", "word", "powerpoint", "duck", "aws"),
)


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "note.txt").write_text("remember the milk")
    run(["git", "init", "--quiet", "--initial-branch=main", folder], check=True)
    return folder


def multitap(folder, *words):
    command = [sys.executable, "-m", "multitap", *words, "-c", str(folder / "multitap.toml")]
    env = {**_environment(), "XDG_STATE_HOME": str(folder / "state")}
    return run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=env, cwd=folder
    )


def _environment():
    return {name: value for name, value in os.environ.items() if name != "MULTITAP_SANDBOX"}


def written(name, entry, level):
    more = {"provenance": "registry", "pin": "off", "connect_timeout": 240, "sandbox": level}
    entry = {**entry, **more}
    StdioServer(**entry)
    env = entry.pop("env", None)
    lines = [f"[servers.{name}]", *(f"{key} = {json.dumps(one)}" for key, one in entry.items())]
    if env:
        lines += [f"[servers.{name}.env]", *(f"{key} = {json.dumps(env[key])}" for key in env)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", NAMES)
def test_a_real_server_works_with_learned_rules(name, place, tmp_path):
    entry, (tool, given) = servers(place)[name]
    (tmp_path / "multitap.toml").write_text(written(name, entry, "strict"))

    learned = multitap(tmp_path, "sandbox", "learn", name, "--call", f"{tool}={json.dumps(given)}")
    assert learned.returncode == 0, learned.stderr
    check(name, tool, given, tmp_path, "strict")


@pytest.mark.parametrize("name", NAMES)
def test_a_real_server_works_under_guard_unchanged(name, place, tmp_path):
    entry, (tool, given) = servers(place)[name]
    (tmp_path / "multitap.toml").write_text(written(name, {**entry, "cwd": str(place)}, "guard"))

    check(name, tool, given, tmp_path, "guard")


def check(name, tool, given, folder, level):
    listed = multitap(folder, "status", "--json", "--wait", "5m")
    called = multitap(folder, "call", f"{name}_{tool}", json.dumps(given), "--timeout", "5m")

    [server] = json.loads(listed.stdout)["servers"]
    assert server["state"] == "connected", listed.stdout
    assert server["sandbox"]["level"] == level
    assert "PermissionError" not in called.stdout + called.stderr
    assert "EACCES" not in called.stdout + called.stderr, called.stdout
    # some calls are refused, by the server itself or by its schema
    assert called.returncode in {0, 1, 2}, called.stderr
