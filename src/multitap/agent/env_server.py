"""An environment, shown to MCP clients."""

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version as installed_version
from typing import Any

import anyio
import mcp_types as types
import msgspec
from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from pydantic import BaseModel

from multitap.agent import env_http, env_stdio
from multitap.agent.env_tools import ENV_TOOLS, EnvTool, find, plain
from multitap.agent.protocol import EnvDescription, ToolOutcome, World
from multitap.config import Serve
from multitap.errors import MultitapError, NotAllowed, ungrouped

logger = logging.getLogger(__name__)

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
        self._world = world
        self._powers = {"execute_tool": execute_tool, "invoke_llm": invoke_llm}
        self._tools = [tool for tool in ENV_TOOLS.values() if self._powers.get(tool.name, True)]
        self.server: Server[Any] = Server(
            name,
            version=version or installed_version("multitap"),
            instructions="Start with env_get_description: it says what this environment can do.",
            get_tool_input_schema=_input_schema,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        """To be used in a hub, or by a transport of the SDK."""

    def serve(self, config: Serve, *, insecure: bool = False) -> AbstractAsyncContextManager[Front]:
        """Be reachable as a configuration says; see `serve_stdio` and `serve_http`."""
        if config.transport == "stdio":
            return self.serve_stdio()
        return self.serve_http(host=config.host, port=config.port, insecure=insecure)

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
        return types.ListToolsResult(tools=[_definition(tool) for tool in self._tools])

    async def _call(
        self, _context: _Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = find(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"no tool named {params.name!r}")
        try:
            return _result(await self._answer(tool, params.arguments or {}))
        except MultitapError as exc:
            return _failed(f"{exc}; {exc.hint}" if exc.hint else str(exc))
        except Exception as exc:  # boundary: what breaks in a world is told, and stays there
            logger.exception("%s could not be answered", tool.listed)
            return _failed(f"the environment could not answer: {type(exc).__name__}")

    async def _answer(self, tool: EnvTool, arguments: Mapping[str, Any]) -> BaseModel:
        if not self._powers.get(tool.name, True):
            raise NotAllowed(
                f"{tool.listed} is turned off in this environment",
                hint=f"its owner can set `{tool.name} = true` under [environment]",
            )
        answer = await tool.work(self._world, tool.read(arguments))
        if isinstance(answer, EnvDescription):
            can = answer.capabilities.model_copy(update=self._powers)
            return answer.model_copy(update={"capabilities": can})
        return answer


def _definition(tool: EnvTool) -> types.Tool:
    return types.Tool(
        name=tool.listed,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=types.ToolAnnotations(
            read_only_hint=not tool.powerful,
            destructive_hint=tool.name == "execute_tool",
            idempotent_hint=not tool.powerful,
            open_world_hint=tool.powerful,
        ),
    )


def _input_schema(name: str) -> Mapping[str, Any] | None:
    tool = find(name)
    return tool.input_schema if tool else None


def _result(answer: BaseModel) -> types.CallToolResult:
    data = plain(answer)
    return types.CallToolResult(
        content=[types.TextContent(text=msgspec.json.encode(data).decode())],
        structured_content=data,
        is_error=isinstance(answer, ToolOutcome) and not answer.success,
    )


def _failed(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
