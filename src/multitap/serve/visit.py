"""One HTTP request, and the way to answer it."""

from collections.abc import Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import parse_qs

from msgspec import Raw

from multitap.serve.access import ANYBODY, Admitted, Denied
from multitap.tasks import LightTask

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


class Carrier(Protocol):
    """Takes responses to one client, in order."""

    def write(
        self, head: bytes, parts: Iterable[bytes | Raw] = (), *, joined: bool = True
    ) -> None: ...

    async def drain(self) -> None: ...


class Visit:
    """One HTTP request, and the way to answer it.

    Args:
        carrier: Takes the response to the client.
        method: What it wants.
        url: From where.
        pairs: Its headers, as they came.
        headers: The same; of those that came twice the last.
        holder: Whose share it counts on.
    """

    __slots__ = (
        "_carrier", "_chunked", "admitted", "body", "handler", "headers", "holder", "is_counted",
        "keep_alive", "keeps_body", "light", "method", "on_silence", "pairs", "refusal",
        "responded", "speaks_chunks", "url",
    )  # fmt: skip

    def __init__(
        self,
        carrier: Carrier,
        method: bytes,
        url: bytes,
        pairs: Headers,
        headers: dict[bytes, bytes],
        *,
        holder: str,
    ) -> None:
        self._carrier = carrier
        self._chunked = False
        self.method = method
        self.url = url
        self.pairs = pairs
        self.headers = headers
        self.holder = holder
        self.admitted: Admitted = ANYBODY
        """Whom it is from, once that is decided."""
        self.handler: Callable[[Visit, Admitted], ToDo] | None = None
        """Answers it, if anything does."""
        self.keeps_body = False
        """Whether anybody will look at its body; otherwise that is dropped as it comes."""
        self.refusal: Denied | None = None
        """Why it is turned away; nothing that comes after it is read then."""
        self.is_counted = False
        """Whether it counts on the share of its holder right now."""
        self.body = b""
        self.keep_alive = True
        self.speaks_chunks = True
        """Whether its client can read a response that has no length."""
        self.responded = False
        self.on_silence: Callable[[], None] | None = None
        """Called once when it has not been answered for a while."""
        self.light: LightTask
        """What it is worked on in."""

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
        self._carrier.write(head, pieces, joined=size <= _WHOLE)
        self.responded = True

    def say(self, status: int, words: str = "", *, extra: Headers | None = None) -> None:
        """Answer in plain words."""
        words = "" if self.method == b"HEAD" else words
        self.respond(status, (words.encode(),), kind=b"text/plain; charset=utf-8", extra=extra)

    def stream(self, extra: Headers | None = None) -> None:
        """Begin a response that has no length yet."""
        self._chunked = self.speaks_chunks
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

    def admit(self, visit: Visit) -> Denied | None:
        """Decide about a request by its head, before any of its body is kept."""
        ...

    def handle(self, visit: Visit) -> ToDo:
        """Answer a complete request, or say what there is to do for it."""
        ...
