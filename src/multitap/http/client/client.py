"""An HTTP/1.1 client; deadlines and concurrency are up to the caller."""

import asyncio
import os
import re
import ssl
from functools import partial
from typing import NamedTuple, Protocol, Self

import anyio
from yarl import URL

from multitap.errors import RequestFailed, WireFault
from multitap.http.client.connection import ClientConnection
from multitap.http.client.messages import Headers, Response, encode_head, merge
from multitap.http.client.route import OriginRoute, ProxyRefused, Resolve, proxy_for, show_url

KEEP_ALIVE = 4.0
"""Seconds a connection may be idle; many servers close at 5, which must not hit a request."""

_UNEXPLAINED = "Connect call failed"  # the whole message of asyncio
_NUMBER = re.compile(r"\[Errno (\d+)\]")


class ConnectionPool:
    """Hands out connections, each to one request at a time; a `ConnectionOwner` of them."""

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
            if connection.idle_since > oldest and connection.usable:
                return connection
            connection.abort()
        return None

    async def connect(self) -> ClientConnection:
        """A new connection.

        Raises:
            RequestFailed: The server cannot be reached.
        """
        connections: list[ClientConnection] = []

        def make() -> ClientConnection:
            connections.append(ClientConnection(self))
            return connections[-1]

        try:
            connection = await self.route.open(self.loop, make)
        except ProxyRefused as exc:
            message = f"the proxy refuses to connect to {self.name}: {exc}"
            raise RequestFailed(message, sent=False) from None
        except ssl.SSLCertVerificationError as exc:
            message = f"the TLS certificate of {self.name} is not trusted"
            raise RequestFailed(f"{message}: {exc.verify_message or exc}", sent=False) from None
        except (OSError, ValueError) as exc:
            message = f"cannot connect to {self.name}: {_reason(exc)}"
            raise RequestFailed(message, sent=False) from None
        except BaseException:
            for attempt in connections:
                self.leave(attempt)  # uvloop does not report the ones that it closed
            raise
        # it may have been closed again before our turn
        if not connection.usable:
            message = f"{self.name} closed the connection at once"
            raise RequestFailed(message, sent=False)
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
    reason: str = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
    if _UNEXPLAINED not in reason:
        return reason
    return ", ".join(
        dict.fromkeys(os.strerror(int(number)) for number in _NUMBER.findall(str(exc)))
    )


_PATIENCE = 1.0  # seconds for a clean close; the rest is left to the system
_REPEATABLE = frozenset({"GET", "DELETE"})  # a POST may be a call, which must not be made twice


class PreparedHead(NamedTuple):
    """The encoded head of similar requests, and their pool."""

    pool: ConnectionPool
    text: bytes
    repeatable: bool
    """Whether such a request may be sent again if it may not have arrived."""


class Sent(Protocol):
    """Records that the server may have received a request."""

    sent: bool


