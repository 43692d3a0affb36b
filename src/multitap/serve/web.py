"""HTTP connections: requests in, responses out, and an end to those that do not behave.

A server of our own on the parser that uvicorn uses: with an ASGI cycle around every request the
gateway would spend more on HTTP than on everything else together.
"""

import asyncio
import contextlib
import heapq
import logging
import resource
import socket
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import anyio
import httptools
from msgspec import Raw

from multitap.errors import ConfigError, ungrouped
from multitap.tasks import CancelHandle, Tasks

logger = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
_WHOLE = 64 * 1024
"""Bytes up to which a response is joined: copying costs less than writing piece by piece."""
_STATUS = {
    int(status): b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus
}
_EVENTS = (
    b"content-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\n"
    b"x-accel-buffering: no\r\n"
)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_AT_ONCE = 100
"""The share of all connections, one in so many, that is closed at once to make room."""


@dataclass(frozen=True, slots=True)
class WebLimits:
    """What one connection may cost."""

    connections: int = 20_000
    head: int = 64 * 1024
    """Bytes of a request's head."""
    fields: int = 100
    """Headers of a request."""
    body: int = 32 * 1024 * 1024
    """Bytes of a request's body."""
    queued: int = 16
    """Requests that may wait for the one before them."""
    request_timeout: float = 30.0
    """Seconds from the first byte of a request to its last."""
    keep_alive: float = 120.0
    """Seconds a connection may be silent between requests."""
    write_timeout: float = 60.0
    """Seconds a client may leave unread what it is sent."""
    linger: float = 5.0
    """Seconds a client has to read the last words on a connection."""
    ping: float = 15.0
    """Seconds of silence after which a client is shown that its request is still worked on."""
    drain: float = 2.0
    """Seconds for requests under way when the server ends."""


class Visit:
    """One HTTP request, and the way to answer it."""

    __slots__ = (
        "_chunked", "_connection", "body", "headers", "keep_alive", "method", "on_leave",
        "on_silence", "pairs", "responded", "url",
    )  # fmt: skip

    def __init__(
        self,
        connection: "_Connection",
        method: bytes,
        url: bytes,
        pairs: Headers,
        headers: dict[bytes, bytes],
    ) -> None:
        self._connection = connection
        self._chunked = False
        self.method = method
        self.url = url
        self.pairs = pairs
        self.headers = headers
        self.body = b""
        self.keep_alive = True
        self.responded = False
        self.on_silence: Callable[[], None] | None = None
        """Called once when it has not been answered for a while."""
        self.on_leave: Callable[[], None] | None = None
        """Called when its client is gone; set where it is answered later, and then is `done`."""

    @property
    def path(self) -> bytes:
        return self.url.partition(b"?")[0].rstrip(b"/") or b"/"

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(self.url.partition(b"?")[2].decode("latin-1"))

    def respond(
        self,
        status: int,
        parts: Iterable[bytes | Raw] = (),
        *,
        kind: bytes = JSON,
        extra: Headers | None = None,
    ) -> None:
        """Answer with a whole body."""
        pieces = [*parts]
        size = sum(map(len, pieces))
        head = b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b%b" % (
            _STATUS[status],
            kind,
            size,
            b"".join(_lines(extra)) if extra else b"",
            b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n",
        )
        self._connection.write(head, pieces, joined=size <= _WHOLE)
        self.responded = True

    def say(self, status: int, words: str = "", *, extra: Headers | None = None) -> None:
        """Answer in plain words."""
        words = "" if self.method == b"HEAD" else words
        self.respond(status, (words.encode(),), kind=b"text/plain; charset=utf-8", extra=extra)

    def stream(self, extra: Headers | None = None) -> None:
        """Begin a response that has no length yet."""
        self._chunked = self._connection.speaks_chunks
        self.keep_alive &= self._chunked
        head = (
            _STATUS[200],
            _EVENTS,
            *_lines(extra),
            b"transfer-encoding: chunked\r\n" if self._chunked else b"",
            b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n",
        )
        self._connection.write(b"".join(head))
        self.responded = True

    async def write(self, data: bytes) -> None:
        """Go on with it, no faster than the client reads."""
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._connection.write(data)
        await self._connection.drain()

    def end(self) -> None:
        """End it."""
        if self._chunked:
            self._connection.write(b"0\r\n\r\n")

    def done(self) -> None:
        """It is answered, later than it was handled."""
        self.on_leave = None
        self._connection.finished(self)


def _lines(headers: Headers | None) -> list[bytes]:
    return [b"%b: %b\r\n" % pair for pair in headers] if headers else []


ToDo = Coroutine[Any, Any, None] | None
"""What is left to do for a request, if anything."""
Handle = Callable[[Visit], ToDo]
"""Answers a request, or says what there is to do for it."""


def _collecting(pairs: Headers) -> Callable[[bytes, bytes], None]:
    """Takes headers one by one; called for each of every request, and so as short as can be."""
    add = pairs.append

    def on_header(name: bytes, value: bytes) -> None:
        add((name.lower(), value.strip()))

    return on_header


