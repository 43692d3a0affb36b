"""One HTTP request, and how to answer it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import parse_qs

from msgspec import Raw

from multitap.http.server.access import ANYBODY, TEXT, Admitted, Rejected
from multitap.http.server.event_writer import EventWriter, MessageStream, StreamKeeper
from multitap.http.server.peer_user import Peer
from multitap.tasks import LightTask

logger = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
WHOLE = 64 * 1024
"""Bytes up to which a response is joined: copying costs less than writing piece by piece."""
STATUS = {
    int(status): b"HTTP/1.1 %d %b\r\nx-content-type-options: nosniff\r\n"
    % (status, status.phrase.encode())
    for status in HTTPStatus
}
"""How a response begins, by its status."""
# nginx would hold events back until its buffer is full
_EVENTS = (
    b"content-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\n"
    b"x-accel-buffering: no\r\n"
)

ToDo = Coroutine[Any, Any, None] | None
"""What is left to do for a request, if anything; see `LightTask` before it waits."""


class RequestHead:
    """What the head of a request says, and all that follows from it alone.

    A connection remembers those of its last requests: clients say the same again and again.
    """

    __slots__ = (
        "admitted", "edition", "handler", "headers", "holder", "keeps_body", "length", "memory",
        "method", "pairs", "peer", "speaks_chunks", "takes_stream", "url",
    )  # fmt: skip

    def __init__(self, method: bytes, url: bytes, pairs: Headers, *, peer: Peer) -> None:
        self.method = method
        self.url = url
        self.pairs = pairs
        self.headers = dict(pairs)
        """The same; of those that came twice the last."""
        self.peer = peer
        self.holder = peer.address
        """Whose share it counts on."""
        self.edition: object | None = None
        """What holds while it may be known again: see `Connections.edition`; None if it may not."""
        self.length = 0
        """Bytes of the body, where it says so."""
        self.speaks_chunks = True
        """Whether the client can read a response that has no length."""
        self.admitted: Admitted = ANYBODY
        """Whom it is from, once that is decided."""
        self.handler: Callable[[HttpRequest], ToDo] | None = None
        """Answers such requests, if anything does."""
        self.keeps_body = False
        """Whether anybody will look at a body; otherwise that is dropped as it comes."""
        self.takes_stream = False
        """Whether the client takes an event stream."""
        self.memory: object | None = None
        """What its handler remembers of it."""

    @property
    def path(self) -> bytes:
        return self.url.partition(b"?")[0].rstrip(b"/") or b"/"

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(self.url.partition(b"?")[2].decode("latin-1"))


class ResponseWriter(Protocol):
    """Takes responses to one client, in order."""

    def write(
        self, head: bytes, parts: Iterable[Raw | bytes | memoryview] = (), *, joined: bool = True
    ) -> None: ...

    async def drain(self) -> None: ...

    def on_finished(self, http_request: "HttpRequest", response: bytes = b"") -> None: ...


class HttpRequest(LightTask, eq=False, kw_only=True):
    """One HTTP request, the light task that it is worked on in, and the way to answer it.

    The answer is JSON, or a stream of events. It is an `Outlet` for what precedes the answer to a
    message.
    """

    writer: ResponseWriter
    """Takes the response to the client."""
    head: RequestHead
    body: bytes
    refusal: Rejected | None = None
    """Why it is turned away; nothing that comes after it is read then."""
    is_counted: bool = False
    """Whether it counts on the share of its holder right now."""
    is_pending: bool = False
    """Whether its handler tells the writer when it is `finished`."""
    is_gone: bool = False
    """Whether its client is."""
    keep_alive: bool = True
    responded: bool = False
    extra: Headers | None = None
    """Headers of the response to a message."""
    stream_begun: MessageStream | None = None
    """What ends with the answer, once anything preceded it."""
    keeper: StreamKeeper | None = None
    """Keeps the stream if the connection is lost; None: the request ends with its connection."""
    _chunked: bool = False
    _poured: asyncio.Event | None = None

    def send(self, message: bytes) -> bool:
        """Send what precedes the answer; whether that is possible."""
        if not self.head.takes_stream:
            return False
        if self.stream_begun is None:
            self.fall_silent()
        return self.stream_begun is not None and self.stream_begun.send(message)

    def answer(
        self, parts: Iterable[Raw | bytes | memoryview], status: int = 200
    ) -> asyncio.Event | None:
        """Answer a message; where that takes a while, what is set when it is done."""
        if self.stream_begun is None or self._poured is None:
            self.respond(status, parts, extra=self.extra)
            return None
        self.stream_begun.end(b"".join(parts))
        return self._poured

    def abandon(self) -> None:
        """Nobody waits for the answer."""
        self.is_gone = True
        if self.stream_begun is not None:
            self.stream_begun.end()

    def lose(self) -> None:
        """Its connection is lost; it ends with that unless its stream can be resumed."""
        stream, keeper = self.stream_begun, self.keeper
        if stream is None or keeper is None or not keeper.lost(stream):
            self.abandon()
            self.cancel()

    def give_up(self, exc: BaseException) -> None:
        """There will be no answer: the client is gone, or what worked on it is wrong."""
        if isinstance(exc, Exception):
            logger.error("a request failed", exc_info=exc)
            # half of a response is out: only a closed connection says that it is not whole
            if self.responded:
                self.keep_alive = False
            else:
                self.say(500, "Internal Server Error")
        self.abandon()

    def fall_silent(self) -> None:
        """Begin a stream: the answer takes a while, or something precedes it."""
        if self.head.takes_stream and self.stream_begun is None and not self.responded:
            keeper = self.keeper
            self.stream_begun = (
                EventWriter() if keeper is None else keeper.begin(self.cancel, self.body)
            )
            self._poured = asyncio.Event()
            # in a task: a callback of the server or a timer may be what begins it
            self.tasks.start_soon(self._pour, self.stream_begun, self._poured)

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
        """Answer with a whole body."""
        pieces = [*parts]
        size = sum(map(len, pieces))
        head = b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b%b" % (
            STATUS[status],
            kind,
            size,
            b"".join(_lines(extra)) if extra else b"",
            b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n",
        )
        self.writer.write(head, pieces, joined=size <= WHOLE)
        self.responded = True

    def say(
        self, status: int, words: str = "", *, kind: bytes = TEXT, extra: Headers | None = None
    ) -> None:
        """Answer in words."""
        words = "" if self.head.method == b"HEAD" else words
        self.respond(status, (words.encode(),), kind=kind, extra=extra)

    def stream(self, extra: Headers | None = None) -> None:
        """Begin a response that has no length yet."""
        self._chunked = self.head.speaks_chunks
        # HTTP/1.0 knows no chunks: the stream ends with its connection
        self.keep_alive &= self._chunked
        head = (
            STATUS[200],
            _EVENTS,
            *_lines(extra),
            b"transfer-encoding: chunked\r\n" if self._chunked else b"",
            b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n",
        )
        self.writer.write(b"".join(head))
        self.responded = True

    async def write(self, data: bytes) -> None:
        """Go on with it, no faster than the client reads."""
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self.writer.write(data)
        await self.writer.drain()

    def end(self) -> None:
        """End it."""
        if self._chunked:
            self.writer.write(b"0\r\n\r\n")


def _lines(headers: Headers | None) -> list[bytes]:
    return [b"%b: %b\r\n" % pair for pair in headers] if headers else []


class HttpApp(Protocol):
    """Decides about requests, and answers them."""

    def admit(self, head: RequestHead) -> Rejected | None:
        """Decide about a request by its head, before any of its body is kept."""
        ...

    def handle(self, http_request: HttpRequest) -> ToDo:
        """Answer a complete request, or return the work that remains."""
        ...
