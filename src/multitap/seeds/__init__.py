"""The classes named in the five designs Multitap grew from: thin, one file per design.

In: calls as a user of that design writes them. Out: the hub's own answers. They must not have logic
of their own, and nothing below imports them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_NAMES = {
    "agent_core": "McpManager",
    "excelmanus": "AgentEngine MCPClientWrapper MCPManager ToolExecutionError",
    "mcp_json": "MCPConfigLoader MCPServerConfig",
    "spec07": "Info LocalConfig McpServerRegistry RemoteConfig",
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [*_HOME]  # noqa: PLE0604 - they are strings  # pyright: ignore[reportUnsupportedDunderAll]


def __dir__() -> list[str]:
    return sorted(_HOME)


def __getattr__(name: str) -> object:
    """Import on first use: a design needs only its own file."""
    # first: the import itself asks for names, and would come back here
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(f"multitap.seeds.{_HOME[name]}"), name)
