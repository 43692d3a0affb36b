"""MCPoison (CVE-2025-54136), CurXecute (CVE-2025-54135): a project changes after it was trusted."""

import json
import sys

import anyio
import keyring
import pytest
from keyring.backends import fail

from multitap import open_hub
from multitap.config.models import Limits
from multitap.config.projects import TrustState, Untrusted
from multitap.events import LinkState, Reloaded
from multitap.trust.projects import Projects, load_trusted
from multitap.trust.vault import Vault
from tests.trusting import trust
from tests.waiting import PATIENCE, until
from tests.zoo.modes import command


@pytest.fixture(autouse=True)
def folder(own_project):
    return own_project


def zoo(name="zoo", *more, **keys):
    program, *args = command("good")
    table = {"command": program, "args": [*args, *more], **keys}
    return "\n".join((f"[servers.{name}]", *(f"{key} = {json.dumps(table[key])}" for key in table)))


def write(path, *parts):
    fresh = path.with_suffix(".new")
    fresh.write_text("\n".join(parts) + "\n")
    fresh.replace(path)


async def withheld(hub, *names):
    await until(lambda: {one.name for one in hub.withheld if one.kind == "server"} == {*names})


async def test_mcpoison_a_changed_command_waits_while_the_trusted_one_serves_on(folder):
    file = folder / "multitap.toml"
    write(file, zoo())
    trust(folder)
    async with open_hub() as hub:
        with anyio.fail_after(PATIENCE):
            await hub.settled()
        pid = hub.snapshot().server("zoo").pid
        write(file, zoo("zoo", "--evil"))
        await withheld(hub, "zoo")
        [held] = hub.withheld

        assert (held.changed, held.hint) == (True, "run `multitap trust`")
        assert (await hub.call("zoo_echo", {"text": "hi"})).text == "hi"
        assert hub.snapshot().server("zoo").pid == pid
        assert "--evil" not in hub.settings.servers["zoo"].args


async def test_curxecute_a_server_that_appears_while_it_runs_is_not_started(folder, tmp_path):
    mark = tmp_path / "mark"
    evil = ("[servers.evil]", "command = 'touch'", f"args = ['{mark}']")
    async with open_hub() as hub:
        write(folder / "multitap.toml", *evil)
        await withheld(hub, "evil")

        assert not hub.links
        assert not mark.exists()


@pytest.mark.filterwarnings("ignore::multitap.errors.UntrustedWarning")
async def test_trust_given_and_taken_back_takes_effect_while_it_runs(folder):
    write(folder / "multitap.toml", "auto_reload = false", zoo())
    async with open_hub() as hub:
        assert not hub.links
        with hub.events.subscribe() as events, anyio.fail_after(PATIENCE):
            trust(folder)
            while not isinstance(await anext(events), Reloaded):
                continue
            await hub.settled()
            up = hub.snapshot().server("zoo").state
            Projects().distrust(folder)
            while hub.links:
                await anext(events)

        assert up is LinkState.CONNECTED


async def test_mcpoison_a_changed_script_is_not_started_by_a_restart(folder, tmp_path):
    mark = tmp_path / "mark"
    server = folder / "mcpservers" / "zoo" / "server.py"
    server.parent.mkdir(parents=True)
    runs = f"import os; os.execv({sys.executable!r}, {command('good')!r})"
    server.write_text(runs)
    trust(folder)
    async with open_hub() as hub:
        with anyio.fail_after(PATIENCE):
            await hub.settled()
        before = hub.snapshot().server("zoo").state
        server.write_text(f"open({str(mark)!r}, 'w')\n{runs}")
        hub.restart("zoo")
        await until(lambda: hub.links["zoo"].failure is not None)

        assert before is LinkState.CONNECTED
        assert "changed since you trusted it" in str(hub.links["zoo"].failure)
        assert not mark.exists()


RUNS = {
    "a script": ({"command": "python", "args": ["server.py"]}, "server.py"),
    "a program": ({"command": "./run"}, "run"),
    "a word of a shell": ({"command": "sh", "args": ["-c", "exec ./run --fast"]}, "run"),
    "an option's value": ({"command": "node", "args": ["--require=./hook.js", "x"]}, "hook.js"),
    "a module": ({"command": "python", "args": ["-m", "package.module"]}, "package/module.py"),
    "a joined module": ({"command": "python", "args": ["-mpackage"]}, "package/__main__.py"),
    "its package": ({"command": "python", "args": ["-m", "package.x"]}, "package/__init__.py"),
    "the folder": ({"command": "python", "args": ["."]}, "__main__.py"),
    "another folder": ({"command": "python", "args": ["app"], "cwd": "sub"}, "sub/app/__main__.py"),
    "a path for programs": ({"command": "tool", "env": {"PATH": "./bin:/usr/bin"}}, "bin/tool"),
    "a variable": ({"command": "node", "env": {"NODE_OPTIONS": "-r ./hook.js"}}, "hook.js"),
    "a file of variables": ({"command": "node", "env_file": "settings.env"}, "settings.env"),
    "a variable in it": ({"command": "node", "env_file": "settings.env"}, "hook.js"),
    "a manifest": ({"command": "npm", "args": ["start"]}, "package.json"),
    "a script of a manifest": ({"command": "npm", "args": ["start"]}, "build/index.js"),
    "a registry": ({"command": "npx", "args": ["-y", "x"]}, ".npmrc"),
    "a statement": ({"url": "https://x.example", "oauth": {"assertion_file": "jwt"}}, "jwt"),
    "a header": ({"url": "https://x.example", "headers": {"X": "${file:key}"}}, "key"),
}


