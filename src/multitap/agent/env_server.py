"""An environment, shown to MCP clients."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import field
from typing import Any

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server import Server, ServerRequestContext

from multitap.agent import env_http, env_stdio
from multitap.agent.env_desk import EnvDesk, definition
from multitap.agent.env_tools import find
from multitap.agent.protocol import World
from multitap.config import Serve
from multitap.errors import ungrouped
from multitap.records import dataclass
from multitap.version import VERSION

_Context = ServerRequestContext[Any]


@dataclass(frozen=True, slots=True)
class Front:
    """Where an environment can be reached, for as long as it can."""

    url: str | None = None
    """None: over the standard input and output of this process."""
    closed: anyio.Event = field(default_factory=anyio.Event, repr=False)
    """Set once it can not: the other end of the pipes is closed, or the block was left."""


class EnvMCPServer:
    """The ten tools of the Env protocol, for clients of both protocol eras.

    Args:
        world: Who answers.
        execute_tool: Whether others may use the world's tools.
        invoke_llm: Whether others may use the world's model.
        name: What the server calls itself.
        version: Its version; ours where not given.
    """

    def __init__(
        self,
        world: World,
        *,
        execute_tool: bool = False,
        invoke_llm: bool = False,
        name: str = "multitap-env",
        version: str | None = None,
    ) -> None:
        powers = {"execute_tool": execute_tool, "invoke_llm": invoke_llm}
        self._desk = EnvDesk(world, lambda: powers)
        self.server: Server[Any] = Server(
            name,
            version=version or VERSION,
            instructions="Start with env_get_description: it says what this environment can do.",
            get_tool_input_schema=_input_schema,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        """To be used in a hub, or by a transport of the SDK."""

    def serve(self, config: Serve, *, insecure: bool = False) -> AbstractAsyncContextManager[Front]:
        """Be reachable as a configuration says; see `serve_stdio` and `serve_http`.

        Args:
            config: Where and how.
            insecure: Allow an address that other machines can reach, whatever the configuration
                says about that.
        """
        if config.transport == "stdio":
            return self.serve_stdio()
        allowed = insecure or config.insecure
        return self.serve_http(host=config.host, port=config.port, insecure=allowed)

    @asynccontextmanager
    async def serve_stdio(self) -> AsyncGenerator[Front]:
        """Within the block, talk to whoever started this process.

        What anybody else here prints meanwhile goes to the standard error.
        """
        front = Front()

        async def speak() -> None:
            try:
                async with env_stdio.open_stdio() as (reading, writing):
                    options = self.server.create_initialization_options()
                    await self.server.run(reading, writing, options)
            finally:
                front.closed.set()

        with ungrouped():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(speak)
                try:
                    yield front
                finally:
                    tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def serve_http(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 3000,
        insecure: bool = False,
        allowed_hosts: Sequence[str] = (),
    ) -> AsyncGenerator[Front]:
        """Within the block, listen for Streamable HTTP.

        Args:
            host: Which address of this machine.
            port: 0: any that is free; the front's `url` says which.
            insecure: Allow an address that other machines can reach: anybody there may use the
                environment, without a password.
            allowed_hosts: By which names the machine may be called, besides `host`.

        Raises:
            ConfigError: Nobody can, or may, listen there.
        """
        async with env_http.open_http(
            self.server, host=host, port=port, insecure=insecure, allowed_hosts=allowed_hosts
        ) as url:
            front = Front(url)
            try:
                yield front
            finally:
                front.closed.set()

    async def _list(
        self,
        _context: _Context,
        _params: types.PaginatedRequestParams | None,
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[definition(tool) for tool in self._desk.tools()])

    async def _call(
        self, _context: _Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = find(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"no tool named {params.name!r}")
        return await self._desk.call(tool, params.arguments or {})


def _input_schema(name: str) -> Mapping[str, Any] | None:
    tool = find(name)
    return tool.input_schema if tool else None
