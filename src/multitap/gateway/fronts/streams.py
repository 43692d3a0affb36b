"""Event streams that a client can resume, and the log of their latest events."""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

import msgspec

from multitap.http.server.request import (
    BACKLOG,
    EventWriter,
    Headers,
    HttpRequest,
    MessageStream,
    event,
)
from multitap.limits import Shares


class LogLimits(msgspec.Struct, frozen=True):
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
        return [event for event in self._events if event.stream == stream and event.number > number]

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


MOST_AWAY = 1024
"""Requests that may continue while their clients are disconnected; further ones are cancelled."""
RETRY = 1000
"""Milliseconds after which a client should resume a lost stream."""
MAILBOX = "0"
"""The stream for messages that belong to no request."""

# bounded: the header is the client's, and a long number is slow to convert
_EVENT_ID = re.compile(rb"([a-z0-9]{1,24})-([0-9]{1,9})")


def parse_event_id(text: bytes) -> tuple[str, int] | None:
    """The stream and number in an event id; None if it is not one of ours."""
    match = _EVENT_ID.fullmatch(text)
    return (match[1].decode(), int(match[2])) if match else None


def opening(name: str, after: int, *, is_primed: bool) -> bytes:
    """The first event of a connection, from which it can be resumed."""
    if not is_primed:
        return b"retry: %d\r\n\r\n" % RETRY
    return b"id: %b-%d\r\nretry: %d\r\ndata: \r\n\r\n" % (name.encode(), after, RETRY)


class ResumableStream:
    """One stream, whether or not its client is connected now; an `Outlet`.

    Args:
        name: Its part of each event's id.
        log: Keeps its events.
        is_primed: Whether its client takes an event without a message, from which it can resume
            though it has seen nothing else yet.
        on_end: Called when nothing more follows, and whether that is because of an answer.
    """

    __slots__ = (
        "_is_primed", "_log", "_on_end", "_writer", "expiry", "give_up", "is_counted", "is_over",
        "name", "number",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        log: EventLog,
        *,
        is_primed: Callable[[], bool],
        on_end: Callable[["ResumableStream", bool], None] | None = None,
    ) -> None:
        self.name = name
        self.number = 0
        """The number of the last event."""
        self.is_over = False
        self.give_up: Callable[[], None] | None = None
        """Cancels the request that it answers."""
        self.expiry: asyncio.TimerHandle | None = None
        """Runs while the client is disconnected."""
        self.is_counted = False
        """Whether it counts as a request without a connected client."""
        self._log = log
        self._is_primed = is_primed
        self._on_end = on_end
        self._writer: EventWriter | None = None

    @property
    def is_connected(self) -> bool:
        return self._writer is not None

    def send(self, message: bytes) -> bool:
        if self.is_over:
            return False
        encoded = self._encode(message)
        # without an id: a dropped event must not count as received
        if self._writer is not None and not self._writer.push(encoded):
            return False
        self._note(encoded, is_last=False)
        return True

    def end(self, last: bytes | None = None) -> None:
        """Send the answer, after which nothing follows."""
        if self.is_over:
            return
        encoded = b"" if last is None else self._encode(last)
        self.is_over = True
        if self._writer is not None:
            self._writer.close(encoded)
        if self._on_end is not None:
            self._on_end(self, bool(encoded))
        if encoded:
            self._note(encoded, is_last=True)

    async def pour(self, response: HttpRequest, extra: Headers | None) -> None:
        """Be the body of the response to the request that this stream answers."""
        if (writer := self._writer) is not None:
            await writer.pour(response, extra, self.opening(0))

    def connect(self, after: int) -> EventWriter:
        """Continue the stream after an event on a new connection; an earlier connection ends."""
        # no await in here: an event is either among the missed ones or pushed to the new writer
        missed = self._log.after(self.name, after)
        self.disconnect()
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None
        # room for all missed events, which must not count against the usual backlog
        writer = EventWriter(len(missed) + BACKLOG)
        for missed_event in missed:
            writer.push(missed_event.encoded)
        if self.is_over:
            writer.end()
        else:
            self._writer = writer
        return writer

    def disconnect(self, writer: EventWriter | None = None) -> bool:
        """Drop a connection that is lost or ends; False if the client already has another one."""
        current = self._writer
        if writer is not None:
            writer.end()
            # the client reconnected before we noticed that it had left
            if writer is not current:
                return False
        if current is not None:
            current.end()
        self._writer = None
        return True

    def opening(self, after: int) -> bytes:
        """The first event of a connection."""
        return opening(self.name, after, is_primed=self._is_primed())

    def _encode(self, message: bytes) -> bytes:
        return event(message, b"%b-%d" % (self.name.encode(), self.number + 1))

    def _note(self, encoded: bytes, *, is_last: bool) -> None:
        self.number += 1
        now = asyncio.get_running_loop().time()
        self._log.add(LoggedEvent(self.name, self.number, encoded, is_last, now))


