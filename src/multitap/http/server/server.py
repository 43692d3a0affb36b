"""An HTTP server: listens, and answers requests.

Our own, on the parser that uvicorn uses: with an ASGI cycle per request, the gateway would spend
more time on HTTP than on everything else together.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import anyio
import anyio.lowlevel
import msgspec

from multitap.errors import ConfigError, ungrouped
from multitap.http.closed_ports import close_port, reserve_port
from multitap.http.server.connection import ServerConnection
from multitap.http.server.connections import Connections, HttpLimits
from multitap.http.server.proxied import ProxiedConnection
from multitap.http.server.proxies import TrustedProxies
from multitap.http.server.request import HttpApp
from multitap.http.server.tls import HANDSHAKE, ServerTls
from multitap.tasks import Tasks, keep_going

BACKLOG = 2048
"""Clients that wait to be accepted: after a restart all of them reconnect at once."""


class ListeningServer(msgspec.Struct, frozen=True):
    """A server that listens."""

    url: str
    """Its address, without a path."""
    connections: Connections


@contextmanager
def open_listener(host: str, port: int) -> Generator[socket.socket]:
    """While entered, a listening socket whose port is closed to confined servers.

    Args:
        host: An address of this machine.
        port: 0 for any free port.

    Raises:
        ConfigError: The address cannot be used.
    """
    if port:
        reserve_port(port)
    with (
        contextlib.closing(bind(host, port)) as listener,
        close_port(listener.getsockname()[1]),
    ):
        start_listening(listener)
        yield listener


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket with an address of this machine, which does not listen yet; see `open_listener`.

    Args:
        host: An address of this machine.
        port: 0 for any free port.
        shared: Whether several sockets share the port, among which the system spreads clients.

    Raises:
        ConfigError: The address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # without it a restart fails while old connections linger
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host.strip("[]"), port))
    except OSError as exc:
        listener.close()
        raise _unusable(host, port, exc) from None
    listener.setblocking(False)
    return listener


def start_listening(listener: socket.socket) -> None:
    """Accept connections from now on.

    Raises:
        ConfigError: Another program was faster.
    """
    try:
        listener.listen(BACKLOG)
    except OSError as exc:
        host, port = listener.getsockname()[:2]
        raise _unusable(host, port, exc) from None


def _unusable(host: str, port: int, exc: OSError) -> ConfigError:
    return ConfigError(
        f"cannot listen on {host}:{port}: {exc.strerror or exc}",
        hint="choose another port, as in `--http 127.0.0.1:3001`, or stop what uses it",
    )


def url_of(listener: socket.socket, *, is_secure: bool = False) -> str:
    """The address of a listening socket, without a path."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    scheme = "https" if is_secure else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


@asynccontextmanager
async def open_http_server(
    app: HttpApp,
    listener: socket.socket,
    limits: HttpLimits = HttpLimits(),
    *,
    tls: ServerTls | None = None,
    proxies: TrustedProxies | None = None,
) -> AsyncGenerator[ListeningServer]:
    """While entered, requests are answered.

    Args:
        app: Answers them.
        listener: Accepts connections.
        limits: The limits of connections.
        tls: The certificate, if clients use TLS.
        proxies: Begin each connection with a header of the PROXY protocol; None if none does.
    """
    url, loop = url_of(listener, is_secure=tls is not None), asyncio.get_running_loop()
    with ungrouped():
        async with Tasks() as tasks:
            connections = Connections(app, tasks, limits)
            is_local = listener.family == socket.AF_UNIX
            server = await (loop.create_unix_server if is_local else loop.create_server)(
                lambda: (
                    ServerConnection(connections)
                    if proxies is None
                    else ProxiedConnection(connections, proxies)
                ),
                sock=listener,
                backlog=BACKLOG,
                ssl=None if tls is None else tls.context,
                ssl_handshake_timeout=None if tls is None else HANDSHAKE,
            )
            tasks.start_soon(connections.watch)
            if tls is not None:
                tasks.start_soon(keep_going, tls.follow)
            try:
                yield ListeningServer(url, connections)
            finally:
                # we are usually cancelled here; `HttpLimits.drain` bounds the wait
                with anyio.CancelScope(shield=True), contextlib.suppress(OSError):
                    # asyncio never closes what it accepted just before its server closes
                    loop.remove_reader(listener)
                    await _begin_accepted()
                    # no new connections while the last responses are sent
                    server.close()
                    await _begin_accepted()  # uvloop does, but accepted until now
                    await connections.close()


async def _begin_accepted() -> None:
    """Wait for the two turns of the loop in which an accepted connection begins."""
    for _ in range(3):
        await anyio.lowlevel.checkpoint()
