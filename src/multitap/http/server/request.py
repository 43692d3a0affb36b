"""One HTTP request, and how to answer it: at once, or by server-sent events."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs

import msgspec
from msgspec import Raw

from multitap.http.server.peer import Peer
from multitap.tasks import Work

if TYPE_CHECKING:
    from multitap.http.server.connection import Responder

Headers = list[tuple[bytes, bytes]]

BACKLOG = 1024
"""Messages that may wait for a slow client."""
ROOM = 64 * 1024 * 1024
"""Bytes that may wait for a slow client; a single message may be longer."""
PING = 15.0
"""Seconds of silence after which a keep-alive comment is sent."""


def event(message: bytes, event_id: bytes = b"") -> bytes:
    """One server-sent event; line breaks in JSON occur only between tokens, and are removed."""
    if b"\n" in message or b"\r" in message:
        message = message.replace(b"\r", b" ").replace(b"\n", b" ")
    if event_id:
        return b"event: message\r\nid: %b\r\ndata: %b\r\n\r\n" % (event_id, message)
    return b"event: message\r\ndata: %b\r\n\r\n" % message


class MessageStream(Protocol):
    """Messages that are sent to one client as events; an `Outlet`."""

    def send(self, message: bytes) -> bool: ...

    def end(self, last: bytes | None = None) -> None: ...

    async def pour(self, response: "HttpRequest", extra: Headers | None) -> None: ...


class StreamKeeper(Protocol):
    """Keeps the streams of requests that outlive their connections."""

    def begin(self, give_up: Callable[[], None], opening: bytes) -> MessageStream:
        """Begin the stream on which a request is answered.

        Args:
            give_up: Cancels the request if its client does not reconnect.
            opening: The body of the request.
        """
        ...

    def lost(self, stream: MessageStream) -> bool:
        """Note that a connection is lost; returns whether the stream can be resumed."""
        ...


class EventWriter:
    """Queues events for one client; an `Outlet`."""

    def __init__(self, backlog: int = BACKLOG) -> None:
        self._events: deque[bytes] = deque()
        self._size = 0
        self._backlog = backlog
        self._stirred = asyncio.Event()
        self.ended = False

    def send(self, message: bytes) -> bool:
        return self.push(event(message))

    def push(self, encoded: bytes) -> bool:
        """Queue an encoded event; False if there is no room."""
        # a client that does not read must not fill our memory; it lists again when it reconnects
        if self.ended or len(self._events) >= self._backlog or self._size > ROOM:
            return False
        self._events.append(encoded)
        self._size += len(encoded)
        self._stirred.set()
        return True

    def end(self, last: bytes | None = None) -> None:
        """End with a last message; waiting events are still sent."""
        self.close(b"" if last is None else event(last))

    def close(self, encoded: bytes = b"") -> None:
        """End with a last encoded event."""
        # not counted: only notifications may be dropped, never the answer
        if encoded:
            self._events.append(encoded)
        self.ended = True
        self._stirred.set()

    async def pour(
        self, response: "HttpRequest", extra: Headers | None, first: bytes = b": hi\r\n\r\n"
    ) -> None:
        """Write the events as the body of a response, until the end."""
        response.stream(extra)
        await response.write(first)
        while True:
            while self._events:
                # in one write: each one costs a system call and a chunk
                batch = b"".join(self._events)
                self._events.clear()
                self._size = 0
                await response.write(batch)
            if self.ended:
                break
            self._stirred.clear()
            try:
                # proxies close silent connections, many after a minute or less
                async with asyncio.timeout(PING):
                    await self._stirred.wait()
            except TimeoutError:
                await response.write(b": ping\r\n\r\n")
        response.end()


logger = logging.getLogger(__name__)

JSON, TEXT = b"application/json", b"text/plain; charset=utf-8"
WHOLE = 64 * 1024
"""Bytes up to which a response is joined: a copy costs less than several writes."""
STATUS = {
    int(status): b"HTTP/1.1 %d %b\r\nx-content-type-options: nosniff\r\n"
    % (status, status.phrase.encode())
    for status in HTTPStatus
}
"""The beginning of a response, by status."""
# or nginx would buffer events
_EVENTS = (
    b"content-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\n"
    b"x-accel-buffering: no\r\n"
)

ToDo = Coroutine[Any, Any, None] | None
"""The work that remains for a request, if any."""


class Rejected(msgspec.Struct, frozen=True):
    """The response to a request that is not admitted."""

    status: int
    text: str
    extra: tuple[tuple[bytes, bytes], ...] = ()
    """Further response headers."""
    kind: bytes = TEXT
    """The content type."""


class RequestHead:
    """The head of a request, and what is derived from it alone.

    A connection remembers those of its last requests, because clients repeat all headers but the
    length.
    """

    __slots__ = (
        "address", "admitted", "cors", "edition", "fits_any_length", "handler", "headers", "holder",
        "keeps_body", "length", "memory", "method", "pairs", "peer", "speaks_chunks",
        "takes_stream", "url",
    )  # fmt: skip

    def __init__(self, method: bytes, url: bytes, pairs: Headers, *, peer: Peer) -> None:
        self.method = method
        self.url = url
        self.pairs = pairs
        self.headers = dict(pairs)
        """The same by name; of repeated ones, the last."""
        self.peer = peer
        self.address = peer.address
        """The client's address, of an IPv6 one the network; see `address_of`."""
        self.holder = peer.address
        """The holder whose share it counts against."""
        self.edition: object | None = None
        """The `Connections.edition` for which it is remembered; None if it is not."""
        self.length = 0
        """The `Content-Length`, if any; that in `headers` may be of an earlier request."""
        self.fits_any_length = False
        """Whether a request of another length would be admitted alike."""
        self.speaks_chunks = True
        """Whether the client can read a chunked response."""
        self.admitted: Any = None
        """What the app knows of its sender, once it is admitted."""
        self.handler: Callable[[HttpRequest], ToDo] | None = None
        """Answers such requests; None: 404 or 405."""
        self.keeps_body = False
        """Whether the body is needed; if not, it is dropped as it arrives."""
        self.takes_stream = False
        """Whether the client accepts an event stream."""
        self.cors = b""
        """Lines of the response that let a web page read it."""
        self.memory: object | None = None
        """State that its handler keeps between equal heads."""

    @property
    def path(self) -> bytes:
        return self.url.partition(b"?")[0].rstrip(b"/") or b"/"

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(self.url.partition(b"?")[2].decode("latin-1"))


