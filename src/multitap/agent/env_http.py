"""MCP over Streamable HTTP, at an address of this machine."""

import ipaddress
import socket
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import uvicorn
from anyio import to_thread
from mcp.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from multitap.errors import ConfigError, ungrouped

PATH = "/mcp"
GRACE = 1
"""Seconds that requests may still take when the block is left."""
_LOCAL = ("127.0.0.1", "localhost", "[::1]")
_ANYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - compared, not bound
_POLL = 0.01


@asynccontextmanager
async def open_http(
    server: Server[Any],
    *,
    host: str,
    port: int,
    insecure: bool = False,
    allowed_hosts: Sequence[str] = (),
) -> AsyncGenerator[str]:
    """The URL at which `server` is reached within the block.

    Raises:
        ConfigError: Nobody can, or may, listen there.
    """
    if not insecure and not is_loopback(host):
        raise ConfigError(
            f"at {host!r} other machines could use this environment, and no password is asked for",
            hint="listen at 127.0.0.1, or allow it with `insecure`",
        )
    with await _listener(host, port) as listener:
        names = (*_LOCAL, _written(host), socket.gethostname(), *allowed_hosts)
        endpoint = _Endpoint(server, _only_for(names), anywhere=host in _ANYWHERE)
        config = uvicorn.Config(
            Starlette(routes=[Route(PATH, endpoint, methods=["POST", "DELETE"])]),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE,
        )
        web = _Uvicorn(config)
        with ungrouped():
            async with _running(web, listener), endpoint.run():
                try:
                    yield f"http://{_written(host)}:{listener.getsockname()[1]}{PATH}"
                finally:
                    web.should_exit = True


class _Endpoint:
    """Answers each era in the way that leaves nothing behind.

    The SDK streams answers to the handshake era through sse_starlette, whose watching task never
    ends; so they are plain JSON, and there is no GET. To the stateless era it streams by itself,
    and only so it notices that a client is gone.

    Args:
        server: Who answers.
        security: By which names it may be called.
        anywhere: Whether it listens at every address of this machine.
    """

    def __init__(
        self, server: Server[Any], security: TransportSecuritySettings, *, anywhere: bool
    ) -> None:
        self._anywhere = anywhere
        self._handshake = StreamableHTTPSessionManager(
            server, json_response=True, security_settings=security
        )
        self._stateless = StreamableHTTPSessionManager(server, security_settings=security)

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[None]:
        async with self._handshake.run(), self._stateless.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        version = Headers(scope=scope).get(MCP_PROTOCOL_VERSION_HEADER)
        shakes = version is None or version in HANDSHAKE_PROTOCOL_VERSIONS
        era = self._handshake if shakes else self._stateless
        if self._anywhere:
            scope = _without_address(scope)
        await era.handle_request(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _without_address(scope: Scope) -> Scope:
    """A request by one of our addresses as one by a name that the SDK lets pass.

    A page that points a name of its own at us can be told by that name; a numeric `Host` is what
    the client was really given. The SDK only knows names that are listed.
    """
    headers = [
        (name, b"localhost" if name == b"host" and _is_address(value) else value)
        for name, value in scope["headers"]
    ]
    return {**scope, "headers": headers}


def _is_address(host: bytes) -> bool:
    name = host.decode("latin-1").strip()
    bare = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        return False
    return True


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals belong to the program; it cancels us."""
        yield


@asynccontextmanager
async def _running(server: uvicorn.Server, listener: socket.socket) -> AsyncGenerator[None]:
    async def serve() -> None:
        with anyio.CancelScope(shield=True):  # it ends by `should_exit`, and puts all away
            await server.serve([listener])
            with anyio.move_on_after(GRACE):
                while server.server_state.tasks:  # cancelled, and about to end
                    await anyio.sleep(_POLL)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        try:
            while not server.started:
                await anyio.sleep(_POLL)
            yield
        finally:
            server.should_exit = True


async def _listener(host: str, port: int) -> socket.socket:
    try:
        found = await to_thread.run_sync(socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        return socket.create_server(address, family=family, backlog=socket.SOMAXCONN)
    except OSError as exc:
        raise ConfigError(
            f"nobody can listen at {_written(host)}:{port}: {exc.strerror or exc}",
            hint="choose another `port`, or 0 for any that is free",
        ) from None


def _only_for(names: Sequence[str]) -> TransportSecuritySettings:
    """Browsers that were sent here under another name are turned away."""
    hosts = [written for name in names for written in (name, f"{name}:*")]
    origins = [f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts]
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host else host
