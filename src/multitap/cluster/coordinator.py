"""What several gateways need to act as one: shared facts, leases, messages and limits."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Generator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Protocol

import msgspec

from multitap.errors import MultitapError
from multitap.records import dataclass
from multitap.upstream.signals import Bell

WINDOW_PARTS = 60
"""Parts of a window: each expires as a whole, so a window of a minute is exact to a second."""


class CoordinatorDown(MultitapError):
    """The coordinator cannot be reached; whether it did what was asked is not known."""


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """Who holds a lease, or held it last."""

    holder: str
    """Empty once it was released."""
    token: int
    """Greater than that of every earlier holder."""
    expires_in: float
    """Seconds, by the coordinator's clock; not positive: it has expired."""
    note: bytes = b""
    """What the holder wants others to know."""

    @property
    def is_held(self) -> bool:
        return bool(self.holder) and self.expires_in > 0


class StreamEntry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a stream."""

    id: str
    """`MILLISECONDS-NUMBER`; rises within a stream."""
    data: bytes


class StreamEnds(msgspec.Struct, frozen=True, array_like=True):
    """The oldest and the newest entry that a stream still has, by id."""

    first: str
    last: str


class Allowance(msgspec.Struct, frozen=True, array_like=True):
    """Whether something may be done now under a limit."""

    allowed: bool
    left: int
    """How much may still be done in this window."""
    retry_after: float = 0.0
    """Seconds until it may be worth asking again, if it was not allowed."""


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Something that was published."""

    channel: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the coordinator answers."""

    is_up: bool
    reason: str = ""
    """Why it does not."""


class Records(Protocol):
    """Small values under keys, each for a time."""

    async def read(self, key: str) -> bytes | None: ...

    async def write(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
        """Keep a value, for `ttl` seconds if they are given."""
        ...

    async def swap(
        self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None
    ) -> bool:
        """Replace a value if it is still `expected`; None: if there is none. Whether it was."""
        ...

    async def touch(self, key: str, ttl: float) -> bool:
        """Keep a value for `ttl` seconds from now on; whether there is one."""
        ...

    async def delete(self, key: str, expected: bytes | None = None) -> bool:
        """Remove a value, only if it is still `expected` where that is given; whether it was."""
        ...

    async def scan(self, prefix: str) -> Mapping[str, bytes]:
        """All values whose keys begin like this."""
        ...


class Leases(Protocol):
    """Names that one holder has at a time.

    A lease ends after its time unless it is renewed. Each new holder gets a greater fencing token,
    even if the coordinator has lost everything in between: tokens follow its clock.
    """

    async def acquire(
        self,
        name: str,
        holder: str,
        *,
        ttl: float,
        note: bytes = b"",
        guard: tuple[str, int] | None = None,
    ) -> int | None:
        """The fencing token of a new holder; None while another one has the lease.

        A holder that has it already gets a new token.

        Args:
            name: Which lease.
            holder: Who wants it.
            ttl: Seconds for which it is given.
            note: What others are to know about the holder.
            guard: Another lease and its token: nothing is given if that has another one by now.
        """
        ...

    async def renew(self, held: Mapping[str, int], *, ttl: float) -> frozenset[str]:
        """Prolong leases, by name and token; the names of those that nobody else has taken.

        One that has expired is prolonged as well: its token is still the greatest.
        """
        ...

    async def release(self, name: str, token: int) -> bool:
        """Give a lease back; whether it was still held."""
        ...

    async def look(self, *names: str) -> Mapping[str, Lease]:
        """The leases of these names, as far as there ever was a holder."""
        ...


class Channels(Protocol):
    """Messages to everybody who listens at this moment."""

    async def publish(self, channel: str, data: bytes) -> None: ...

    def subscribe(
        self, *channels: str
    ) -> AbstractAsyncContextManager[AsyncIterator[Message | None]]:
        """Messages from the moment the block is entered; None: some may have been missed."""
        ...


class Streams(Protocol):
    """Bounded logs that are read from any entry on."""

    async def append(self, stream: str, data: bytes, *, most: int, ttl: float | None = None) -> str:
        """Add an entry and return its id; the oldest go beyond `most` entries."""
        ...

    async def entries(
        self, stream: str, after: str = "0-0", *, limit: int = 100, wait: float = 0.0
    ) -> list[StreamEntry]:
        """Entries after an id, oldest first; waits `wait` seconds for the first one."""
        ...

    async def ends(self, stream: str) -> StreamEnds | None:
        """What a stream still has; None if it is empty or unknown."""
        ...

    async def trim(self, stream: str, before: str | None = None) -> None:
        """Drop the entries before an id; all if none is given."""
        ...


class SharedLimits(Protocol):
    """Counts that all replicas share."""

    async def count(self, key: str, amount: int = 1, *, ttl: float) -> int:
        """Add to a counter and return its value; it starts again `ttl` seconds after its first."""
        ...

    async def take(self, key: str, *, limit: int, window: float, amount: int = 1) -> Allowance:
        """Do `amount` more within a sliding window of `window` seconds, if `limit` allows it."""
        ...


class CoordinatorLine(Protocol):
    """The way to what all replicas share."""

    @property
    def health(self) -> Health:
        """Whether it answered when it was last asked, which is at least once a second."""
        ...

    @property
    def health_changed(self) -> Bell:
        """Rings when `health` changes."""
        ...


class Coordinator(ABC):
    """What all replicas share. Every method may raise `CoordinatorDown`, within seconds."""

    def __init__(
        self,
        line: CoordinatorLine,
        *,
        records: Records,
        leases: Leases,
        channels: Channels,
        streams: Streams,
        limits: SharedLimits,
    ) -> None:
        self._line = line
        self.records = records
        self.leases = leases
        self.channels = channels
        self.streams = streams
        self.limits = limits
        self.health_changed = line.health_changed

    @property
    def health(self) -> Health:
        """Whether it answered when it was last asked."""
        return self._line.health

    @abstractmethod
    async def time(self) -> float:
        """Seconds since 1970 by the coordinator's clock, the same for all replicas."""