class HttpRequest(Work, eq=False, kw_only=True):
    """One HTTP request, the work on it, and methods to answer it.

    The answer is JSON or an event stream. It is an `Outlet` for messages before the answer.
    """

    writer: "Responder"
    """Writes the response."""
    head: RequestHead
    body: bytes
    arrived: float
    """When its last bytes were read, by `perf_counter`."""
    refusal: Rejected | None = None
    """Its rejection, if any; nothing after it is read."""
    is_counted: bool = False
    """Whether it counts against the share of its holder now."""
    may_stream: bool = False
    """Whether the answer may be an event stream, which begins if it takes long."""
    is_gone: bool = False
    """Whether its client has disconnected."""
    keep_alive: bool = True
    responded: bool = False
    extra: Headers | None = None
    """Further headers of the response."""
    stream_begun: MessageStream | None = None
    """The event stream, once a message has preceded the answer."""
    keeper: StreamKeeper | None = None
    """Keeps the stream if the connection is lost; None: the request ends with it."""
    _chunked: bool = False
    _poured: asyncio.Event | None = None

    def send(self, message: bytes) -> bool:
        """Send a message before the answer; False if that is not possible."""
        if not self.head.takes_stream:
            return False
        if self.stream_begun is None:
            self.fall_silent()
        return self.stream_begun is not None and self.stream_begun.send(message)

    def answer(
        self, parts: Iterable[Raw | bytes | memoryview], status: int = 200
    ) -> asyncio.Event | None:
        """Answer the message; on an event stream, returns an event that is set once all is sent."""
        if self.stream_begun is None or self._poured is None:
            self.respond(status, parts, extra=self.extra)
            return None
        self.stream_begun.end(b"".join(parts))
        return self._poured

    def abandon(self) -> None:
        """Cancel the request: its client has disconnected."""
        self.is_gone = True
        if self.stream_begun is not None:
            self.stream_begun.end()

    def lose(self) -> None:
        """Cancel the request with its lost connection, unless its stream can be resumed."""
        stream, keeper = self.stream_begun, self.keeper
        if stream is None or keeper is None or not keeper.lost(stream):
            self.abandon()
            self.cancel()

    def on_end(self, error: Exception | None) -> None:
        """Finish the request: its handler has ended, or failed."""
        if error is not None:
            self.give_up(error)
        self.writer.on_finished(self)

    def give_up(self, error: Exception) -> None:
        """End without an answer: the handler failed."""
        logger.error("a request failed", exc_info=error)
        # part of the response is sent: closing the connection shows that it is incomplete
        if self.responded:
            self.keep_alive = False
        else:
            self.say(500, "Internal Server Error")
        self.abandon()

    def fall_silent(self) -> None:
        """Begin an event stream: the answer takes a while, or a message precedes it."""
        if self.head.takes_stream and self.stream_begun is None and not self.responded:
            keeper = self.keeper
            self.stream_begun = (
                EventWriter() if keeper is None else keeper.begin(self.cancel, self.body)
            )
            self._poured = asyncio.Event()
            # in a task: a callback or a timer may begin it
            self.writer.tasks.start_soon(self._pour, self.stream_begun, self._poured)

    async def _pour(self, stream: MessageStream, poured: asyncio.Event) -> None:
        try:
            await stream.pour(self, self.extra)
        finally:
            poured.set()

    def respond(
        self,
        status: int,
        parts: Iterable[Raw | bytes | memoryview] = (),
        *,
        kind: bytes = JSON,
        extra: Headers | None = None,
    ) -> None:
        """Answer with a complete body."""
        pieces = parts if isinstance(parts, tuple) else (*parts,)
        size = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
        head = b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b%b%b" % (
            STATUS[status],
            kind,
            size,
            self.head.cors,
            b"".join(_lines(extra)) if extra else b"",
            b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n",
        )
        self.writer.write(head, pieces, joined=size <= WHOLE)
        self.responded = True

    def say(
        self, status: int, text: str = "", *, kind: bytes = TEXT, extra: Headers | None = None
    ) -> None:
        """Answer with a text."""
        text = "" if self.head.method == b"HEAD" else text
        self.respond(status, (text.encode(),), kind=kind, extra=extra)

    def reject(self, rejection: Rejected) -> None:
        self.say(rejection.status, rejection.text, kind=rejection.kind, extra=[*rejection.extra])

    def stream(self, extra: Headers | None = None) -> None:
        """Begin a response of unknown length."""
        self._chunked = self.head.speaks_chunks
        # HTTP/1.0 has no chunks: the stream ends with its connection
        self.keep_alive &= self._chunked
        head = (
            STATUS[200],
            _EVENTS,
            self.head.cors,
            *_lines(extra),
            b"transfer-encoding: chunked\r\n" if self._chunked else b"",
            b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n",
        )
        self.writer.write(b"".join(head))
        self.responded = True

    async def write(self, data: bytes) -> None:
        """Continue the response, no faster than the client reads."""
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self.writer.write(data)
        await self.writer.drain()

    def end(self) -> None:
        """End the response."""
        if self._chunked:
            self.writer.write(b"0\r\n\r\n")


def _lines(headers: Headers | None) -> list[bytes]:
    return [b"%b: %b\r\n" % pair for pair in headers] if headers else []


class HttpApp(Protocol):
    """Admits requests, and answers them."""

    def admit(self, head: RequestHead) -> Rejected | None:
        """Admit or reject a request by its head, before any of its body is kept."""
        ...

    def handle(self, http_request: HttpRequest) -> ToDo:
        """Answer a complete request, or return the work that remains."""
        ...
