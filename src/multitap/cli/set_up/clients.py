"""The MCP clients that commands know, by name."""

from collections.abc import Mapping
from typing import Any

import msgspec

from multitap.config.dialects import OTHER_NAMES
from multitap.config.problems import did_you_mean
from multitap.errors import UnknownName


class McpClient(msgspec.Struct, frozen=True):
    """A client, and how it learns about servers."""

    dialect: str | None = None
    """The dialect of its file; None if it has no file that can be edited."""
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Further keys of its entry."""
    instructions: str = ""
    """Instructions for a client without a file, with `{command}` and `{url}`."""


_INSPECTOR = (
    "npx @modelcontextprotocol/inspector --cli {command} --method tools/list\n"
    "npx @modelcontextprotocol/inspector --cli {url} --method tools/list"
)
_REMOTE = "npx -y mcp-remote {url}   # for a client that only starts programs"
_CODE = "give it the command `{command}`, or the address {url}"

CLIENTS: Mapping[str, McpClient] = {
    "claude": McpClient("claude"),
    "claude-code": McpClient("claude-code"),
    "cursor": McpClient("cursor"),
    "vscode": McpClient("vscode"),
    "windsurf": McpClient("windsurf"),
    "zed": McpClient("zed"),
    "cline": McpClient("cline"),
    # without it, `codex exec` asks its model before the tools are listed
    "codex": McpClient("codex", {"required": True}),
    "gemini": McpClient("gemini"),
    "goose": McpClient("goose"),
    "continue": McpClient("continue"),
    "opencode": McpClient("opencode", {"enabled": True}),
    "kode": McpClient("kode"),
    "otter": McpClient("otter"),
    "agent-core": McpClient("agent-core"),
    "excelmanus": McpClient("excelmanus"),
    "inspector": McpClient(instructions=_INSPECTOR),
    "mcp-remote": McpClient(instructions=_REMOTE),
    "typescript-sdk": McpClient(instructions=_CODE),
    "fastmcp": McpClient(instructions=_CODE),
}


def client_named(name: str) -> McpClient:
    """The client of that name.

    Raises:
        UnknownName: There is none.
    """
    if client := CLIENTS.get(OTHER_NAMES.get(name, name)):
        return client
    hint = did_you_mean(name, CLIENTS) or f"known clients: {', '.join(CLIENTS)}"
    raise UnknownName(f"no client named {name!r}", hint=hint)


def dialect_named(name: str) -> str:
    """The dialect of a client that has one.

    Raises:
        UnknownName: There is no such client, or it has no file.
    """
    dialect = client_named(name).dialect
    if dialect is None:
        raise UnknownName(f"{name!r} keeps no servers in a file")
    return dialect
