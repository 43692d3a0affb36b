"""ExcelManus's client wrapper and manager."""

import logging
from collections.abc import Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field
from pathlib import Path
from typing import Any

from anyio import to_thread

from multitap.agent.engine import Engine
from multitap.catalog.catalog import Tool
from multitap.config import Settings
from multitap.errors import MultitapError, Unavailable, UnknownName, UpstreamError, quoted
from multitap.events import LinkState, ServerSnapshot
from multitap.hub.reload import warn_of_untrusted, withheld_parts
from multitap.names import Naming
from multitap.results import ToolResult
from multitap.seeds.mcp_json import MCPServerConfig, configs, read
from multitap.seeds.threaded_hub import ThreadedHub
from multitap.tools.registry import ToolRegistry
from multitap.tools.tool import NOBODY, Arguments, HubTools, ToolContext, ToolDef, outcome

logger = logging.getLogger(__name__)


class ToolExecutionError(MultitapError):
    """A tool reported a failure, or was called wrongly."""


class MCPClientWrapper:
    """One server.

    Args:
        config: How to reach it.
        hub: The hub to use; by default, its own.
    """

    def __init__(self, config: MCPServerConfig, *, hub: ThreadedHub | None = None) -> None:
        self.config = config
        self._hub = hub or ThreadedHub(Settings(naming=Naming.EXCELMANUS))

    async def connect(self) -> None:
        """Start or reach the server, and learn what it offers.

        Raises:
            ConfigError: Its configuration is wrong; the message names the key.
            Untrusted: It comes from a project's file that nobody has trusted.
            Unavailable: It does not come up; the message says why.
        """
        # In a thread, because it reads the trusted files.
        await to_thread.run_sync(self.config.check_trust)
        await self._hub.connect(self.config.name, self.config.server())

    async def discover_tools(self) -> list[dict[str, Any]]:
        """The server's tools, as it defines them.

        Raises:
            Unavailable: It is not connected.
        """
        if not self.is_connected:
            raise self._not_connected()
        return [dict(tool.definition) for tool in self._tools().values()]

    async def call_tool(self, tool_name: str, arguments: Arguments) -> str:
        """Call a tool; returns its text, or the reason why there is no answer.

        Args:
            tool_name: The server's own name for it.
            arguments: The tool's arguments.

        Raises:
            ToolExecutionError: The tool reported a failure, or was called wrongly.
        """
        try:
            if (tool := self._tools().get(tool_name)) is None:
                if not self.is_connected:
                    raise self._not_connected()
                raise UnknownName(f"{self.config.name} has no tool named {quoted(tool_name)}")
            return _text(await self._hub.call(tool.name, arguments))
        except MultitapError as exc:
            return _apology(exc)

    async def close(self) -> None:
        """Close the connection, and stop the server if it was started here."""
        await self._hub.pull(self.config.name)

    @property
    def is_connected(self) -> bool:
        return self.config.name in self._hub.connected

    def _tools(self) -> Mapping[str, Tool]:
        return self._hub.tools_of(self.config.name)

    def _not_connected(self) -> Unavailable:
        return Unavailable(self.config.name, "it is not connected", hint="connect it first")


