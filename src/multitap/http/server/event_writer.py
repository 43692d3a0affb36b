"""Writes server-sent events to one client."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

Headers = list[tuple[bytes, bytes]]

BACKLOG = 1024
"""Messages that may wait for a client to read them."""
ROOM = 64 * 1024 * 1024
"""Bytes that may wait for it; a message on its own may be longer."""
PING = 15.0
"""Seconds of silence after which a stream shows that it is alive."""


def event(message: bytes, event_id: bytes = b"") -> bytes:
    """One server-sent event; line breaks in JSON stand between its words, never in them."""
    if b"\n" in message or b"\r" in message:
        message = message.replace(b"\r", b" ").replace(b"\n", b" ")
    if event_id:
        return b"event: message\r\nid: %b\r\ndata: %b\r\n\r\n" % (event_id, message)
    return b"event: message\r\ndata: %b\r\n\r\n" % message


class Streaming(Protocol):
    """A response that has no length."""

    def stream(self, extra: Headers | None = None) -> None: ...

    async def write(self, data: bytes) -> None: ...

    def end(self) -> None: ...


class MessageStream(Protocol):
    """Messages to one client that are sent as events; an `Outlet`."""

    def send(self, message: bytes) -> bool: ...

    def end(self, last: bytes | None = None) -> None: ...

    async def pour(self, response: Streaming, extra: Headers | None) -> None: ...


class StreamKeeper(Protocol):
    """Keeps the streams of requests that outlive their connections."""

    def begin(self, give_up: Callable[[], None], asked: bytes) -> MessageStream:
        """The stream on which a request is answered from now on.

        Args:
            give_up: Ends the request, if its client does not come back.
            asked: The body of the request.
        """
        ...

    def lost(self, stream: MessageStream) -> bool:
        """Its connection is lost; whether the client may come back for the rest."""
        ...


class EventWriter:
    """Events on their way to one client; an `Outlet`."""

    def __init__(self, backlog: int = BACKLOG) -> None:
        self._events: deque[bytes] = deque()
        self._size = 0
        self._backlog = backlog
        self._stirred = asyncio.Event()
        self.ended = False

    def send(self, message: bytes) -> bool:
        return self.push(event(message))

    def push(self, encoded: bytes) -> bool:
        """Send an event that is written already; whether there is room for it."""
        # a client that does not read must not fill our memory; it lists again when it comes back
        if self.ended or len(self._events) >= self._backlog or self._size > ROOM:
            return False
        self._events.append(encoded)
        self._size += len(encoded)
        self._stirred.set()
        return True

    def end(self, last: bytes | None = None) -> None:
        """Say the last message; what waits is still sent."""
        self.close(b"" if last is None else event(last))

    def close(self, encoded: bytes = b"") -> None:
        """Send the last event, which is written already, and end."""
        # not counted: what is dropped are notifications, never the answer
        if encoded:
            self._events.append(encoded)
        self.ended = True
        self._stirred.set()

    async def pour(
        self, response: Streaming, extra: Headers | None, first: bytes = b": hi\r\n\r\n"
    ) -> None:
        """Be the body of a response until the end."""
        response.stream(extra)
        await response.write(first)
        while True:
            while self._events:
                # in one write: each costs a system call and a chunk of its own
                batch = b"".join(self._events)
                self._events.clear()
                self._size = 0
                await response.write(batch)
            if self.ended:
                break
            self._stirred.clear()
            try:
                # proxies close what is silent, many after a minute or less
                async with asyncio.timeout(PING):
                    await self._stirred.wait()
            except TimeoutError:
                await response.write(b": ping\r\n\r\n")
        response.end()
