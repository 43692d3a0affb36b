"""The latest events of one session, kept for clients that resume a stream."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from multitap.records import dataclass
from multitap.shares import Shares


@dataclass(frozen=True, slots=True)
class LogLimits:
    """How many events of one session are kept, and for how long."""

    events: int = 1024
    """Events of all its streams together; beyond that, the oldest are dropped."""
    room: int = 4 * 1024 * 1024
    """Bytes; the newest event is kept even if it is longer."""
    age: float = 300.0
    """Seconds for which an event is kept."""
    away: float = 60.0
    """Seconds for which a request continues without a connection of its client."""


NOTHING_KEPT = LogLimits(events=0)
"""For streams that cannot be resumed."""

MOST_BYTES = 256 * 1024 * 1024
"""Bytes kept for all sessions; beyond a client's share, its events are sent but not kept."""


class LoggedEvent(NamedTuple):
    """One event that was sent."""

    stream: str
    number: int
    encoded: bytes
    is_last: bool
    """Whether the stream ends with it."""
    at: float


class EventLog:
    """The latest events of one session, in the order in which they were sent.

    Args:
        limits: How much is kept.
        bytes_kept: Counts the bytes of all sessions.
        holder: The holder whose share this session counts against.
    """

    __slots__ = ("_events", "_holder", "_shares", "_size", "limits", "on_add", "on_gone")

    def __init__(self, limits: LogLimits, bytes_kept: Shares, holder: str) -> None:
        self.limits = limits
        self._shares = bytes_kept
        self._holder = holder
        self._events: deque[LoggedEvent] = deque()
        self._size = 0
        self.on_gone: Callable[[str], None] | None = None
        """Called with a stream once none of its events is kept."""
        self.on_add: Callable[[LoggedEvent], None] | None = None
        """Called with each event, to keep it for other replicas as well."""

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: LoggedEvent) -> None:
        """Keep an event, and drop older ones if there are too many."""
        # first, whether or not it is kept here: other replicas have limits of their own
        if self.on_add is not None:
            self.on_add(event)
        if not self.limits.events or not self._shares.take(self._holder, len(event.encoded)):
            self._on_dropped(event)
            return
        self._events.append(event)
        self._size += len(event.encoded)
        while len(self._events) > self.limits.events or (
            self._size > self.limits.room and len(self._events) > 1
        ):
            self._drop_oldest()

    def after(self, stream: str, number: int) -> list[LoggedEvent]:
        """The events of a stream after a given one, if they are still kept."""
        return [one for one in self._events if one.stream == stream and one.number > number]

    def expire(self, now: float) -> None:
        """Drop events that are too old."""
        while self._events and self._events[0].at < now - self.limits.age:
            self._drop_oldest()

    def close(self) -> None:
        """Drop all events, and keep no further ones."""
        self.limits = NOTHING_KEPT
        while self._events:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest = self._events.popleft()
        self._size -= len(oldest.encoded)
        self._shares.give(self._holder, len(oldest.encoded))
        self._on_dropped(oldest)

    def _on_dropped(self, event: LoggedEvent) -> None:
        if event.is_last and self.on_gone is not None:
            self.on_gone(event.stream)