class _Connection(asyncio.Protocol):
    """One client's connection: its requests are answered one after the other."""

    def __init__(self, site: "_Site") -> None:
        self._site = site
        self._limits = site.limits
        self._loop = site.loop
        self._arriving: Headers = []
        self.on_header = _collecting(self._arriving)
        self._parser = httptools.HttpRequestParser(self)
        self._scope: CancelHandle | None = None
        self._queue: deque[Visit] = deque()
        self._advancing = False
        self._unread_answer: Visit | None = None
        self._readable: asyncio.Event | None = None
        self._transport: asyncio.Transport | None = None
        self._begin()
        self.since = self._loop.time()
        self.stuck_since: float | None = None
        self.current: Visit | None = None
        self.reading = False
        self.answered = 0
        self.speaks_chunks = True
        self._unread = 0
        self._refused = False

    def _begin(self) -> None:
        self._url = b""
        self._arriving.clear()  # what came after the body changes nothing any more
        self._pairs: Headers = []
        self._headers: dict[bytes, bytes] = {}
        self._has_head = False
        self._body: bytes | bytearray = b""
        self._size = 0
        self._fed = 0

    @property
    def idle(self) -> bool:
        return self.current is None and not self._queue

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue] - uvloop's is no subclass
        if not self._site.enter(self):
            self._refuse(503, "too many connections")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._site.leave(self)
        if self._scope is not None:
            self._scope.cancel()
        if self.current is not None and (leave := self.current.on_leave) is not None:
            leave()
        if self._readable is not None:
            self._readable.set()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if not self.reading and self.current is None:
            self.since = self._loop.time()
        self.reading = True
        self._fed += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            self._decline(data[exc.args[0] :])
        except httptools.HttpParserError:
            if not self._refused:
                self._refuse(400, "this is no HTTP request")
        else:
            self._weigh_unseen()
        if not self._refused:
            self._advance()

    def _decline(self, rest: bytes) -> None:
        """Go on in this protocol, whatever other one the client would like better."""
        self._parser = httptools.HttpRequestParser(self)
        if rest:
            self._refuse(400, "no other protocol is spoken here")

    def _weigh_unseen(self) -> None:
        """Notice what the parser keeps to itself: half a header, the frames around a body."""
        if not self._has_head and self._fed > self._limits.head:
            self._refuse(431, "the head of the request is too long")
        elif self._fed > self._limits.head + 2 * self._limits.body:
            self._refuse(413, "the request is too long")

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_headers_complete(self) -> None:
        self._has_head = True
        limits = self._limits
        pairs = self._pairs = self._arriving.copy()
        headers = self._headers = dict(pairs)
        if len(pairs) > limits.fields or (
            self._fed > limits.head  # perhaps with a body
            and len(self._url) + sum(len(name) + len(value) for name, value in pairs) > limits.head
        ):
            self._refuse(431, "the head of the request is too long")
            raise httptools.HttpParserError
        if int(headers.get(b"content-length", b"0")) > limits.body:
            self._too_long()
        if headers.get(b"expect", b"").lower() == b"100-continue" and self._transport:
            self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        if not self._body:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:
            self._body = bytearray(self._body) + body
        self._size += len(body)
        if self._size > self._limits.body:
            self._too_long()

    def _too_long(self) -> None:
        self._refuse(413, f"a request has at most {self._limits.body} bytes")
        raise httptools.HttpParserError

    def on_message_complete(self) -> None:
        visit = Visit(self, self._parser.get_method(), self._url, self._pairs, self._headers)
        visit.body = bytes(self._body)
        visit.keep_alive = self._parser.should_keep_alive()
        self.speaks_chunks = self._parser.get_http_version() == "1.1"
        self._begin()
        self.reading = False
        self._queue.append(visit)
        if len(self._queue) > self._limits.queued and self._transport is not None:
            self._transport.pause_reading()

    def _advance(self) -> None:
        """Answer what is asked, one after the other; who does not read is not answered further."""
        if self._advancing:
            return
        self._advancing = True
        while self._queue and self.current is None and self._transport is not None:
            visit = self.current = self._queue.popleft()
            if len(self._queue) == self._limits.queued:
                self._transport.resume_reading()
            self.since = self._loop.time()
            try:
                to_do = self._site.handle(visit)
            except Exception as exc:  # noqa: BLE001 - boundary: one request is its own problem
                self._failed(visit, exc)
                to_do = None
            if to_do is not None:
                self._scope = CancelHandle()
                self._site.tasks.start_soon(self._work, visit, to_do, self._scope)
            elif visit.on_leave is None:
                self.finished(visit)
        self._advancing = False

    async def _work(
        self, visit: Visit, to_do: Coroutine[Any, Any, None], scope: CancelHandle
    ) -> None:
        with scope:
            try:
                await to_do
            except Exception as exc:  # noqa: BLE001 - boundary: one request is its own problem
                self._failed(visit, exc)
        self._scope = None
        self.finished(visit)

    def _failed(self, visit: Visit, exc: Exception) -> None:
        logger.error("a request failed", exc_info=exc)
        if visit.responded:
            visit.keep_alive = False
        else:
            visit.say(500, "Internal Server Error")

    def finished(self, visit: Visit) -> None:
        """A request is answered: the next one may be."""
        if self._transport is None or self.current is not visit:
            return
        if self._readable is not None:
            self._unread_answer = visit
            return
        self.current = None
        self.answered += 1
        self.since = self._loop.time()
        if not visit.keep_alive or self._site.closing:
            self._queue.clear()
            self.close()
        elif self._queue:
            self._advance()

    def write(self, head: bytes, parts: Iterable[bytes | Raw] = (), *, joined: bool = True) -> None:
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

    def pause_writing(self) -> None:
        self._readable = asyncio.Event()
        self.stuck_since = self._loop.time()
        self._unread = 1 << 62

    def resume_writing(self) -> None:
        if self._readable is not None:
            self._readable.set()
        self._readable = self.stuck_since = None
        if (visit := self._unread_answer) is not None:
            self._unread_answer = None
            self.finished(visit)

    def look(self, now: float) -> None:
        """Close it if its client is too slow or silent; called now and then."""
        limits, quiet = self._limits, now - self.since
        if self._transport is None:
            return
        if self.stuck_since is not None:
            self._look_at_unread(self._transport.get_write_buffer_size(), now)
        elif self._refused or self._transport.is_closing():
            if quiet > limits.linger:
                self.abort()
        elif self.current is not None:
            if quiet > limits.ping and (silent := self.current.on_silence) is not None:
                self.current.on_silence = None
                silent()
        elif self.reading and quiet > limits.request_timeout:
            self._refuse(408, "the request took too long")
        elif not self.reading and quiet > limits.keep_alive:
            self.close()

    def _look_at_unread(self, size: int, now: float) -> None:
        if size < self._unread or self.stuck_since is None:
            self.stuck_since, self._unread = now, size
        elif now - self.stuck_since > self._limits.write_timeout:
            self.abort()

    def close(self) -> None:
        """Take no further request; the current one is still answered."""
        if self._transport is not None and self.current is None:
            self.since = self._loop.time()
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, status: int, words: str) -> None:
        self._refused = True
        if self._transport is None:
            return
        if not self.idle:
            self._transport.close()
            return
        self.since = self._loop.time()
        visit = Visit(self, b"", b"", [], {})
        visit.keep_alive = False
        visit.say(status, words)
        self._transport.write_eof()  # closed while it still sends, it might never read the words


