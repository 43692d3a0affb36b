"""The Env protocol as an MCP server: in a hub, on stdio, over HTTP."""

import os
import sys
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server import Server, ServerRequestContext

from multitap.config import LocalServer, Serve, Settings
from multitap.env.env_dispatch import EnvDispatch, definition
from multitap.env.env_protocol import EnvService, HasWorld
from multitap.env.env_tools import ENV_TOOLS, PREFIXES, EnvTool, find
from multitap.env.visibility import SERVER, TIMEOUT
from multitap.errors import ConfigError, ungrouped
from multitap.gateway.fronts import http_front, stdio_front
from multitap.gateway.fronts.front_access import AccessRules, open_access
from multitap.gateway.gateway import Gateway, open_gateway
from multitap.http.server.http_server import open_listener
from multitap.hub.hub import open_hub
from multitap.names import Naming
from multitap.records import dataclass
from multitap.version import VERSION

_Context = ServerRequestContext[Any]


@dataclass(frozen=True, slots=True)
class Front:
    """The address of an environment while it is served."""

    url: str | None = None
    """None on standard input and output."""
    closed: anyio.Event = field(default_factory=anyio.Event, repr=False)
    """Set when serving has ended: the client closed its pipes, or the block was left."""


class EnvMCPServer:
    """The ten tools of the Env protocol, for clients of both protocol eras.

    Args:
        world: An environment, or any object with the methods of `EnvService`.
        execute_tool: Whether others may use the world's tools.
        invoke_llm: Whether others may use the world's model.
        name: The name that clients see.
        version: Its version; by default, ours.
    """

    def __init__(
        self,
        world: EnvService | HasWorld,
        *,
        execute_tool: bool = False,
        invoke_llm: bool = False,
        name: str = "multitap-env",
        version: str | None = None,
    ) -> None:
        if isinstance(world, Mapping):
            raise ConfigError(
                "callbacks are the methods of an object, not a dict",
                hint="name them as in `EnvService`, and pass `types.SimpleNamespace(**callbacks)`",
            )
        powers = {"execute_tool": execute_tool, "invoke_llm": invoke_llm}
        answering = world.world if isinstance(world, HasWorld) else world
        self._dispatch = EnvDispatch(answering, lambda: powers)
        self._name = name
        self._version = version or VERSION
        self.server = self._make_server({tool.listed: tool for tool in self._dispatch.tools()})
        """An SDK server, for a `LocalServer` of a hub or for a transport of the SDK."""

    def serve(self, config: Serve, *, insecure: bool = False) -> AbstractAsyncContextManager[Front]:
        """Serve as configured; see `serve_stdio` and `serve_http`.

        Args:
            config: Transport and address.
            insecure: Allow an address that other machines can reach, regardless of the
                configuration.
        """
        if config.transport == "stdio":
            return self.serve_stdio()
        allowed = insecure or config.insecure
        return self.serve_http(
            host=config.host,
            port=config.port,
            insecure=allowed,
            require_token=config.require_token,
        )

    @asynccontextmanager
    async def serve_stdio(self) -> AsyncGenerator[Front]:
        """Within the block, serve the program that started this process.

        Everything else that this process prints meanwhile goes to stderr.
        """
        front = Front()

        async def speak(gateway: Gateway) -> None:  # beside the block, until the client leaves
            try:
                with _standard_streams_restored():
                    await stdio_front.serve_stdio(gateway)
            finally:
                front.closed.set()

        with ungrouped():
            async with self._gateway() as gateway, anyio.create_task_group() as tasks:
                tasks.start_soon(speak, gateway)
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
        require_token: bool = False,
        allowed_hosts: Sequence[str] = (),
    ) -> AsyncGenerator[Front]:
        """Within the block, listen for Streamable HTTP.

        Clients of the same user on this machine need no token; others need one of the user's
        (`multitap token create`).

        Args:
            host: The address to listen on.
            port: 0 chooses a free one; the front's `url` says which.
            insecure: Accept every client that can reach the address, without a token.
            require_token: Whether clients of the same user need a token, too.
            allowed_hosts: Host names, besides `host`, that requests may have.

        Raises:
            ConfigError: The address cannot, or may not, be listened on.
        """
        rules = AccessRules(
            host, tuple(allowed_hosts), require_token=require_token, insecure=insecure
        )
        with open_access(rules) as allowed, open_listener(host, port) as listener:
            async with self._gateway() as gateway:
                app = http_front.HttpFront(gateway, allowed.access, sources=allowed.sources)
                async with http_front.serve_http(app, listener) as url:
                    front = Front(url)
                    try:
                        yield front
                    finally:
                        front.closed.set()

    @asynccontextmanager
    async def _gateway(self) -> AsyncGenerator[Gateway]:
        """A gateway to a hub with this as its only server.

        The hub calls the tools `env/x`, as the seed does; to clients they are `env_x`, and the
        gateway accepts either. Stored names would conflict if several environments shared a
        state directory, so this hub stores nothing.
        """
        off = ENV_TOOLS.keys() - {tool.name for tool in self._dispatch.tools()}
        server = LocalServer(
            server=self._make_server({_with_slash(name): tool for name, tool in ENV_TOOLS.items()}),
            timeout=TIMEOUT,
            on_request=tuple(map(_with_slash, off)),
        )
        with TemporaryDirectory(prefix="multitap-env-") as state:
            settings = Settings(servers={SERVER: server}, naming=Naming.BARE, state_dir=Path(state))
            async with open_gateway(
                lambda handlers: open_hub(settings, handlers=handlers),
                info={"name": self._name, "version": self._version},
            ) as gateway:
                await gateway.hub.settled()  # otherwise the first client would get no instructions
                yield gateway

    def _make_server(self, tools: Mapping[str, EnvTool]) -> Server[Any]:
        """An SDK server that lists tools by these names, and accepts calls by any of theirs."""

        async def list_tools(
            _context: _Context, _params: types.PaginatedRequestParams | None
        ) -> types.ListToolsResult:
            return types.ListToolsResult(
                tools=[definition(tool, name) for name, tool in tools.items()]
            )

        return Server(
            self._name,
            version=self._version,
            instructions="Start with env_get_description: it says what this environment can do.",
            get_tool_input_schema=_input_schema,
            on_list_tools=list_tools,
            on_call_tool=self._call,
        )

    async def _call(
        self, _context: _Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = find(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"no tool named {params.name!r}")
        return await self._dispatch.call(tool, params.arguments or {})


def _with_slash(name: str) -> str:
    return PREFIXES[1] + name


def _input_schema(name: str) -> Mapping[str, Any] | None:
    tool = find(name)
    return tool.input_schema if tool else None


@contextmanager
def _standard_streams_restored() -> Generator[None]:
    """Restores descriptors 0 and 1 afterwards, for a program that continues after serving."""
    kept = os.dup(0), os.dup(1)  # the front replaces them, and does not restore them
    try:
        yield
    finally:
        with suppress(OSError):
            sys.stdout.flush()
        for public, private in enumerate(kept):
            os.dup2(private, public)
            os.close(private)
