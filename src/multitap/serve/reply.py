"""The response to one POST: JSON if the answer comes first, a stream from the first message on."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from anyio.abc import TaskGroup
from msgspec import Raw

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

BACKLOG = 1024
"""Messages that may wait for a client to read them."""
PING = 15.0
"""Seconds of silence after which a stream shows that it is alive."""
_WHOLE = 64 * 1024
"""Bytes up to which pieces are joined: copying them costs less than sending them one by one."""

STREAM: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_JSON = (b"content-type", b"application/json")


def event(message: bytes, *, name: bytes = b"message") -> bytes:
    """One server-sent event; line breaks in JSON stand between its words, never in them."""
    if b"\n" in message or b"\r" in message:
        message = message.replace(b"\r", b" ").replace(b"\n", b" ")
    return b"event: %b\r\ndata: %b\r\n\r\n" % (name, message)


class Stream:
    """Events on their way to one client; an `Outlet`.

    Args:
        backlog: How many may wait.
    """

    def __init__(self, backlog: int = BACKLOG) -> None:
        self._events: deque[bytes] = deque()
        self._backlog = backlog
        self._stirred = asyncio.Event()
        self.ended = False

    def send(self, message: bytes) -> bool:
        if self.ended or len(self._events) >= self._backlog:
            return False
        self._events.append(event(message))
        self._stirred.set()
        return True

    def end(self, last: bytes | None = None) -> None:
        """Say the last message; what waits is still sent."""
        if last is not None:
            self._events.append(event(last))
        self.ended = True
        self._stirred.set()

    async def pour(self, send: Send, headers: Headers, first: bytes = b"") -> None:
        """Be the body of a response until the end, or until the client is gone."""
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if first:
            await send({"type": "http.response.body", "body": first, "more_body": True})
        while True:
            while self._events:
                batch = b"".join(self._events)
                self._events.clear()
                await send({"type": "http.response.body", "body": batch, "more_body": True})
            if self.ended:
                break
            self._stirred.clear()
            try:
                async with asyncio.timeout(PING):
                    await self._stirred.wait()
            except TimeoutError:
                ping = b": ping\r\n\r\n"
                await send({"type": "http.response.body", "body": ping, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Reply:
    """An `Outlet` for what precedes the answer, and the answer.

    Args:
        send: The response.
        tasks: Where a stream is written while the answer is worked on.
        streams: Whether the client takes a stream.
        extra: Headers of the response.
    """

    __slots__ = ("_extra", "_poured", "_send", "_stream", "_streams", "_tasks", "_timer")

    def __init__(self, send: Send, tasks: TaskGroup, *, streams: bool, extra: Headers) -> None:
        self._send = send
        self._tasks = tasks
        self._streams = streams
        self._extra = extra
        self._stream: Stream | None = None
        self._poured: asyncio.Event | None = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(PING, self._commit) if streams else None

    def send(self, message: bytes) -> bool:
        if not self._streams:
            return False
        if self._stream is None:
            self._commit()
        return self._stream is not None and self._stream.send(message)

    async def finish(self, pieces: Iterable[bytes | Raw], status: int = 200) -> None:
        """Answer."""
        self.stop()
        if self._stream is None or self._poured is None:
            await self._whole(pieces, status)
        else:
            self._stream.end(b"".join(pieces))
            await self._poured.wait()

    async def drop(self) -> None:
        """End without an answer."""
        self.stop()
        if self._stream is not None and self._poured is not None:
            self._stream.end()
            await self._poured.wait()

    def stop(self) -> None:
        """No more waiting for the moment to become a stream."""
        if self._timer is not None:
            self._timer.cancel()

    def _commit(self) -> None:
        self.stop()
        self._stream = Stream()
        self._poured = asyncio.Event()
        self._tasks.start_soon(self._pour, self._stream, self._poured)

    async def _pour(self, stream: Stream, poured: asyncio.Event) -> None:
        try:
            await stream.pour(self._send, [*STREAM, *self._extra])
        finally:
            poured.set()

    async def _whole(self, pieces: Iterable[bytes | Raw], status: int) -> None:
        parts = [*pieces]
        size = sum(map(len, parts))
        headers = [_JSON, (b"content-length", b"%d" % size), *self._extra]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        if size <= _WHOLE:
            await self._send({"type": "http.response.body", "body": b"".join(parts)})
            return
        for part in parts:
            await self._send(
                {"type": "http.response.body", "body": memoryview(part), "more_body": True}
            )
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def plain(
    send: Send,
    status: int,
    text: str = "",
    *,
    kind: bytes = b"text/plain",
    extra: Headers | None = None,
) -> None:
    """A whole response of its own."""
    body = text.encode()
    headers = [
        (b"content-type", kind + b"; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
        *(extra or ()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
