"""The connections to one origin: in use, and idle for the next request."""

import asyncio
import os
import re
import ssl

from multitap.faults import RequestFailed
from multitap.http.client.client_connection import ClientConnection
from multitap.http.client.origin_route import OriginRoute, ProxyRefused

KEEP_ALIVE = 4.0
"""Seconds a connection may be idle; many servers close at 5, which must not hit a request."""

_UNEXPLAINED = "Connect call failed"  # the whole message of asyncio
_NUMBER = re.compile(r"\[Errno (\d+)\]")


class ConnectionPool:
    """Hands out connections, each to one request at a time; a `ConnectionOwner` of them.

    Args:
        name: The server's name for messages.
        route: How to reach it.
        loop: The event loop.
        keep_alive: Seconds a connection may be idle.
    """

    def __init__(
        self, name: str, route: OriginRoute, loop: asyncio.AbstractEventLoop, keep_alive: float
    ) -> None:
        self.name = name
        self.route = route
        self.loop = loop
        self._keep_alive = keep_alive
        self._open: set[ClientConnection] = set()
        self._idle: list[ClientConnection] = []
        self._timer: asyncio.TimerHandle | None = None
        self._closed: asyncio.Future[None] | None = None

    def take(self) -> ClientConnection | None:
        """Take the idle connection that was used last: the least likely to be closed soon."""
        oldest = self.loop.time() - self._keep_alive
        while self._idle:
            # removed before it is used, without an await: no two requests can share it
            connection = self._idle.pop()
            transport = connection.transport
            # inlined from `usable`, to save a frame
            if connection.idle_since > oldest and transport and not transport.is_closing():
                return connection
            connection.abort()
        return None

    async def connect(self) -> ClientConnection:
        """A new connection.

        Raises:
            RequestFailed: The server cannot be reached.
        """
        made: list[ClientConnection] = []

        def make() -> ClientConnection:
            made.append(ClientConnection(self))
            return made[-1]

        try:
            connection = await self.route.open(self.loop, make)
        except ProxyRefused as exc:
            words = f"the proxy refuses to connect to {self.name}: {exc}"
            raise RequestFailed(words, sent=False) from None
        except ssl.SSLCertVerificationError as exc:
            words = f"the TLS certificate of {self.name} is not trusted"
            raise RequestFailed(f"{words}: {exc.verify_message or exc}", sent=False) from None
        except (OSError, ValueError) as exc:
            words = f"cannot connect to {self.name}: {_reason(exc)}"
            raise RequestFailed(words, sent=False) from None
        except BaseException:
            for one in made:
                self.leave(one)  # uvloop does not report the ones that it closed
            raise
        # it may have been closed again before our turn
        if not connection.usable:
            words = f"{self.name} closed the connection at once"
            raise RequestFailed(words, sent=False)
        return connection

    async def close(self) -> None:
        """Close all connections, also those in use."""
        # before they are aborted: `leave` may be called during that
        self._closed = self.loop.create_future()
        if self._timer is not None:
            self._timer.cancel()
        for connection in tuple(self._open):
            connection.abort()
        if self._open:
            await self._closed

    def enter(self, connection: ClientConnection) -> None:
        self._open.add(connection)
        # it was connecting when the pool was closed
        if self._closed is not None:
            connection.abort()

    def give_back(self, connection: ClientConnection) -> None:
        connection.idle_since = self.loop.time()
        self._idle.append(connection)
        if self._timer is None:
            self._timer = self.loop.call_later(self._keep_alive, self._look)

    def leave(self, connection: ClientConnection) -> None:
        self._open.discard(connection)
        if not self._open and self._closed is not None and not self._closed.done():
            self._closed.set_result(None)

    def doubt(self) -> None:
        """Close idle connections, which may have broken in the same way."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abort()

    # One timer for all: setting and cancelling one per request costs more.
    def _look(self) -> None:
        oldest = self.loop.time() - self._keep_alive
        while self._idle and self._idle[0].idle_since <= oldest:
            self._idle.pop(0).abort()
        self._timer = None
        if self._idle:
            due = self._idle[0].idle_since + self._keep_alive
            self._timer = self.loop.call_at(due, self._look)


def _reason(exc: OSError | ValueError) -> str:
    words: str = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
    if _UNEXPLAINED not in words:
        return words
    return ", ".join(dict.fromkeys(os.strerror(int(one)) for one in _NUMBER.findall(str(exc))))
