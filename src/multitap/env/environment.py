"""The base class of environments: tools, servers, and the view others get."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import anyio
from anyio.abc import TaskGroup

from multitap.config import ModelConfig, Problem, Serve
from multitap.env.environment_hooks import EnvironmentHooks
from multitap.env.environment_servers import McpClientLoadResult
from multitap.env.front_switch import FrontSwitch
from multitap.errors import MultitapError, ungrouped
from multitap.hub.hub import Hub
from multitap.hub.reload import open_configured, warn_of_untrusted
from multitap.later import Later
from multitap.tasks import InOwnTask
from multitap.tools import HubTools, ToolInfo, ToolRegistry
from multitap.tools.tool import server_of
from multitap.upstream.connector import Placements, local_placements

if TYPE_CHECKING:
    from multitap.env import env_server
else:
    env_server = Later("multitap.env.env_server")


class BaseEnvironment(EnvironmentHooks):
    """Functions and MCP servers as one set of tools, for agents and, over MCP, for others.

    A subclass overrides hooks: `mcp_client_config`, `mcpservers_directory`, `mcp_server_config`,
    `base_settings`, and the others of `EnvironmentHooks`. It is open inside its `async with` block,
    or from `initialize_mcp` to `shutdown_mcp`.
    """

    settle_timeout: float = 10.0
    """Seconds that opening waits for servers; tools of slower servers are added later."""

    _recall: ClassVar[bool] = False
    """Whether a server's tools from the last run are listed while it starts."""
    _place: Placements = local_placements
    """Where its servers run."""
    _warns: ClassVar[bool] = True
    """Whether opening warns of parts of a project that nobody has trusted."""
    _tools_of: ClassVar[type[HubTools]] = HubTools
    """Selects the tools of its servers."""

    def __init__(self) -> None:
        super().__init__()
        self._life: InOwnTask[None] | None = None
        self._front: FrontSwitch | None = None

    async def __aenter__(self) -> Self:
        await self.initialize_mcp()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        life, self._life = self._life, None
        if life is not None:
            await life.__aexit__(kind, exc, trace)

    async def initialize_mcp(self) -> McpClientLoadResult:
        """Connect to the servers, and start the environment's own if that is enabled.

        Raises:
            MultitapError: It is open already, or its own server cannot start.
        """
        if self._life is not None:
            raise MultitapError(f"{type(self).__name__} is open already")
        # in its own task: another one may close it
        life = self._life = InOwnTask(self._living())
        try:
            await life.__aenter__()
        except BaseException:
            self._life = None
            raise
        try:
            if self._warns:
                # here, not in that task: this one has the line of the program that opens it
                warn_of_untrusted(self.hub.withheld)
        except BaseException:  # a program may turn warnings into errors
            await self.shutdown_mcp()
            raise
        return self.servers.outcome()

    async def shutdown_mcp(self) -> None:
        """Stop everything that `initialize_mcp` started; does nothing if the environment is closed.

        Any task may do it.
        """
        await self.__aexit__(None, None, None)

    async def start_mcp_server(self, *, insecure: bool = False) -> env_server.Front:
        """Serve the environment to MCP clients, as `mcp_server_config` says, until it is closed.

        Args:
            insecure: Accept every client that can reach the address, without a token.
                `insecure` in the configuration does the same.

        Raises:
            ConfigError: The address cannot, or may not, be listened on.
            HubClosed: The environment is not open.
        """
        if self._front is None:
            raise self.servers.not_open()
        config = self.mcp_server_config() or Serve()
        server = env_server.EnvMCPServer(
            self.world, **self.create_mcp_server_options(), name=self.get_env_id()
        )
        return await self._front.start(lambda: server.serve(config, insecure=insecure))

    async def stop_mcp_server(self) -> None:
        """Stop serving it; does nothing if it is not served."""
        if self._front is not None:
            await self._front.stop()

    async def load_mcp_clients(self) -> McpClientLoadResult:
        """Read the configuration again, and wait until every server has answered or failed."""
        return await self.servers.load()

    async def disconnect_mcp_client(self, name: str) -> None:
        """Stop a server and remove its tools until it is reconnected; ignores unknown names."""
        self.servers.disconnect(name)

    async def reconnect_mcp_client(self, name: str) -> None:
        """Start a server again, and wait for it.

        Raises:
            UnknownName: None of that name is configured.
            Unavailable: It does not come up, or is disabled.
        """
        await self.servers.reconnect(name)

    def register_tool(self, tool: ToolInfo | Callable[..., Any]) -> None:
        """Add a tool, or a plain function as one.

        Raises:
            MultitapError: The name is taken.
        """
        self.registry.register(tool)

    def get_tools(self) -> Sequence[ToolInfo]:
        """All current tools."""
        return self.registry.list()

    def get_mcp_tools(self) -> Sequence[ToolInfo]:
        """The tools of MCP servers."""
        return [tool for tool in self.registry.list() if server_of(tool) is not None]

    def tools_for(self, agent: str | None = None, *, profile: str | None = None) -> ToolRegistry:
        """The tools of an agent; see `EnvironmentWorld.tools_for`."""
        return self.world.tools_for(agent, profile=profile)

    def model_for(self, agent: str | None = None) -> ModelConfig:
        """The model of an agent; see `EnvironmentModels.of`."""
        return self.models.of(agent)

    def system_prompt(self, agent: str | None = None, *, profile: str | None = None) -> str:
        """The system prompt of an agent; see `EnvironmentWorld.system_prompt`."""
        return self.world.system_prompt(agent, profile=profile)

    @property
    def hub(self) -> Hub:
        """The servers.

        Raises:
            HubClosed: The environment is not open.
        """
        return self.servers.hub

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of the configuration."""
        return self.servers.files.problems

    @asynccontextmanager
    async def _living(self) -> AsyncGenerator[None]:
        opening = open_configured(
            self.servers.files,
            handlers=self.handlers(),
            recall=self._recall,
            place=self._place,
            warns=False,
        )
        with ungrouped():
            async with opening as hub, anyio.create_task_group() as tasks:
                tools = self._tools_of(hub)
                self.registry.attach(tools)
                self.servers.running, self._front = hub, FrontSwitch(tasks)
                try:
                    await self._on_open(tasks)
                    yield
                finally:
                    # callers first, which then get `HubClosed`, then the tasks that may call
                    self.servers.running = self._front = None
                    self.registry.detach(tools)
                    tasks.cancel_scope.cancel()

    async def _on_open(self, tasks: TaskGroup) -> None:  # noqa: ARG002 - for subclasses
        """Finish opening; subclasses may start `tasks` that run while it is open."""
        with anyio.move_on_after(self.settle_timeout):
            await self.hub.settled()
        if self.is_mcp_server_enabled():
            await self.start_mcp_server()
