"""Real agents: how each is told of servers and of its model, and started with a task."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from tests.clients.doors import NEW, OLD

TASK = "Use the tool."
NOBODY = "http://127.0.0.1:9"
OFFLINE = {
    "DO_NOT_TRACK": "1",
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOBODY),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
}
"""Whatever an agent wants from anywhere else, it does not get."""


@dataclass(frozen=True)
class Agent:
    """One of them."""

    prefix: str
    """What is before the name of a tool of a server named `gw`; a namespace ends in `/`."""
    version: str
    """The protocol version it speaks."""
    prepare: Callable
    """Writes its configuration into a folder; the command line and the environment."""
    lists_again: bool = True
    """Whether it wants to know what has changed, when something has."""
    shows_change: bool = True
    """Whether its model sees it before the task is done."""


def claude(shelf, doors, model, folder):
    _write(
        folder / "mcp.json", {"mcpServers": {name: _entry(door) for name, door in doors.items()}}
    )
    command = [_one(shelf.npm("claude"), "@anthropic-ai/claude-code-*/claude"), "-p", TASK]
    allowed = ["--allowedTools", *(f"mcp__{name}" for name in doors)]
    options = ["--mcp-config", "mcp.json", "--strict-mcp-config", *allowed]
    env = {
        "ANTHROPIC_BASE_URL": model.anthropic_url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "ENABLE_TOOL_SEARCH": "false",
    }
    return [*command, *options], env


def opencode(shelf, doors, model, folder):
    servers = {
        name: {"type": "remote", "url": door.url, "oauth": False}
        if door.url
        else {"type": "local", "command": door.command}
        for name, door in doors.items()
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": model.openai_url, "apiKey": "none"},
        "models": {"scripted": {"tool_call": True, "limit": {"context": 100_000, "output": 4096}}},
    }
    told = {
        "mcp": servers,
        "provider": {"loopback": provider},
        "model": "loopback/scripted",
        "small_model": "loopback/scripted",
        "autoupdate": False,
        "share": "disabled",
    }
    _write(folder / "opencode.json", told)
    env = {
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    }
    return [_one(shelf.npm("opencode"), "opencode-*/bin/opencode"), "run", TASK], env


def codex(shelf, doors, model, folder):
    servers = "".join(_codex_table(name, door) for name, door in doors.items())
    (folder / "config.toml").write_text(
        f"""\
model = "scripted"
model_provider = "loopback"
approval_policy = "never"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.loopback]
name = "loopback"
base_url = "{model.openai_url}"
wire_api = "responses"
{servers}
"""
    )
    command = _one(shelf.npm("codex"), "@openai/codex-*/vendor/*/bin/codex")
    return [command, "exec", "--skip-git-repo-check", TASK], {"CODEX_HOME": str(folder)}


def _codex_table(name, door):
    server = (
        f'url = "{door.url}"'
        if door.url
        else f"command = {json.dumps(door.command[0])}\nargs = {json.dumps(door.command[1:])}"
    )
    return f"""\
[mcp_servers.{name}]
required = true
default_tools_approval_mode = "approve"
{server}
"""


def gemini(shelf, doors, model, folder):
    told = {
        "mcpServers": {name: {**_entry(door), "trust": True} for name, door in doors.items()},
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    }
    _write(folder / ".gemini" / "settings.json", told)
    command = shelf.program("gemini", "@google/gemini-cli/bundle/gemini.js")
    env = {
        "GOOGLE_GEMINI_BASE_URL": model.anthropic_url,
        "GEMINI_API_KEY": "none",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "GEMINI_SANDBOX": "false",
    }
    return [*command, "--model", "gemini-2.5-flash", "--yolo", "-p", TASK], env


AGENTS = {
    "claude": Agent("mcp__gw__", NEW, claude, shows_change=False),
    "opencode": Agent("gw_", OLD, opencode),
    "codex": Agent("mcp__gw/", "2025-06-18", codex, lists_again=False, shows_change=False),
    "gemini": Agent("mcp_gw_", "2025-06-18", gemini),
}


def _entry(door):
    """A server as most agents want to be told of it."""
    if door.url:
        return {"type": "http", "url": door.url}
    return {"command": door.command[0], "args": door.command[1:]}


def _write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def _one(prefix, pattern):
    """The one program there is for this machine."""
    return str(next((prefix / "node_modules").glob(pattern)))
