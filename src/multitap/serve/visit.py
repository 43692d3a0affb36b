"""One HTTP request, and the way to answer it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import parse_qs

from msgspec import Raw

from multitap.serve.access import ANYBODY, Admitted, Denied
from multitap.serve.event_stream import Stream
from multitap.tasks import LightTask, Tasks

logger = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
_WHOLE = 64 * 1024
"""Bytes up to which a response is joined: copying costs less than writing piece by piece."""
_STATUS = {
    int(status): b"HTTP/1.1 %d %b\r\nx-content-type-options: nosniff\r\n"
    % (status, status.phrase.encode())
    for status in HTTPStatus
}
_EVENTS = (
    b"content-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\n"
    b"x-accel-buffering: no\r\n"
)

ToDo = Coroutine[Any, Any, None] | None
"""What is left to do for a request, if anything; see `LightTask` before it waits."""


class Head:
    """What the head of a request says, and all that follows from it alone.

    A connection remembers those of its last requests: clients say the same again and again.

    Args:
        method: What the request wants.
        url: From where.
        pairs: Its headers, as they came.
        holder: Whose share it counts on.
    """

    __slots__ = (
        "admitted", "handler", "headers", "holder", "keeps_body", "length", "memory", "method",
        "pairs", "speaks_chunks", "takes_stream", "url",
    )  # fmt: skip

    def __init__(self, method: bytes, url: bytes, pairs: Headers, *, holder: str) -> None:
        self.method = method
        self.url = url
        self.pairs = pairs
        self.headers = dict(pairs)
        """The same; of those that came twice the last."""
        self.holder = holder
        self.length = 0
        """Bytes of the body, where it says so."""
        self.speaks_chunks = True
        """Whether the client can read a response that has no length."""
        self.admitted: Admitted = ANYBODY
        """Whom it is from, once that is decided."""
        self.handler: Callable[[Visit], ToDo] | None = None
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


class Carrier(Protocol):
    """Takes responses to one client, in order."""

    def write(
        self, head: bytes, parts: Iterable[bytes | Raw] = (), *, joined: bool = True
    ) -> None: ...

    async def drain(self) -> None: ...

    def finished(self, visit: "Visit") -> None: ...


class Visit:
    """One HTTP request, and the way to answer it: with JSON, or with a stream of events.

    It is an `Outlet` for what precedes the answer to a message.

    Args:
        carrier: Takes the response to the client.
        head: What its head says.
        body: What follows.
        tasks: Where it is worked on, once that takes waiting.
    """

    __slots__ = (
        "_carrier", "_chunked", "_poured", "_stream", "_tasks", "body", "extra", "head",
        "is_counted", "is_gone", "is_pending", "keep_alive", "light", "refusal", "responded",
    )  # fmt: skip

    def __init__(self, carrier: Carrier, head: Head, body: bytes, tasks: Tasks) -> None:
        self._carrier = carrier
        self._tasks = tasks
        self._chunked = False
        self._stream: Stream | None = None
        self._poured: asyncio.Event | None = None
        self.head = head
        self.body = body
        self.light = LightTask(tasks)
        """What it is worked on in."""
        self.refusal: Denied | None = None
        """Why it is turned away; nothing that comes after it is read then."""
        self.is_counted = False
        """Whether it counts on the share of its holder right now."""
        self.is_pending = False
        """Whether its handler says when it is `done`."""
        self.is_gone = False
        """Whether its client is."""
        self.keep_alive = True
        self.responded = False
        self.extra: Headers | None = None
        """Headers of the response to a message."""

    def send(self, message: bytes) -> bool:
        """Send what precedes the answer; whether that is possible."""
        if not self.head.takes_stream:
            return False
        if self._stream is None:
            self.fall_silent()
        return self._stream is not None and self._stream.send(message)

    def answer(self, parts: Iterable[bytes | Raw], status: int = 200) -> asyncio.Event | None:
        """Answer a message; where that takes a while, what is set when it is done."""
        if self._stream is None or self._poured is None:
            self.respond(status, parts, extra=self.extra)
            return None
        self._stream.end(b"".join(parts))
        return self._poured

    def abandon(self) -> None:
        """Nobody waits for the answer any more."""
        self.is_gone = True
        if self._stream is not None:
            self._stream.end()

    def give_up(self, exc: BaseException) -> None:
        """There will be no answer: the client is gone, or what worked on it is wrong."""
        if isinstance(exc, Exception):
            logger.error("a request failed", exc_info=exc)
            if self.responded:
                self.keep_alive = False
            else:
                self.say(500, "Internal Server Error")
        self.abandon()

    def fall_silent(self) -> None:
        """Begin a stream: the answer takes a while, or something precedes it."""
        if self.head.takes_stream and self._stream is None and not self.responded:
            self._stream = Stream()
            self._poured = asyncio.Event()
            self._tasks.start_soon(self._pour, self._stream, self._poured)

    async def _pour(self, stream: Stream, poured: asyncio.Event) -> None:
        try:
            await stream.pour(self, self.extra)
        finally:
            poured.set()

    def done(self) -> None:
        """It is answered, later than it was handled."""
        self.is_pending = False
        self._carrier.finished(self)

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
        self._carrier.write(head, pieces, joined=size <= _WHOLE)
        self.responded = True

    def say(self, status: int, words: str = "", *, extra: Headers | None = None) -> None:
        """Answer in plain words."""
        words = "" if self.head.method == b"HEAD" else words
        self.respond(status, (words.encode(),), kind=b"text/plain; charset=utf-8", extra=extra)

    def stream(self, extra: Headers | None = None) -> None:
        """Begin a response that has no length yet."""
        self._chunked = self.head.speaks_chunks
        self.keep_alive &= self._chunked
        head = (
            _STATUS[200],
            _EVENTS,
            *_lines(extra),
            b"transfer-encoding: chunked\r\n" if self._chunked else b"",
            b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n",
        )
        self._carrier.write(b"".join(head))
        self.responded = True

    async def write(self, data: bytes) -> None:
        """Go on with it, no faster than the client reads."""
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._carrier.write(data)
        await self._carrier.drain()

    def end(self) -> None:
        """End it."""
        if self._chunked:
            self._carrier.write(b"0\r\n\r\n")


def _lines(headers: Headers | None) -> list[bytes]:
    return [b"%b: %b\r\n" % pair for pair in headers] if headers else []


class WebApp(Protocol):
    """Decides about requests, and answers them."""

    def admit(self, head: Head) -> Denied | None:
        """Decide about a request by its head, before any of its body is kept."""
        ...

    def handle(self, visit: Visit) -> ToDo:
        """Answer a complete request, or say what there is to do for it."""
        ...