class Mailbox(ResumableStream):
    """Messages to a client outside its requests, kept until it listens; an `Outlet`."""

    __slots__ = ("heard", "route")

    def __init__(self, log: EventLog, *, is_primed: Callable[[], bool]) -> None:
        super().__init__(MAILBOX, log, is_primed=is_primed)
        self.heard = 0
        """The number of the last event that was sent over any connection."""
        self.route: Callable[[bytes], bool] | None = None
        """Relays messages while another replica has the client's mailbox."""

    def send(self, message: bytes) -> bool:
        if self.is_over:
            return False
        if self.route is not None:
            return self.route(message)
        encoded = self._encode(message)
        self._note(encoded, is_last=False)
        if self._writer is not None:
            if self._writer.push(encoded):
                self.heard = self.number
            else:
                self.disconnect()  # it does not read: it may resume the stream later
        return True

    def connect(self, after: int) -> EventWriter:
        writer = super().connect(after)
        self.heard = self.number
        return writer


class SessionStreams:
    """The streams of one session; the `StreamKeeper` of its requests.

    Args:
        log: Keeps their events.
        away: Counts the requests without a connected client, of all sessions.
        holder: The holder whose share this session counts against.
        is_primed: See `ResumableStream`.
    """

    __slots__ = (
        "_away", "_holder", "_names", "_streams", "is_primed", "log", "mailbox", "on_begin",
        "prefix",
    )  # fmt: skip

    def __init__(
        self, log: EventLog, away: Shares, holder: str, *, is_primed: Callable[[], bool]
    ) -> None:
        self.log = log
        log.on_gone = self._forget
        self.mailbox = Mailbox(log, is_primed=is_primed)
        self._away = away
        self._holder = holder
        self.is_primed = is_primed
        self.prefix = ""
        """The prefix of stream names, unique to this replica."""
        self.on_begin: Callable[[str, bytes], None] | None = None
        """Called with the name of each new stream, and the request that it answers."""
        self._names = count(1)
        self._streams: dict[str, ResumableStream] = {}

    def find(self, name: str) -> ResumableStream | None:
        """A stream that is open, or whose events are kept."""
        return self.mailbox if name == MAILBOX else self._streams.get(name)

    def begin(self, give_up: Callable[[], None], opening: bytes) -> MessageStream:
        name = f"{self.prefix}{next(self._names)}"
        if self.on_begin is not None:
            self.on_begin(name, opening)
        stream = ResumableStream(
            name, self.log, is_primed=self.is_primed, on_end=self._on_stream_end
        )
        stream.give_up = give_up
        stream.connect(0)
        self._streams[name] = stream
        return stream

    def lost(self, stream: MessageStream) -> bool:
        return isinstance(stream, ResumableStream) and self._let_wait(stream)

    def leave(self, stream: ResumableStream, writer: EventWriter) -> None:
        """Drop the connection over which a stream was resumed."""
        if stream.disconnect(writer) and stream is not self.mailbox and not self._let_wait(stream):
            self._give_up(stream)

    def go_on_elsewhere(self, name: str) -> None:
        """Keep a request alive whose client has resumed the stream at another replica."""
        if (stream := self._streams.get(name)) is not None and not self._let_wait(stream):
            self._give_up(stream)

    def expire(self, now: float) -> None:
        """Drop events that are too old."""
        self.log.expire(now)

    def close(self) -> None:
        """End all streams: the session is over."""
        self.mailbox.end()
        # their requests are not cancelled here: `Client.leave` cancels them
        for stream in self._streams.values():
            self._on_done(stream)
            stream.disconnect()
        self._streams.clear()
        self.log.close()

    def _let_wait(self, stream: ResumableStream) -> bool:
        """Let a request continue for a while without a connection, if the limits allow it."""
        stream.disconnect()
        if stream.is_over:
            return True
        # counted: a connection no longer bounds how many there are
        if not self.log.limits.events or stream.name not in self._streams:
            return False
        if not stream.is_counted and not self._away.take(self._holder):
            self._streams.pop(stream.name, None)
            return False
        stream.is_counted = True
        if stream.expiry is not None:
            stream.expiry.cancel()
        loop = asyncio.get_running_loop()
        # a timer, not a task: there may be a thousand of them, and `connect` only has to cancel it
        stream.expiry = loop.call_later(self.log.limits.away, self._give_up, stream)
        return True

    def _give_up(self, stream: ResumableStream) -> None:
        self._streams.pop(stream.name, None)
        self._on_done(stream)
        if stream.give_up is not None:
            stream.give_up()

    def _on_done(self, stream: ResumableStream) -> None:
        if stream.expiry is not None:
            stream.expiry.cancel()
            stream.expiry = None
        if stream.is_counted:
            stream.is_counted = False
            self._away.give(self._holder)

    def _on_stream_end(self, stream: ResumableStream, is_answered: bool) -> None:  # noqa: FBT001 - a callback
        self._on_done(stream)
        # the request is done: nothing is left to cancel
        stream.give_up = None
        if not is_answered:
            self._forget(stream.name)

    def _forget(self, name: str) -> None:
        self._streams.pop(name, None)
