"""An HTTP/1.1 client; deadlines and concurrency are up to the caller."""

import asyncio
import ssl
from functools import partial
from typing import NamedTuple, Protocol, Self

import anyio
from yarl import URL

from multitap.faults import RequestFailed, WireFault
from multitap.http.client.client_connection import ClientConnection
from multitap.http.client.connection_pool import KEEP_ALIVE, ConnectionPool
from multitap.http.client.headers import Headers, encode_head, merge
from multitap.http.client.origin_route import OriginRoute, Resolve
from multitap.http.client.origins import proxy_for, show_url
from multitap.http.client.response import Response

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
        heard = partial(_settle, answer)
        if pending is not None:
            # before it is written: after that, it may have arrived
            pending.sent = True
        connection.send(head, body, heard)
        try:
            outcome = await answer
        except BaseException:
            connection.forget(heard)
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