@dataclass(slots=True)
class _Site:
    """All connections of one server."""

    handle: Handle
    tasks: Tasks
    limits: WebLimits
    loop: asyncio.AbstractEventLoop
    connections: set[_Connection] = field(default_factory=set[_Connection])
    closing: bool = False
    most: int = field(init=False)

    def __post_init__(self) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = min(self.limits.connections, files // 2)  # servers need some too

    def enter(self, connection: _Connection) -> bool:
        if self.closing or (len(self.connections) >= self.most and not self._make_room()):
            return False
        self.connections.add(connection)
        return True

    def _make_room(self) -> bool:
        """End connections that nobody waits on, above all those that never asked anything."""
        idle = [one for one in self.connections if one.idle]
        count = 1 + self.most // _AT_ONCE  # looking through all for each would be slow
        for one in heapq.nsmallest(count, idle, key=lambda one: (one.answered, one.since)):
            self.connections.discard(one)
            one.abort()
        return bool(idle)

    def leave(self, connection: _Connection) -> None:
        self.connections.discard(connection)

    async def watch(self) -> None:
        pause = min(1.0, self.limits.ping / 4, self.limits.request_timeout / 4)
        while True:
            await anyio.sleep(pause)
            now = self.loop.time()
            for connection in tuple(self.connections):
                connection.look(now)

    async def close(self) -> None:
        """Let requests under way be answered, for a moment."""
        self.closing = True
        for connection in tuple(self.connections):
            connection.close()
        with anyio.move_on_after(self.limits.drain):
            while self.connections:
                await anyio.sleep(0.01)
        for connection in tuple(self.connections):
            connection.abort()


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
async def open_web(
    handle: Handle, listener: socket.socket, limits: WebLimits = WebLimits()
) -> AsyncGenerator[str]:
    """Within the block, requests are answered; its value is the address, without a path."""
    host, port = listener.getsockname()[:2]
    loop = asyncio.get_running_loop()
    with ungrouped():
        async with Tasks() as tasks:
            site = _Site(handle, tasks, limits, loop)
            server = await loop.create_server(lambda: _Connection(site), sock=listener)
            tasks.start_soon(site.watch)
            try:
                yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
            finally:
                server.close()
                with anyio.CancelScope(shield=True), contextlib.suppress(OSError):
                    await site.close()
