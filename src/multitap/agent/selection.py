"""A part of a registry's tools, by where they come from."""

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase

from multitap.tools import HubTool, ToolInfo, ToolRegistry

Globs = tuple[str, ...]


def of_servers(registry: ToolRegistry, servers: Globs) -> ToolRegistry:
    """The tools of these servers, and all that are no server's, as they are whenever one looks."""

    def belongs(tool: ToolInfo) -> bool:
        server = server_of(tool)
        return server is None or matches(server, servers)

    return selected(registry, belongs)


def selected(registry: ToolRegistry, belongs: Callable[[ToolInfo], bool]) -> ToolRegistry:
    """The tools that belong to it, as they are whenever one looks."""
    chosen = ToolRegistry()
    chosen.attach(_Selected(registry, belongs))
    return chosen


class _Selected(Mapping[str, ToolInfo]):
    def __init__(self, registry: ToolRegistry, belongs: Callable[[ToolInfo], bool]) -> None:
        self._registry = registry
        self._belongs = belongs

    def __getitem__(self, name: str) -> ToolInfo:
        tool = self._registry.get(name)
        if tool is None or not self._belongs(tool):
            raise KeyError(name)
        return tool

    def __iter__(self) -> Iterator[str]:
        return (tool.name for tool in self._registry.list() if self._belongs(tool))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def matches(name: str, globs: Globs) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def server_of(tool: ToolInfo) -> str | None:
    """The MCP server that a tool comes from; None for our own."""
    return tool.server if isinstance(tool, HubTool) else None
