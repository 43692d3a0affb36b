"""The MCP runtime for agents: one port, every MCP server."""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multitap.agent.configured import ConfiguredEnvironment as ConfiguredEnvironment
    from multitap.agent.environment import BaseEnvironment as BaseEnvironment
    from multitap.config import Agent as Agent
    from multitap.config import HttpServer as HttpServer
    from multitap.config import LocalServer as LocalServer
    from multitap.config import Settings as Settings
    from multitap.config import StdioServer as StdioServer
    from multitap.config import ToolFilter as ToolFilter
    from multitap.content import ToolResult as ToolResult
    from multitap.errors import MultitapError as MultitapError
    from multitap.faces.agent_core import McpManager as McpManager
    from multitap.faces.excelmanus import AgentEngine as AgentEngine
    from multitap.faces.excelmanus import MCPClientWrapper as MCPClientWrapper
    from multitap.faces.excelmanus import MCPManager as MCPManager
    from multitap.faces.excelmanus import ToolExecutionError as ToolExecutionError
    from multitap.faces.mcp_json import MCPConfigLoader as MCPConfigLoader
    from multitap.faces.mcp_json import MCPServerConfig as MCPServerConfig
    from multitap.faces.spec07 import Info as Info
    from multitap.faces.spec07 import LocalConfig as LocalConfig
    from multitap.faces.spec07 import McpServerRegistry as McpServerRegistry
    from multitap.faces.spec07 import RemoteConfig as RemoteConfig
    from multitap.hub import Hub as Hub
    from multitap.opening import open_hub as open_hub
    from multitap.sync import SyncHub as SyncHub
    from multitap.tools import ToolDef as ToolDef
    from multitap.tools import ToolInfo as ToolInfo
    from multitap.tools import ToolRegistry as ToolRegistry
    from multitap.upstream.caller import CallContext as CallContext
    from multitap.upstream.handlers import Handlers as Handlers

_HOME = {
    "Agent": "config",
    "AgentEngine": "faces.excelmanus",
    "BaseEnvironment": "agent.environment",
    "CallContext": "upstream.caller",
    "ConfiguredEnvironment": "agent.configured",
    "Handlers": "upstream.handlers",
    "HttpServer": "config",
    "Hub": "hub",
    "Info": "faces.spec07",
    "LocalConfig": "faces.spec07",
    "LocalServer": "config",
    "MCPClientWrapper": "faces.excelmanus",
    "MCPConfigLoader": "faces.mcp_json",
    "MCPManager": "faces.excelmanus",
    "MCPServerConfig": "faces.mcp_json",
    "McpManager": "faces.agent_core",
    "McpServerRegistry": "faces.spec07",
    "MultitapError": "errors",
    "RemoteConfig": "faces.spec07",
    "Settings": "config",
    "StdioServer": "config",
    "SyncHub": "sync",
    "ToolDef": "tools",
    "ToolExecutionError": "faces.excelmanus",
    "ToolFilter": "config",
    "ToolInfo": "tools",
    "ToolRegistry": "tools",
    "ToolResult": "content",
    "open_hub": "opening",
}

__all__ = [
    "Agent",
    "AgentEngine",
    "BaseEnvironment",
    "CallContext",
    "ConfiguredEnvironment",
    "Handlers",
    "HttpServer",
    "Hub",
    "Info",
    "LocalConfig",
    "LocalServer",
    "MCPClientWrapper",
    "MCPConfigLoader",
    "MCPManager",
    "MCPServerConfig",
    "McpManager",
    "McpServerRegistry",
    "MultitapError",
    "RemoteConfig",
    "Settings",
    "StdioServer",
    "SyncHub",
    "ToolDef",
    "ToolExecutionError",
    "ToolFilter",
    "ToolInfo",
    "ToolRegistry",
    "ToolResult",
    "open_hub",
]


logging.getLogger(__name__).addHandler(logging.NullHandler())  # what is shown is the host's choice


def __getattr__(name: str) -> object:
    """Import on first use: `import multitap` stays cheap, the MCP SDK costs 0.6 s."""
    from importlib import import_module  # noqa: PLC0415

    try:
        return getattr(import_module(f"multitap.{_HOME[name]}"), name)
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
