"""Writes server-sent events to one client."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

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


class Streaming(Protocol):
    """A response without a known length."""

    def stream(self, extra: Headers | None = None) -> None: ...

    async def write(self, data: bytes) -> None: ...

    def end(self) -> None: ...


class MessageStream(Protocol):
    """Messages that are sent to one client as events; an `Outlet`."""

    def send(self, message: bytes) -> bool: ...

    def end(self, last: bytes | None = None) -> None: ...

    async def pour(self, response: Streaming, extra: Headers | None) -> None: ...


class StreamKeeper(Protocol):
    """Keeps the streams of requests that outlive their connections."""

    def begin(self, give_up: Callable[[], None], asked: bytes) -> MessageStream:
        """Begin the stream on which a request is answered.

        Args:
            give_up: Cancels the request if its client does not reconnect.
            asked: The body of the request.
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
        self, response: Streaming, extra: Headers | None, first: bytes = b": hi\r\n\r\n"
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
