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

_PATIENCE = 1.0  # seconds for a tidy close; what is not closed then is left to the system
_REPEATABLE = frozenset({"GET", "DELETE"})  # a POST may be a call, which must not be made twice


class PreparedHead(NamedTuple):
    """The beginning of requests that are alike, and where they go."""

    pool: ConnectionPool
    text: bytes
    repeatable: bool
    """Whether such a request may be sent again where it is not certain that it arrived."""


class Sent(Protocol):
    """Called when the server may have seen a request."""

    sent: bool


class HttpClient:
    """Keeps connections to a server, and asks it.

    Args:
        name: Who the server is, for the words of failures.
        tls: Who is trusted; whom the system trusts, if None.
        keep_alive: Seconds that a connection may be idle.
        resolve: Finds addresses, where not every one may be used.

    Raises:
        RequestFailed: From every method: the request or its answer did not get through.
        AnswerInvalid: What came back is not HTTP.
    """

    def __init__(
        self,
        name: str,
        *,
        tls: ssl.SSLContext | None = None,
        keep_alive: float = KEEP_ALIVE,
        resolve: Resolve | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()  # found once: to find it costs a system call
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
        """Close all connections, whatever they are at."""
        with anyio.move_on_after(_PATIENCE, shield=True):
            for pool in self._pools.values():
                await pool.close()

    def head(self, method: str, url: URL, headers: Headers) -> PreparedHead:
        """Prepare requests; those of HEAD have answers that are not understood."""
        pool = self._pool(url)
        if pool.route.proxied:
            headers = merge(headers, pool.route.headers)
        text = encode_head(method, url, headers, proxied=pool.route.proxied)
        return PreparedHead(pool, text, method in _REPEATABLE)

    async def send(
        self, head: PreparedHead, body: bytes | None, pending: Sent | None = None
    ) -> Response:
        """Send one; its answer is there when its head is.

        Args:
            head: How it begins.
            body: What is sent, if anything.
            pending: Called when the server may have seen it.
        """
        connection = head.pool.take()
        if connection is not None:
            try:
                return await self._ask(connection, head.text, body, pending)
            except RequestFailed:
                # a server may close an idle connection at the moment in which we use it, and see
                # nothing
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
            # before it is written: once it is, nobody can say that it did not arrive
            pending.sent = True
        connection.send(head, body, heard)
        try:
            outcome = await answer
        except BaseException:
            connection.forget(heard)
            # answered and given up in one turn: nobody else lets go of the response
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
        _drop(outcome)  # nobody waits
    else:
        answer.set_result(outcome)


def _drop(outcome: Response | WireFault) -> None:
    if isinstance(outcome, Response):
        outcome.close()