class Subscriber:
    """What one subscription has not taken yet; bounded, so that a slow one misses some."""

    # beyond that the reader is told that it missed some, and reads the records instead
    MOST = 1024

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[Message | None] = asyncio.Queue(self.MOST)
        self._missed = False

    def feed(self, message: Message | None) -> None:
        """Take a message, or note that some were missed."""
        if message is None or self._waiting.full():
            self._missed = True
            # with an empty queue nobody would look again
            if self._waiting.empty():
                self._waiting.put_nowait(None)
                self._missed = False
            return
        self._waiting.put_nowait(message)

    def __aiter__(self) -> AsyncIterator[Message | None]:
        return self

    async def __anext__(self) -> Message | None:
        # only after what was queued before the gap: the reader looks at everything once
        if self._missed and self._waiting.empty():
            self._missed = False
            return None
        return await self._waiting.get()


class ChannelSubscribers:
    """Who listens to which channel, in this process."""

    def __init__(self) -> None:
        self._subscribers: dict[str, set[Subscriber]] = {}

    @property
    def channels(self) -> AbstractSet[str]:
        """Those that somebody listens to."""
        return self._subscribers.keys()

    @contextmanager
    def listen(self, *channels: str) -> Generator[Subscriber]:
        """Within the block, the value gets the messages of these channels."""
        subscriber = Subscriber()
        for channel in channels:
            self._subscribers.setdefault(channel, set()).add(subscriber)
        try:
            yield subscriber
        finally:
            # nothing is awaited here: a second cancellation must not leave a subscriber behind
            for channel in channels:
                listening = self._subscribers[channel]
                listening.discard(subscriber)
                if not listening:
                    del self._subscribers[channel]

    def feed(self, message: Message) -> None:
        """Bring a message to those who listen."""
        # a copy; `Subscriber.feed` never blocks, so that a slow one cannot hold up the others
        for subscriber in tuple(self._subscribers.get(message.channel, ())):
            subscriber.feed(message)

    def note_gap(self) -> None:
        """Tell everybody that messages may have been missed."""
        for subscriber in {one for many in self._subscribers.values() for one in many}:
            subscriber.feed(None)


def part_of(now: float, window: float) -> int:
    """In which part of a sliding window a moment is."""
    return math.floor(now / (window / WINDOW_PARTS))