class HttpClient:
    """Sends requests to a server over a pool of connections.

    Args:
        name: The server's name for messages.
        tls: The TLS context; None: the system's trust store.
        keep_alive: Seconds a connection may be idle.
        resolve: Resolves host names, if not every address may be used.

    Raises:
        RequestFailed: From every method: the request or its response was lost.
        AnswerInvalid: The response is not valid HTTP.
    """

    def __init__(
        self,
        name: str,
        *,
        tls: ssl.SSLContext | None = None,
        keep_alive: float = KEEP_ALIVE,
        resolve: Resolve | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()  # looked up once: that is a system call
        self._name = name
        self._tls = tls
        self._keep_alive = keep_alive
        self._resolve = resolve
        self._pools: dict[URL, ConnectionPool] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections, also those in use."""
        with anyio.move_on_after(_PATIENCE, shield=True):
            for pool in self._pools.values():
                await pool.close()

    def head(self, method: str, url: URL, headers: Headers) -> PreparedHead:
        """Prepare the head of requests; the HEAD method is not supported."""
        pool = self._pool(url)
        if pool.route.proxied:
            headers = merge(headers, pool.route.headers)
        text = encode_head(method, url, headers, proxied=pool.route.proxied)
        return PreparedHead(pool, text, method in _REPEATABLE)

    async def send(
        self,
        head: PreparedHead,
        body: bytes | None,
        pending: Sent | None = None,
        *,
        in_order: bool = False,
    ) -> Response:
        """Send a request; returns the response once its head has arrived.

        Args:
            head: The prepared head.
            body: The body, if any.
            pending: Notified when the server may have received it.
            in_order: Whether it must not arrive before earlier requests.
        """
        # a server reads from a connection that it has before it accepts one that is new
        connection = None if in_order else head.pool.take()
        if connection is not None:
            try:
                return await self._ask(connection, head.text, body, pending)
            except RequestFailed:
                # a server may close an idle connection just when we use it, without reading the
                # request
                if not (head.repeatable and connection.silent):
                    raise
        connection = await head.pool.connect()
        return await self._ask(connection, head.text, body, pending)

    async def _ask(
        self, connection: ClientConnection, head: bytes, body: bytes | None, pending: Sent | None
    ) -> Response:
        answer: asyncio.Future[Response | WireFault] = self.loop.create_future()
        on_reply = partial(_settle, answer)
        if pending is not None:
            # before it is written: after that, it may have arrived
            pending.sent = True
        connection.send(head, body, on_reply)
        try:
            outcome = await answer
        except BaseException:
            connection.forget(on_reply)
            # answered and cancelled in the same turn: close the response, which has no other owner
            if answer.done() and not answer.cancelled():
                _drop(answer.result())
            raise
        if isinstance(outcome, WireFault):
            raise outcome
        return outcome

    def _pool(self, url: URL) -> ConnectionPool:
        try:
            origin = url.origin()
        except ValueError:
            raise RequestFailed("the URL is not a valid web address", sent=False) from None
        if (pool := self._pools.get(origin)) is None:
            try:
                route = OriginRoute(origin, proxy_for(origin), self._tls, self._resolve)
            except ValueError:
                raise RequestFailed(
                    "the proxy's URL is not a valid web address", sent=False
                ) from None
            pool = self._pools[origin] = ConnectionPool(
                self._name, route, self.loop, self._keep_alive
            )
        return pool


def http_client(url: URL) -> HttpClient:
    """A client for the server at `url`."""
    return HttpClient(show_url(url))


def _settle(answer: "asyncio.Future[Response | WireFault]", outcome: Response | WireFault) -> None:
    if answer.done():
        _drop(outcome)  # the caller was cancelled
    else:
        answer.set_result(outcome)


def _drop(outcome: Response | WireFault) -> None:
    if isinstance(outcome, Response):
        outcome.close()


_LINGER = 0.1  # seconds at least, twice that at most, since one timer serves all


class Lingering:
    """Closes streams that do not end in time; connections of those that do can be reused."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until: dict[Response, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._until)

    def add(self, response: Response) -> None:
        """Close a response soon, unless it ends before."""
        if response.ended:
            return
        self._until[response] = self._loop.time() + _LINGER
        self._listen(response)
        if self._timer is None:
            self._timer = self._loop.call_later(_LINGER, self._look)

    def close(self) -> None:
        """Close them all."""
        if self._timer is not None:
            self._timer.cancel()
        # a copy: one that is closed removes itself
        for response in tuple(self._until):
            response.close()

    def _listen(self, response: Response) -> None:
        def heard() -> None:
            if response.ended:
                self._until.pop(response, None)
            else:
                response.heed(heard)

        response.heed(heard)

    # One timer for all: setting and cancelling one for each costs more.
    def _look(self) -> None:
        now = self._loop.time()
        for response, until in tuple(self._until.items()):
            if until <= now:
                response.close()
        self._timer = self._loop.call_later(_LINGER, self._look) if self._until else None
