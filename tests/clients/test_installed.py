"""Real clients, asked what they make of the files that `multitap install` wrote."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.agents import OFFLINE
from tests.clients.running import PATIENCE
from tests.clients.shelf import node

pytestmark = [
    pytest.mark.wide,
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.timeout(400),
]

PROGRAM = Path(sys.executable).with_name("multitap")
QUIET = {
    **OFFLINE,
    "DISABLE_TELEMETRY": "1",
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "GEMINI_CLI_TRUST_WORKSPACE": "true",
    "NO_COLOR": "1",
}
CODEX_OWN = (
    '# mine\nmodel = "gpt"   # kept\n\n[mcp_servers.old]\ncommand = "true"\nenabled = false\n'
)
JSON_OWN = '{\n    "theme": "dark",\n    "mcpServers": {}\n}'
CLIENTS = {
    "claude-code": (".claude.json", '{"numStartups": 3, "mcpServers": {}}', "✔ Connected"),
    "opencode": (".config/opencode/opencode.json", '{\n\t"theme": "system", "mcp": {}\n}\n', "✓"),
    "codex": (".codex/config.toml", CODEX_OWN, "enabled"),
    "gemini": (".gemini/settings.json", JSON_OWN, "Connected"),
}
"""By name: the client's file, what is in it before, and its word for a server that works."""


def listing(shelf, client):
    """The command by which a client lists its servers."""
    if client == "gemini":
        return [*shelf.program("gemini", "@google/gemini-cli/bundle/gemini.js"), "mcp", "list"]
    name, pattern = {
        "claude-code": ("claude", "@anthropic-ai/claude-code-*/claude"),
        "opencode": ("opencode", "opencode-*/bin/opencode"),
        "codex": ("codex", "@openai/codex-*/vendor/*/bin/codex"),
    }[client]
    found = sorted((shelf.npm(name) / "node_modules").glob(pattern))
    return [str(found[0]), "mcp", "list"]


@pytest.fixture
def typed(tmp_path):
    """Runs a command in an empty home; what it printed."""
    work = tmp_path / "work"
    work.mkdir()

    def run(*words):
        path = f"{Path(node('x')[0]).parent}{os.pathsep}{os.environ['PATH']}"
        ended = subprocess.run(
            [str(word) for word in words],
            check=False,
            capture_output=True,
            text=True,
            cwd=work,
            env={"HOME": str(tmp_path), "PATH": path, "TERM": "dumb", **QUIET},
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE,
        )
        assert ended.returncode == 0, f"{words}: {ended.stdout}\n{ended.stderr}"
        return re.sub(r"\x1b\[[\d;]*m", "", ended.stdout + ended.stderr)

    return run


@pytest.mark.parametrize("is_new", [True, False], ids=["no file before", "a file before"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_reaches_the_gateway_that_was_installed(shelf, typed, tmp_path, client, is_new):
    name, own, works = CLIENTS[client]
    file = tmp_path / name
    if not is_new:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(own)
    demo = (sys.executable, "-m", "multitap.demo.servers.calculator")
    typed(PROGRAM, "add", "calculator", "--no-check", "--", *demo)

    typed(PROGRAM, "install", client)
    installed = file.read_bytes()
    listed = typed(*listing(shelf, client))

    (line,) = [line for line in listed.splitlines() if re.search(r"\bmultitap\b(?!/)", line)][:1]
    assert works in line, listed
    # some note in it that they ran; what they wrote is not ours to restore
    if file.read_bytes() == installed:
        typed(PROGRAM, "uninstall", client)
        assert file.exists() is not is_new
        assert is_new or file.read_text() == own
    else:
        typed(PROGRAM, "uninstall", client)
        assert "multitap" not in json.dumps(json.loads(file.read_text()).get("mcpServers"))


@pytest.mark.parametrize("client", ["claude-code", "gemini", "opencode"])
def test_a_client_says_so_when_nothing_is_served_at_the_address(shelf, typed, tmp_path, client):
    typed(PROGRAM, "install", client, "--http", "http://127.0.0.1:9/mcp")

    listed = typed(*listing(shelf, client))

    assert "http://127.0.0.1:9/mcp" in listed
    assert CLIENTS[client][2] not in listed.replace("Disconnected", "")
