"""The HTTP server under the gateway: its sockets, its connections, its end."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from multitap.errors import ConfigError, ungrouped
from multitap.serve.http import GONE, HttpFront

logger = logging.getLogger(__name__)

HEAD_TIMEOUT = 20.0
"""Seconds in which the head of a request has to arrive."""
KEEP_ALIVE = 120
MOST_CONNECTIONS = 20_000
DRAIN = 5


class _Connection(HttpToolsProtocol):
    """Tells whoever works on a request that its client is gone; closes those that never ask."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._patience is None:
            self._wait_for_head()

    def on_headers_complete(self) -> None:
        self._head_is_there()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        waiting = [cycle for cycle, _ in self.pipeline]
        super().connection_lost(exc)
        for cycle in (self.cycle, *waiting):
            if cycle and not cycle.response_complete:
                gone: Any = cycle.scope.get(GONE)
                if gone is not None:
                    gone()

    def _wait_for_head(self) -> None:
        self._patience = self.loop.call_later(HEAD_TIMEOUT, self.transport.close)

    def _head_is_there(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class _Server(uvicorn.Server):
    """Leaves signals to the program it is part of."""

    stopped = False

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: The address can not be used, and why.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.listen(2048)
    except OSError as exc:
        listener.close()
        raise ConfigError(
            f"can not listen on {host}:{port}: {exc.strerror or exc}",
            hint="choose another port, as in `--http 127.0.0.1:3001`, or end what uses it",
        ) from None
    listener.setblocking(False)
    return listener


@asynccontextmanager
async def serve_http(front: HttpFront, listener: socket.socket) -> AsyncGenerator[str]:
    """Within the block, clients are answered; its value is the address they use."""
    host, port = listener.getsockname()[:2]
    config = uvicorn.Config(
        front,
        http=_Connection,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=DRAIN,
        limit_concurrency=MOST_CONNECTIONS,
    )
    server = _Server(config)
    with ungrouped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(front.sessions.reap)
            tasks.start_soon(_serve, server, listener)
            while not server.started:
                await anyio.sleep(0.005)
            try:
                yield f"http://{f'[{host}]' if ':' in host else host}:{port}/mcp"
            finally:
                server.should_exit = True
                with anyio.CancelScope(shield=True), anyio.move_on_after(DRAIN + 2):
                    while server.started and not server.stopped:
                        await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()


async def _serve(server: _Server, listener: socket.socket) -> None:
    try:
        await server.serve(sockets=[listener])
    finally:
        server.stopped = True
        listener.close()
