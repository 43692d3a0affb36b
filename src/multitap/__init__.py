"""The MCP runtime for agents: one port, every MCP server.

The packages, from top to bottom; imports only go down:

- `cli`, `screens`, `demo`, `seeds`: the command line, the screens, a demo, and the classes that
  earlier designs named;
- `env`, `agent`, `gateway`: the users of a hub: environments, agents, and one MCP server for
  clients;
- `hub`, `tools`, `results`, `catalog`: many servers as one, what they offer and what they answer;
- `upstream`, `wire`, `http`: the life of one server, its messages, and the HTTP that carries them;
- `trust`, `store`, `published`, `config`: what may run, what is kept, what others publish, and what
  the files say.

Users import from here; `docs/internals.md` is the map of the rest.
"""

import logging
from typing import TYPE_CHECKING

from multitap import version

if TYPE_CHECKING:
    from multitap.config import Agent as Agent
    from multitap.config import HttpServer as HttpServer
    from multitap.config import LocalServer as LocalServer
    from multitap.config import Settings as Settings
    from multitap.config import StdioServer as StdioServer
    from multitap.config import ToolFilter as ToolFilter
    from multitap.env.client import EnvClient as EnvClient
    from multitap.env.configured import ConfiguredEnvironment as ConfiguredEnvironment
    from multitap.env.environment import BaseEnvironment as BaseEnvironment
    from multitap.env.server import EnvMCPServer as EnvMCPServer
    from multitap.errors import MultitapError as MultitapError
    from multitap.hub.hub import Hub as Hub
    from multitap.hub.hub import open_hub as open_hub
    from multitap.hub.sync import SyncHub as SyncHub
    from multitap.results import ToolResult as ToolResult
    from multitap.seeds.agent_core import McpManager as McpManager
    from multitap.seeds.excelmanus import AgentEngine as AgentEngine
    from multitap.seeds.excelmanus import MCPClientWrapper as MCPClientWrapper
    from multitap.seeds.excelmanus import MCPManager as MCPManager
    from multitap.seeds.excelmanus import ToolExecutionError as ToolExecutionError
    from multitap.seeds.mcp_json import MCPConfigLoader as MCPConfigLoader
    from multitap.seeds.mcp_json import MCPServerConfig as MCPServerConfig
    from multitap.seeds.spec07 import Info as Info
    from multitap.seeds.spec07 import LocalConfig as LocalConfig
    from multitap.seeds.spec07 import McpServerRegistry as McpServerRegistry
    from multitap.seeds.spec07 import RemoteConfig as RemoteConfig
    from multitap.tools import ToolDef as ToolDef
    from multitap.tools import ToolInfo as ToolInfo
    from multitap.tools import ToolRegistry as ToolRegistry
    from multitap.upstream.questions import CallContext as CallContext
    from multitap.upstream.questions import Handlers as Handlers

__version__ = version.VERSION

_NAMES = {
    "config": "Agent HttpServer LocalServer Settings StdioServer ToolFilter",
    "env.configured": "ConfiguredEnvironment",
    "env.client": "EnvClient",
    "env.server": "EnvMCPServer",
    "env.environment": "BaseEnvironment",
    "errors": "MultitapError",
    "hub.hub": "Hub open_hub",
    "hub.sync": "SyncHub",
    "results": "ToolResult",
    "seeds.agent_core": "McpManager",
    "seeds.excelmanus": "AgentEngine MCPClientWrapper MCPManager ToolExecutionError",
    "seeds.mcp_json": "MCPConfigLoader MCPServerConfig",
    "seeds.spec07": "Info LocalConfig McpServerRegistry RemoteConfig",
    "tools": "ToolDef ToolInfo ToolRegistry",
    "upstream.questions": "CallContext Handlers",
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *_HOME]  # noqa: PLE0604 - they are strings  # pyright: ignore[reportUnsupportedDunderAll]

logging.getLogger(__name__).addHandler(logging.NullHandler())  # what is logged is the host's choice


def __dir__() -> list[str]:
    """The public names, for people and their completion."""
    return sorted({"__version__", "__doc__", *_HOME})


def __getattr__(name: str) -> object:
    """Import on first use: `import multitap` stays cheap, the MCP SDK costs 0.6 s."""
    # first: the import itself asks for names, and would come back here
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(f"multitap.{_HOME[name]}"), name)
