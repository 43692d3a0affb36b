"""The MCP runtime for agents: one port, every MCP server."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multitap.config import HttpServer as HttpServer
    from multitap.config import LocalServer as LocalServer
    from multitap.config import Settings as Settings
    from multitap.config import StdioServer as StdioServer
    from multitap.config import ToolFilter as ToolFilter
    from multitap.content import ToolResult as ToolResult
    from multitap.errors import MultitapError as MultitapError
    from multitap.hub import Hub as Hub
    from multitap.hub import open_hub as open_hub
    from multitap.router import CallContext as CallContext
    from multitap.sync import SyncHub as SyncHub
    from multitap.upstream.handlers import Handlers as Handlers

_HOME = {
    "CallContext": "router",
    "Handlers": "upstream.handlers",
    "HttpServer": "config",
    "Hub": "hub",
    "LocalServer": "config",
    "MultitapError": "errors",
    "Settings": "config",
    "StdioServer": "config",
    "SyncHub": "sync",
    "ToolFilter": "config",
    "ToolResult": "content",
    "open_hub": "hub",
}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll] - each is in the table


def __getattr__(name: str) -> object:
    """Import on first use: `import multitap` stays cheap, the MCP SDK costs 0.6 s."""
    from importlib import import_module  # noqa: PLC0415

    try:
        return getattr(import_module(f"multitap.{_HOME[name]}"), name)
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
