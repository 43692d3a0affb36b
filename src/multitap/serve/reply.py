"""The answer to one POST: JSON if it comes first, a stream from the first message on."""

import asyncio
from collections import deque
from collections.abc import Iterable

from msgspec import Raw

from multitap.serve.visit import Headers, Visit
from multitap.tasks import Tasks

BACKLOG = 1024
"""Messages that may wait for a client to read them."""
ROOM = 64 * 1024 * 1024
"""Bytes that may wait for it; a message on its own may be longer."""
PING = 15.0
"""Seconds of silence after which a stream shows that it is alive."""


def event(message: bytes) -> bytes:
    """One server-sent event; line breaks in JSON stand between its words, never in them."""
    if b"\n" in message or b"\r" in message:
        message = message.replace(b"\r", b" ").replace(b"\n", b" ")
    return b"event: message\r\ndata: %b\r\n\r\n" % message


class Stream:
    """Events on their way to one client; an `Outlet`.

    Args:
        backlog: How many may wait.
    """

    def __init__(self, backlog: int = BACKLOG) -> None:
        self._events: deque[bytes] = deque()
        self._size = 0
        self._backlog = backlog
        self._stirred = asyncio.Event()
        self.ended = False

    def send(self, message: bytes) -> bool:
        if self.ended or len(self._events) >= self._backlog or self._size > ROOM:
            return False
        self._events.append(event(message))
        self._size += len(message)
        self._stirred.set()
        return True

    def end(self, last: bytes | None = None) -> None:
        """Say the last message; what waits is still sent."""
        if last is not None:
            self._events.append(event(last))
        self.ended = True
        self._stirred.set()

    async def pour(
        self, visit: Visit, extra: Headers | None, first: bytes = b": hi\r\n\r\n"
    ) -> None:
        """Be the body of a response until the end."""
        visit.stream(extra)
        await visit.write(first)
        while True:
            while self._events:
                batch = b"".join(self._events)
                self._events.clear()
                self._size = 0
                await visit.write(batch)
            if self.ended:
                break
            self._stirred.clear()
            try:
                async with asyncio.timeout(PING):
                    await self._stirred.wait()
            except TimeoutError:
                await visit.write(b": ping\r\n\r\n")
        visit.end()


class Reply:
    """An `Outlet` for what precedes the answer, and the answer.

    Args:
        visit: The request.
        tasks: Where a stream is written while the answer is worked on.
        streams: Whether the client takes a stream.
        extra: Headers of the response.
    """

    __slots__ = ("_extra", "_poured", "_stream", "_streams", "_tasks", "_visit")

    def __init__(self, visit: Visit, tasks: Tasks, *, streams: bool, extra: Headers | None) -> None:
        self._visit = visit
        self._tasks = tasks
        self._streams = streams
        self._extra = extra
        self._stream: Stream | None = None
        self._poured: asyncio.Event | None = None
        if streams:
            visit.on_silence = self._commit

    def send(self, message: bytes) -> bool:
        if not self._streams:
            return False
        if self._stream is None:
            self._commit()
        return self._stream is not None and self._stream.send(message)

    def finish(self, parts: Iterable[bytes | Raw], status: int = 200) -> asyncio.Event | None:
        """Answer; where that takes a while, what is set when it is done."""
        self._visit.on_silence = None
        if self._stream is None or self._poured is None:
            self._visit.respond(status, parts, extra=self._extra)
            return None
        self._stream.end(b"".join(parts))
        return self._poured

    def abandon(self) -> None:
        """Nobody waits for the answer any more."""
        self._visit.on_silence = None
        if self._stream is not None:
            self._stream.end()

    def _commit(self) -> None:
        if self._stream is None and not self._visit.responded:
            self._visit.on_silence = None
            self._stream = Stream()
            self._poured = asyncio.Event()
            self._tasks.start_soon(self._pour, self._stream, self._poured)

    async def _pour(self, stream: Stream, poured: asyncio.Event) -> None:
        try:
            await stream.pour(self._visit, self._extra)
        finally:
            poured.set()
