"""HTTP/1.1 requests, without limits of their own: deadlines and concurrency are the caller's."""

import asyncio
import ssl
from functools import partial
from typing import NamedTuple, Self

import anyio
from yarl import URL

from multitap.wire.address import proxy_for, shown
from multitap.wire.connection import Connection
from multitap.wire.flight import Flight
from multitap.wire.head import Headers, encoded, merged
from multitap.wire.pool import KEEP_ALIVE, Pool
from multitap.wire.response import Response
from multitap.wire.route import Route
from multitap.wire.wire import RequestFailed, WireFault

_PATIENCE = 1.0  # seconds for a tidy close
_REPEATABLE = frozenset({"GET", "DELETE"})


class Head(NamedTuple):
    """The beginning of requests that are alike, and where they go."""

    pool: Pool
    text: bytes
    repeatable: bool
    """Whether such a request may be sent again where it is not certain that it arrived."""


class HttpClient:
    """Keeps connections to a server, and asks it.

    Args:
        name: Who the server is, for the words of failures.
        tls: Who is trusted; whom the system trusts, if None.
        keep_alive: Seconds that a connection may be idle.

    Raises:
        RequestFailed: From every method: the request or its answer did not get through.
        AnswerInvalid: What came back is no HTTP.
    """

    def __init__(
        self, name: str, *, tls: ssl.SSLContext | None = None, keep_alive: float = KEEP_ALIVE
    ) -> None:
        self.loop = asyncio.get_running_loop()  # found once: to find it costs a system call
        self._name = name
        self._tls = tls
        self._keep_alive = keep_alive
        self._pools: dict[URL, Pool] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections, whatever they are at."""
        with anyio.move_on_after(_PATIENCE, shield=True):
            for pool in self._pools.values():
                await pool.close()

    def head(self, method: str, url: URL, headers: Headers) -> Head:
        """Prepare requests; those of HEAD have answers that are not understood."""
        pool = self._pool(url)
        if pool.route.proxied:
            headers = merged(headers, pool.route.headers)
        text = encoded(method, url, headers, proxied=pool.route.proxied)
        return Head(pool, text, method in _REPEATABLE)

    async def send(self, head: Head, body: bytes | None, flight: Flight | None = None) -> Response:
        """Send one; its answer is there when its head is.

        Args:
            head: How it begins.
            body: What is sent, if anything.
            flight: Told when the server may have seen it.
        """
        connection = head.pool.take()
        if connection is not None:
            try:
                return await self._ask(connection, head.text, body, flight)
            except RequestFailed:
                if not (head.repeatable and connection.silent):
                    raise
        connection = await head.pool.connect()
        return await self._ask(connection, head.text, body, flight)

    async def _ask(
        self, connection: Connection, head: bytes, body: bytes | None, flight: Flight | None
    ) -> Response:
        answer: asyncio.Future[Response | WireFault] = self.loop.create_future()
        heard = partial(_settle, answer)
        if flight is not None:
            flight.sent = True
        connection.send(head, body, heard)
        try:
            outcome = await answer
        except BaseException:
            connection.forget(heard)
            if answer.done() and not answer.cancelled():
                _drop(answer.result())
            raise
        if isinstance(outcome, WireFault):
            raise outcome
        return outcome

    def _pool(self, url: URL) -> Pool:
        try:
            origin = url.origin()
        except ValueError:
            raise RequestFailed("the url is no valid web address", sent=False) from None
        if (pool := self._pools.get(origin)) is None:
            try:
                route = Route(origin, proxy_for(origin), self._tls)
            except ValueError:
                raise RequestFailed("the proxy has no valid web address", sent=False) from None
            pool = self._pools[origin] = Pool(self._name, route, self.loop, self._keep_alive)
        return pool


def http_client(url: URL) -> HttpClient:
    """A client for the server at `url`."""
    return HttpClient(shown(url))


def _settle(answer: "asyncio.Future[Response | WireFault]", outcome: Response | WireFault) -> None:
    if answer.done():
        _drop(outcome)  # nobody waits any more
    else:
        answer.set_result(outcome)


def _drop(outcome: Response | WireFault) -> None:
    if isinstance(outcome, Response):
        outcome.close()
