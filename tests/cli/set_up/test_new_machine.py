"""A new user: four clients' configurations become one place, and back."""

import json
import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.waiting import PATIENCE, until_told

PYTHON = sys.executable
PROGRAM = Path(PYTHON).parent / "multitap"
SERVER = textwrap.dedent(
    """
    import json, os, sys

    name = sys.argv[1]
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        answers = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": name, "version": "1"},
            },
            "tools/list": {"tools": [{"name": name + "_tool", "inputSchema": {"type": "object"}}]},
            "ping": {},
        }
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        if (result := answers.get(message["method"])) is None:
            answer["error"] = {"code": -32601, "message": "no"}
        else:
            answer["result"] = result
        print(json.dumps(answer), flush=True)
    """
)
KEYS = {
    "github": "ghp_" + "a1B2c3D4e5F6g7H8i9J0",
    "search": "sk-" + "q1w2e3r4t5y6u7i8o9p0a1s2",
    "chat": "xoxb-" + "1234567890-abcdefghij",
}


class Machine:
    """A home with nothing in it but what a test puts there."""

    def __init__(self, folder):
        self.home = folder
        self.work = folder / "work"
        self.work.mkdir()
        self.server = folder / "server.py"
        self.server.write_text(SERVER)
        self.config = folder / ".config"
        self.env = {
            "HOME": str(folder),
            "PATH": os.environ["PATH"],
            "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
        }

    def multitap(self, *words, stdin=""):
        return subprocess.run(
            [PROGRAM, *words],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.work,
            env=self.env,
            input=stdin,
            timeout=PATIENCE,
        )

    def entry(self, name, **more):
        return {"command": PYTHON, "args": [str(self.server), name], **more}

    def write(self, path, text):
        target = self.home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def files(self):
        """Every file of a client, and ours, byte for byte."""
        found = [self.home / ".cursor", self.home / ".codex", self.config]
        return {
            path: path.read_bytes()
            for folder in found
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    async def tools(self, command, args):
        """What an MCP client sees that starts the command of a client's file."""
        parameters = StdioServerParameters(
            command=command, args=args, env=self.env, cwd=str(self.work)
        )
        with anyio.fail_after(PATIENCE), Path(os.devnull).open("w") as null:
            async with (
                stdio_client(parameters, errlog=null) as (read, write),
                ClientSession(read, write) as session,
            ):
                await session.initialize()

                async def all_of_them():
                    listed = {tool.name for tool in (await session.list_tools()).tools}
                    return listed if len(listed) >= 13 else None

                return await until_told(all_of_them)


@pytest.fixture
def machine(tmp_path):
    """Claude Desktop, Cursor, VS Code and Codex with 14 servers: two of them identical, one
    broken, three with keys in the clear.
    """
    one = Machine(tmp_path)
    one.write(
        ".config/Claude/claude_desktop_config.json",
        json.dumps(
            {
                "globalShortcut": "",
                "mcpServers": {
                    "files": one.entry("files"),
                    "memory": one.entry("memory"),
                    "github": one.entry("github", env={"GITHUB_TOKEN": KEYS["github"]}),
                    "shared": one.entry("shared"),
                },
            },
            indent=2,
        ),
    )
    one.write(
        ".cursor/mcp.json",
        "{\n  // mine\n"
        + json.dumps(
            {
                "mcpServers": {
                    "shared": one.entry("shared"),
                    "time": one.entry("time"),
                    "broken": {"comand": PYTHON, "args": [str(one.server), "broken"]},
                    "chat": one.entry("chat", env={"SLACK_BOT_TOKEN": KEYS["chat"]}),
                }
            },
            indent=2,
        )[1:],
    )
    one.write(
        ".config/Code/User/mcp.json",
        json.dumps(
            {
                "servers": {
                    "files": {"type": "stdio", **one.entry("other_files")},
                    "browser": {"type": "stdio", **one.entry("browser")},
                    "search": {
                        "type": "stdio",
                        "command": PYTHON,
                        "args": [str(one.server), "search", "--api-key", KEYS["search"]],
                    },
                },
                "inputs": [],
            },
            indent="\t",
        ),
    )
    codex = ["# codex", 'model = "gpt"', ""]
    for name in ("docs", "figma", "linear"):
        codex += [f"[mcp_servers.{name}] # {name}", f"command = {json.dumps(PYTHON)}"]
        codex += [f"args = {json.dumps([str(one.server), name])}", ""]
    one.write(".codex/config.toml", "\n".join(codex))
    yield one
    one.multitap("stop")  # the gateway that a client started stays in the background


@pytest.mark.timeout(300)  # runs a dozen commands
async def test_six_configurations_become_one_place_and_back(machine):
    before = machine.files()

    imported = machine.multitap("import", "all", "--secrets", "vault")

    assert imported.returncode == 0, imported.stderr
    assert "becomes files-vscode" in imported.stdout
    assert "mcp.json:19:5: error: `mcpServers.broken`" in imported.stderr
    assert "did you mean `command` instead of `comand`?" in imported.stderr
    assert "added 12 servers" in imported.stderr
    ours = machine.config / "multitap/multitap.toml"
    assert machine.files().keys() - before.keys() == {ours}
    assert not any(key in imported.stdout + imported.stderr for key in KEYS.values())
    assert not any(key in ours.read_text() for key in KEYS.values())

    cursor = machine.home / ".cursor/mcp.json"
    cursor.write_text(cursor.read_text().replace('"comand"', '"command"'))
    fixed = machine.files()
    again = machine.multitap("import", "cursor")
    assert (again.returncode, "added 1 server" in again.stderr) == (0, True)

    installed = machine.multitap("install", "cursor", "codex")
    assert installed.returncode == 0, installed.stderr
    assert "+" in installed.stdout
    assert "cursor still starts 4 of these servers itself; codex still starts 3" in installed.stderr
    assert not any(key in installed.stdout + installed.stderr for key in KEYS.values())

    text = "\n".join(cursor.read_text().splitlines())
    assert "// mine" in text
    in_cursor = json.loads(text.replace("// mine", ""))["mcpServers"]["multitap"]
    in_codex = tomllib.loads((machine.home / ".codex/config.toml").read_text())
    in_codex = in_codex["mcp_servers"]["multitap"]
    tools = [await machine.tools(one["command"], one["args"]) for one in (in_cursor, in_codex)]
    assert tools[0] == tools[1]
    assert len(tools[0]) == 13
    assert "github_github_tool" in tools[0]

    for following in ("`import cursor`", "`import all`", ""):
        undone = machine.multitap("undo")
        assert undone.returncode == 0, undone.stderr
        assert following in undone.stderr
    cursor_before = before.pop(cursor)
    assert machine.files() == {**before, cursor: fixed[cursor]}
    assert cursor_before.replace(b'"comand"', b'"command"') == fixed[cursor]
    assert machine.multitap("undo").returncode == 2
    assert machine.multitap("secret", "list", "--json").stdout.strip() == "[]"


def test_keys_that_were_imported_in_the_clear_move_to_the_vault_later(machine):
    imported = machine.multitap("import", "all")
    assert "`multitap secret move`" in imported.stderr
    before = machine.files()

    shown = machine.multitap("secret", "move", "--dry-run")
    assert shown.stdout.count("+++ ") == 1
    assert machine.files() == before
    moved = machine.multitap("secret", "move")

    assert "moved 3 keys to the vault" in moved.stderr
    texts = (shown.stdout, moved.stdout, moved.stderr)
    assert not any(key in text for key in KEYS.values() for text in texts)
    ours = (machine.config / "multitap/multitap.toml").read_text()
    assert not any(key in ours for key in KEYS.values())
    assert "there are no keys in plain text" in machine.multitap("secret", "move").stderr
    machine.multitap("undo")
    assert machine.files() == before
    machine.multitap("undo", "--all")
    assert not (machine.config / "multitap").exists()


def test_a_second_import_adds_nothing(machine):
    machine.multitap("import", "--secrets", "vault")
    once = machine.files()

    again = machine.multitap("import", "all", "--json")

    assert machine.files() == once
    assert all(one["same_as"] for one in json.loads(again.stdout)["servers"])


def test_in_the_home_folder_a_client_s_own_file_is_nobody_else_s(machine):
    machine.work = machine.home

    imported = machine.multitap("import", "--dry-run")

    assert "[servers.time]" in imported.stdout
    assert "not imported" not in imported.stderr


def test_a_dry_run_writes_nothing_and_shows_no_key(machine):
    before = machine.files()

    shown = machine.multitap("import", "--dry-run")

    assert "[servers.github]" in shown.stdout
    assert machine.files() == before
    assert not any(key in shown.stdout + shown.stderr for key in KEYS.values())


def test_installing_with_replace_leaves_only_the_gateway_and_others(machine):
    machine.multitap("import", "--secrets", "vault")
    before = machine.files()

    machine.multitap("install", "claude", "codex", "--replace")

    desktop = machine.config / "Claude/claude_desktop_config.json"
    assert [*json.loads(desktop.read_text())["mcpServers"]] == ["multitap"]
    codex = tomllib.loads((machine.home / ".codex/config.toml").read_text())
    assert [*codex["mcp_servers"]] == ["multitap"]
    machine.multitap("uninstall", "claude", "codex")
    assert machine.files() == before
    machine.multitap("undo")
    machine.multitap("undo")
    assert machine.files() == before


def test_uninstall_leaves_what_a_client_wrote_since(machine):
    desktop = machine.config / "Claude/claude_desktop_config.json"
    before = desktop.read_bytes()
    machine.multitap("install", "claude")
    machine.multitap("install", "claude", "--http", "http://127.0.0.1:3000/mcp")
    text = desktop.read_text()
    desktop.write_text(text.replace('"globalShortcut": ""', '"globalShortcut": "F1"'))

    machine.multitap("uninstall", "claude")

    assert desktop.read_bytes() == before.replace(b'Shortcut": ""', b'Shortcut": "F1"')


def test_commands_at_the_same_time_lose_nothing(machine):
    names = [f"s{number}" for number in range(4)]
    running = [
        subprocess.Popen(
            [PROGRAM, "add", name, "--no-check", "--", PYTHON, "-c", name],
            cwd=machine.work,
            env=machine.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in names
    ]

    assert [one.wait(PATIENCE) for one in running] == [0] * 4
    ours = machine.config / "multitap/multitap.toml"
    assert {*tomllib.loads(ours.read_text())["servers"]} == {*names}
    machine.multitap("undo", "--all")
    assert not ours.exists()
