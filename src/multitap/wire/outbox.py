"""Messages on their way to a server that may not read them."""

from collections import deque
from collections.abc import Callable

from multitap.wire.flight import Flight
from multitap.wire.wire import INBOUND_REQUESTS


class Outbox:
    """Holds messages back while the stream is full, so that our memory is not its buffer.

    Args:
        write: Puts one message on the stream without blocking.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._held: deque[tuple[bytes, Flight | None]] = deque()
        self._full = False

    def send(self, message: bytes, flight: Flight | None = None) -> None:
        """Send a message now, or as soon as the stream takes it."""
        if not self._full:
            if flight is not None:
                flight.sent = True
            self._write(message)
        elif flight is not None or len(self._held) < INBOUND_REQUESTS:
            self._held.append((message, flight))
        # else: a server that asks and does not read gets no answer

    def full(self) -> None:
        """The stream takes no more for now."""
        self._full = True

    def writable(self) -> None:
        """The stream takes messages again."""
        self._full = False
        while self._held and not self._full:
            message, flight = self._held.popleft()
            if flight is None or flight.waiting:
                self.send(message, flight)

    def clear(self) -> None:
        self._held.clear()