class MCPManager:
    """All servers of `mcp.json`, their tools in a registry.

    Args:
        workspace_root: The folder in which `mcp.json` is looked for first.
        config_path: A file that takes precedence over it.
    """

    def __init__(
        self, workspace_root: str | Path = ".", *, config_path: str | Path | None = None
    ) -> None:
        self._workspace_root = workspace_root
        self._config_path = config_path
        self._hub = ThreadedHub()
        self._registry: ToolRegistry | None = None
        self._tools: _ToolDefs | None = None
        self.clients: Mapping[str, MCPClientWrapper] = {}
        """By the server's name, connected or not."""

    async def initialize(self, registry: ToolRegistry) -> None:
        """Connect all servers side by side, and have their tools in the registry.

        A workspace's `mcp.json` is used once a person has trusted it with `multitap trust`;
        until then, this warns (`UntrustedWarning`).

        A server that fails is logged as an error and does not disturb the others; it is retried,
        and its tools are added once it is up.
        """
        # may be called again, as ExcelManus does when its file changes
        await self.shutdown()
        loaded = await to_thread.run_sync(read, self._config_path, self._workspace_root)
        withheld = withheld_parts(loaded)
        warn_of_untrusted(withheld)
        self._hub = ThreadedHub(loaded.settings.with_servers({}), withheld=withheld)
        self.clients = {
            config.name: MCPClientWrapper(config, hub=self._hub) for config in configs(loaded)
        }
        for server in (await self._hub.plug(loaded.settings.servers)).values():
            _report(server)
        self._registry, self._tools = registry, _ToolDefs(self._hub)
        registry.attach(self._tools)

    async def shutdown(self) -> None:
        """Close all connections; the tools leave the registry."""
        if self._registry is not None and self._tools is not None:
            # Before the servers end: an agent must not choose a tool that is about to vanish.
            self._registry.detach(self._tools)
        self._registry = self._tools = None
        self.clients = {}
        await self._hub.close()

    @property
    def connected_servers(self) -> list[str]:
        return self._hub.connected


@dataclass
class AgentEngine(Engine):
    """An agent with the servers of `mcp.json`.

    `AgentEngine(config, registry)` works as well, with any object that has a `workspace_root`.
    """

    second: InitVar[ToolRegistry | None] = None
    """The registry, if the first argument is a configuration."""
    _: KW_ONLY
    workspace_root: str | Path = "."
    """Where `mcp.json` is looked for first."""
    mcp: MCPManager = field(init=False, repr=False)
    """The servers."""

    def __post_init__(self, second: ToolRegistry | None) -> None:
        if second is not None:
            config: Any = self.registry
            self.workspace_root, self.registry = config.workspace_root, second
        # callers need not be type-checked
        if not isinstance(self.registry, ToolRegistry):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"expected a ToolRegistry, not {type(self.registry).__name__}")
        self.mcp = self.servers = MCPManager(self.workspace_root)


class _RemoteTool(ToolDef, frozen=True, kw_only=True):
    """A tool of a server; arguments are checked and results are cut."""

    hub: ThreadedHub

    def call(self, arguments: Arguments) -> str:
        return str(self.func(**arguments))

    async def execute(self, arguments: Arguments, context: ToolContext = NOBODY) -> ToolResult:
        return await outcome(self.hub.call(self.name, arguments, context=context))


class _ToolDefs(HubTools):
    """The tools of a threaded hub, as blocking functions."""

    def __init__(self, hub: ThreadedHub) -> None:
        super().__init__(hub)
        self._threaded_hub = hub

    def _to_info(self, tool: Tool) -> ToolDef:
        return tool_def(tool, self._threaded_hub)


def tool_def(tool: Tool, hub: ThreadedHub) -> ToolDef:
    """A server's tool as a blocking function, inside or outside a running loop."""

    def func(**arguments: Any) -> str:
        try:
            return _text(hub.call_and_wait(tool.name, arguments))
        except MultitapError as exc:
            return _apology(exc)

    limit = tool.link.config.result_cap or hub.settings.result_cap
    return _RemoteTool(tool.name, tool.description, tool.input_schema, func, limit, hub=hub)


def _text(result: ToolResult) -> str:
    if result.is_error:
        raise ToolExecutionError(result.error or "")
    return result.text


def _apology(exc: MultitapError) -> str:
    """The text for a server that did not answer; other errors become `ToolExecutionError`."""
    if isinstance(exc, UpstreamError):
        return f"error: {exc}"
    if isinstance(exc, ToolExecutionError):
        raise exc
    raise ToolExecutionError(str(exc), hint=exc.hint) from exc


def _report(server: ServerSnapshot) -> None:
    if server.state not in {LinkState.CONNECTED, LinkState.DISABLED}:
        logger.error("%s is not connected: %s", server.name, server.failure)
    for warning in server.warnings:
        logger.warning("%s: %s", server.name, warning)
