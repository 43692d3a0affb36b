"""Answers the requests of one connection in order."""

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable
from time import perf_counter
from typing import Any, Protocol

from msgspec import Raw

from multitap.http.server.connections import Connections
from multitap.http.server.http_request import HttpRequest
from multitap.pace import MESSAGES
from multitap.shares import GENEROSITY

BUSY = 503
RETRY = ((b"retry-after", b"1"),)


class RequestSource(Protocol):
    """The reader of requests."""

    expects: bool
    """Whether the client waits for `100 Continue`."""

    def stop(self) -> None:
        """Read no further requests."""
        ...


class AnsweredConnection(Protocol):
    """The connection whose requests are answered."""

    since: float
    answered: int
    weight: int
    is_paused: bool

    @property
    def reader(self) -> RequestSource: ...

    def settle(self, *, busy: bool) -> None:
        """Queue remaining work for a later turn, or wait for more input."""
        ...

    def close(self) -> None:
        """Accept no further request; the current one is still answered."""
        ...


class Responder:
    """Owns the waiting requests, the current one, and the unread output.

    It refers to its connection until that is lost; requests refer only to this.
    """

    __slots__ = (
        "__weakref__", "_connection", "_connections", "_limits", "_loop", "_readable",
        "_stuck_since", "_transport", "_under_way", "_unread", "_unread_answer", "advancing",
        "current", "is_dismissed", "queue", "queued",
    )  # fmt: skip

    def __init__(self, connections: Connections, connection: AnsweredConnection) -> None:
        self._connections = connections
        self._connection: AnsweredConnection | None = connection
        self._limits = connections.limits
        self._loop = connections.loop
        self._under_way = connections.under_way
        self._transport: asyncio.Transport | None = None

        self.queue: deque[HttpRequest] = deque()
        self.queued = 0
        """Bytes of the waiting requests' bodies."""
        self.current: HttpRequest | None = None
        self.advancing = False
        """Whether `advance` is running, which then answers the next request as well."""
        self.is_dismissed = False
        """Whether the last response is sent, and the client should close."""

        self._unread_answer: HttpRequest | None = None
        self._readable: asyncio.Event | None = None
        self._stuck_since: float | None = None
        self._unread = 0

    @property
    def is_full(self) -> bool:
        """Whether no more requests may wait."""
        return len(self.queue) >= self._limits.queued or self.queued > self._limits.head

    @property
    def is_stuck(self) -> bool:
        """Whether the client does not read its responses."""
        return self._stuck_since is not None

    def open(self, transport: asyncio.Transport) -> None:
        """Answer over `transport` from now on."""
        self._transport = transport

    def lose(self) -> None:
        """Cancel all requests: the connection is lost."""
        # first: the calls below may try to write
        self._connection = self._transport = None
        http_request, self.current = self.current, None
        self._unread_answer = None
        self.queue.clear()
        if http_request is not None:
            if http_request.is_counted:
                self._connections.under_way.give(http_request.head.holder)
            http_request.lose()
        if self._readable is not None:
            self._readable.set()

    def add(self, http_request: HttpRequest) -> None:
        """Queue a request."""
        self.queue.append(http_request)
        self.queued += len(http_request.body)

    def advance(self, until: float) -> None:
        """Answer the waiting requests in order, until the time is up.

        A client that does not read gets no further responses.
        """
        connection, transport = self._connection, self._transport
        if self.advancing or connection is None or transport is None:
            return
        self.advancing = True
        most = MESSAGES
        while self.queue and self.current is None and not transport.is_closing():
            most -= 1
            http_request = self.queue.popleft()
            self.queued -= len(http_request.body)
            connection.since = self._loop.time()
            if http_request.refusal is not None:
                http_request.keep_alive = False
                denied = http_request.refusal
                http_request.say(
                    denied.status, denied.words, kind=denied.kind, extra=[*denied.extra]
                )
                self._dismiss(connection, transport)
                break
            self.answer(http_request)
            if self.queue and (not most or perf_counter() >= until):
                break
        self.advancing = False

    def answer(self, http_request: HttpRequest) -> None:
        """Begin to answer a request; there must be no current one."""
        head, under_way = http_request.head, self._under_way
        holder, to_do = head.holder, None
        self.current = http_request
        # inlined from `Shares.take`, to save a frame
        free, held = under_way.most - under_way.total, under_way.held.get(holder, 0) + 1
        if free and held <= GENEROSITY * free:
            under_way.total += 1
            under_way.held[holder] = held
            http_request.is_counted = True
            try:
                to_do = (head.handler or self._connections.app.handle)(http_request)
            except Exception as exc:  # noqa: BLE001 - boundary: a failed request must not end the connection
                http_request.give_up(exc)
        else:
            http_request.say(BUSY, under_way.refusal(holder), extra=[*RETRY])
        if to_do is not None:
            http_request.run(self._work(http_request, to_do))
        elif not http_request.is_pending:
            self.on_finished(http_request)

    async def _work(self, http_request: HttpRequest, to_do: Coroutine[Any, Any, None]) -> None:
        try:
            await to_do
        except Exception as exc:  # noqa: BLE001 - boundary: a failed request must not end the connection
            http_request.give_up(exc)
        finally:
            self.on_finished(http_request)

    def on_finished(self, http_request: HttpRequest, response: bytes = b"") -> None:
        """Finish a request, with `response` if it is not yet sent; then answer the next one."""
        http_request.is_pending = False
        connection, transport = self._connection, self._transport
        # meanwhile the connection may be lost, or the request cancelled
        if connection is None or transport is None or self.current is not http_request:
            return
        if response:
            http_request.responded = True
            transport.write(response)
        # it stays current until it is read: a slow client gets no further responses
        if self._readable is not None:
            self._unread_answer = http_request
            return
        self.current = None
        if http_request.is_counted:
            # inlined from `Shares.give`
            under_way, holder = self._under_way, http_request.head.holder
            under_way.total -= 1
            if left := under_way.held[holder] - 1:
                under_way.held[holder] = left
            else:
                del under_way.held[holder]
        connection.answered += 1
        connection.since = self._loop.time()
        if self._connections.closing:
            connection.close()
        elif not http_request.keep_alive:
            self._dismiss(connection, transport)
        elif self.advancing:
            return  # `advance` continues by itself
        elif self.queue or connection.is_paused or connection.reader.expects or connection.weight:
            connection.settle(busy=False)

    def _dismiss(self, connection: AnsweredConnection, transport: asyncio.Transport) -> None:
        """Send nothing more, and wait for the client to close.

        If we closed while it still sends, it might never read the response.
        """
        self.queue.clear()
        self.queued = 0
        connection.reader.stop()
        self.is_dismissed = True
        connection.since = self._loop.time()
        if not transport.is_closing():
            transport.write_eof()
        if not self.advancing:
            connection.settle(busy=False)

    def write(
        self, head: bytes, parts: Iterable[Raw | bytes | memoryview] = (), *, joined: bool = True
    ) -> None:
        transport = self._transport
        if transport is None:
            return
        if joined:
            transport.write(b"".join((head, *parts)))
        else:
            transport.writelines((head, *(memoryview(part) for part in parts)))

    async def drain(self) -> None:
        if self._readable is not None:
            await self._readable.wait()

    def pause(self) -> None:
        """Pause: the client reads too slowly."""
        self._readable = asyncio.Event()
        self._stuck_since = self._loop.time()
        self._unread = 1 << 62

    def resume(self) -> None:
        """Continue: the client has read enough."""
        if self._readable is not None:
            self._readable.set()
        self._readable = self._stuck_since = None
        if (http_request := self._unread_answer) is not None:
            self._unread_answer = None
            self.on_finished(http_request)

    def look_at_unread(self, now: float) -> None:
        """Close the connection if the client has read nothing for too long."""
        if self._transport is None:
            return
        size = self._transport.get_write_buffer_size()
        if size < self._unread or self._stuck_since is None:
            self._stuck_since, self._unread = now, size
        elif now - self._stuck_since > self._limits.write_timeout:
            self._transport.abort()