@pytest.mark.parametrize(("entry", "file"), RUNS.values(), ids=RUNS)
def test_mcpoison_every_file_that_decides_what_runs_is_part_of_the_trust(folder, entry, file):
    for name in {one for _, one in RUNS.values()}:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / "settings.env").write_text("NODE_OPTIONS=--require ./hook.js\n")
    (folder / "package.json").write_text('{"scripts": {"start": "node build/index.js"}}')
    words = {name: value for name, value in entry.items() if name != "oauth"}
    table = "\n".join(f"{name} = {_inline(value)}" for name, value in words.items())
    if "oauth" in entry:
        table += f'\noauth = {{ grant = "jwt_bearer", client_id = "x", assertion_file = "{file}" }}'
    (folder / "multitap.toml").write_text(f"[servers.a]\n{table}\n")
    trust(folder)
    before = load_trusted()
    (folder / file).write_text((folder / file).read_text() + " ")

    assert not before.pending
    assert {one.name: one.standing for one in load_trusted().pending} == {"a": TrustState.CHANGED}


def _inline(value):
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{ " + ", ".join(f"{key} = {json.dumps(one)}" for key, one in value.items()) + " }"


def test_a_project_raises_no_limits_of_its_servers(folder):
    limits = "limits = { message = 10_000_000_000, tools = 5, in_flight = 9_999 }"
    (folder / "multitap.toml").write_text(
        f'[servers.a]\ncommand = "x"\n{limits}\n[servers.b]\nurl = "https://x.example"\n{limits}\n'
    )
    trust(folder)
    loaded = load_trusted()

    for server in loaded.settings.servers.values():
        assert server.limits == Limits(tools=5)
    assert {one.key.rpartition(".")[2] for one in loaded.errors} == {"message", "in_flight"}


def test_mcpoison_where_a_link_leads_is_part_of_the_trust(folder, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("x")
    (folder / "run").symlink_to("/bin/true")
    (folder / "multitap.toml").write_text('[servers.a]\ncommand = "./run"\n')
    trust(folder)
    (folder / "run").unlink()
    (folder / "run").symlink_to(outside)

    assert [one.standing for one in load_trusted().pending] == [TrustState.CHANGED]


def test_mcpoison_a_function_is_trusted_by_the_file_that_is_imported(folder):
    (folder / "tools.py").write_text("def f(): ...")
    (folder / "multitap.toml").write_text(
        '[environment]\ntools = ["${workspaceFolder}/tools.py:f"]\n'
    )
    trust(folder)
    before = load_trusted()
    (folder / "tools.py").write_text("def f(): evil()")

    assert before.settings.environment.tools == (f"{folder}/tools.py:f",)
    assert [one.standing for one in load_trusted().pending] == [TrustState.CHANGED]


@pytest.mark.parametrize("path", ["~/.ssh/id_rsa", "/etc/passwd", "../key", "linked"])
def test_a_statement_to_log_in_with_is_a_file_of_the_project(folder, path):
    (folder / "linked").symlink_to("/etc/passwd")
    oauth = f'{{ grant = "jwt_bearer", client_id = "x", assertion_file = "{path}" }}'
    (folder / "multitap.toml").write_text(
        f'[servers.a]\nurl = "https://x.example"\noauth = {oauth}\n'
    )
    trust(folder)

    assert not load_trusted().settings.servers


async def test_a_granted_secret_is_void_when_the_entry_changes(folder):
    keyring.set_keyring(fail.Keyring())
    Vault().set("gh", "s3cret")
    file = folder / "multitap.toml"
    write(file, zoo(env={}).replace("env = {}", 'env = { TOKEN = "${auth:gh}" }'))
    trust(folder, "gh")
    loaded = load_trusted()
    config = loaded.settings.servers["zoo"]
    granted = Projects().check_start(folder, folder, "zoo", config)
    write(file, zoo(env={}).replace("env = {}", 'env = { TOKEN = "${auth:gh}", X = "1" }'))
    trust(folder)
    changed = load_trusted().settings.servers["zoo"]

    assert granted.secrets == {"gh"}
    assert Projects().check_start(folder, folder, "zoo", changed).secrets == frozenset()
    with pytest.raises(Untrusted):
        Projects().check_start(folder, folder, "zoo", config)
