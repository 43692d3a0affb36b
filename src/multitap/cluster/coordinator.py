"""What several gateways share to act as one: records, leases, messages, streams and limits."""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Protocol, TypeVar

import anyio
import msgspec

from multitap.errors import CoordinatorDown
from multitap.tasks import Bell

_T = TypeVar("_T")

WINDOW_PARTS = 60
"""Parts of a window, which expire one by one: a window of a minute is exact to a second."""


_PATIENCE = 10.0  # seconds in which a coordinator that is busy or restarts may come back
_AGAIN = 0.1  # seconds between two attempts meanwhile
_JUMP = 1.0  # seconds; slower drift is corrected by the regular look


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """The state of a lease: its current or last holder."""

    holder: str
    """Empty once it was released."""
    token: int
    """The fencing token, greater than those of all earlier holders."""
    expires_in: float
    """Seconds by the coordinator's clock; zero or negative once it has expired."""
    note: bytes = b""
    """Data of the holder for other replicas."""

    @property
    def is_held(self) -> bool:
        return bool(self.holder) and self.expires_in > 0


class StreamEntry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a stream."""

    id: str
    """`MILLISECONDS-NUMBER`; increases within a stream."""
    data: bytes


class StreamEnds(msgspec.Struct, frozen=True, array_like=True):
    """The oldest and the newest entry that a stream still has, by id."""

    first: str
    last: str


class Allowance(msgspec.Struct, frozen=True, array_like=True):
    """Whether a rate limit allows an action now."""

    allowed: bool
    left: int
    """How much of the limit is left in this window."""
    retry_after: float = 0.0
    """Seconds until a retry may succeed, if it was not allowed."""


class Message(msgspec.Struct, frozen=True, array_like=True):
    """A published message."""

    channel: str
    data: bytes


class Health(msgspec.Struct, frozen=True):
    """Whether the coordinator answers."""

    is_up: bool
    reason: str = ""
    """Why it does not."""


class Records(Protocol):
    """Small values by key, with an optional lifetime."""

    async def read(self, key: str) -> bytes | None: ...

    async def write(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
        """Store a value, for `ttl` seconds if given."""
        ...

    async def swap(
        self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None
    ) -> bool:
        """Replace a value if it equals `expected`, None if missing; returns whether it did."""
        ...

    async def touch(self, key: str, ttl: float) -> bool:
        """Set the lifetime of a value to `ttl` seconds from now; False if there is none."""
        ...

    async def delete(self, key: str) -> bool:
        """Remove a value; returns whether there was one."""
        ...

    async def scan(self, prefix: str) -> Mapping[str, bytes]:
        """All values whose keys have this prefix."""
        ...


class Leases(Protocol):
    """Exclusive leases with fencing tokens.

    A lease expires unless it is renewed. Each new holder gets a greater fencing token, even if the
    coordinator has lost all data in between: tokens follow its clock.
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
        """Acquire a lease; returns its fencing token, or None while another holder has it.

        A holder that already has it gets a new token.

        Args:
            note: Data of the holder for other replicas.
            guard: Another lease and its token; without that token, nothing is acquired.
        """
        ...

    async def renew(self, held: Mapping[str, int], *, ttl: float) -> frozenset[str]:
        """Renew leases, given by name and token; returns the names of those that were renewed.

        An expired lease is renewed as well if it was not taken: its token is still the greatest.
        """
        ...

    async def release(self, name: str, token: int) -> bool:
        """Release a lease; returns whether it was still held."""
        ...

    async def look(self, *names: str) -> Mapping[str, Lease]:
        """The leases with these names, without those that never had a holder."""
        ...


class Channels(Protocol):
    """Messages to current subscribers; nothing is stored."""

    async def publish(self, channel: str, data: bytes) -> None: ...

    def subscribe(
        self, *channels: str
    ) -> AbstractAsyncContextManager[AsyncIterator[Message | None]]:
        """While entered, iterate over messages; None means that some may have been missed."""
        ...


class Streams(Protocol):
    """Bounded logs that can be read from any entry."""

    async def append(self, stream: str, data: bytes, *, most: int, ttl: float | None = None) -> str:
        """Append an entry and return its id; beyond `most` entries, the oldest are dropped."""
        ...

    async def entries(
        self, stream: str, after: str = "0-0", *, limit: int = 100, wait: float = 0.0
    ) -> list[StreamEntry]:
        """The entries after an id, oldest first; waits up to `wait` seconds for the first one."""
        ...

    async def ends(self, stream: str) -> StreamEnds | None:
        """The first and last entry of a stream; None if it is empty or unknown."""
        ...

    async def trim(self, stream: str, before: str | None = None) -> None:
        """Drop the entries before an id, or all entries."""
        ...


class SharedLimits(Protocol):
    """Counts that all replicas share."""

    async def count(self, key: str, amount: int = 1, *, ttl: float) -> int:
        """Add to a counter and return its value; it is reset `ttl` seconds after its first use."""
        ...

    async def take(self, key: str, *, limit: int, window: float, amount: int = 1) -> Allowance:
        """Take `amount` from a limit of `limit` per sliding window of `window` seconds."""
        ...


class CoordinatorLine(Protocol):
    """The connection to the coordinator."""

    @property
    def health(self) -> Health:
        """Whether it answered its last request; it is asked at least once a second."""
        ...

    @property
    def health_changed(self) -> Bell:
        """Rings when `health` changes."""
        ...


class Coordinator(ABC):
    """The shared state of all replicas. Every method may raise `CoordinatorDown` within seconds."""

    lease_ttl = 1.6
    """Seconds after its last renewal at which another replica may take a server's lease."""
    outlives_us = True
    """Whether what it has outlives all replicas."""

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
        """Whether it answered its last request."""
        return self._line.health

    async def until_back(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """What `work` returns; while the coordinator is away for a moment, it is tried again.

        Only for work that may be done twice: an answer may get lost after it was done.

        Raises:
            CoordinatorDown: It has not come back.
        """
        until = anyio.current_time() + _PATIENCE
        while True:
            try:
                return await work()
            except CoordinatorDown:
                if anyio.current_time() >= until:
                    raise
            await anyio.sleep(_AGAIN)

    @abstractmethod
    async def time(self) -> float:
        """Seconds since 1970 by the coordinator's clock, the same for all replicas."""


class CoordinatorClock:
    """The coordinator's clock, read without asking it each time.

    Before it is asked for the first time, this machine's clock, which may differ by seconds.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._ahead = self._own_ahead = _wall_ahead()

    def __call__(self) -> float:
        return time.monotonic() + self._ahead

    async def adjust(self) -> None:
        """Ask the coordinator.

        Raises:
            CoordinatorDown: It does not answer.
        """
        before = time.monotonic()
        moment = await self._coordinator.time()
        self._ahead = moment - (before + time.monotonic()) / 2
        self._own_ahead = _wall_ahead()

    async def check(self) -> None:
        """Ask the coordinator if this machine has slept or its clock was set.

        Raises:
            CoordinatorDown: It does not answer.
        """
        if abs(_wall_ahead() - self._own_ahead) > _JUMP:
            await self.adjust()


def _wall_ahead() -> float:
    """Changes if the monotonic clock stops or the other one is set."""
    return time.time() - time.monotonic()


class Subscriber:
    """The unread messages of one subscription; bounded, so that a slow reader misses some."""

    # beyond that the reader learns that it missed some, and reads the records instead
    MOST = 1024

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[Message | None] = asyncio.Queue(self.MOST)
        self._missed = False

    def feed(self, message: Message | None) -> None:
        """Queue a message, or note that some were missed."""
        if message is None or self._waiting.full():
            self._missed = True
            # or a reader of an empty queue would not look again
            if self._waiting.empty():
                self._waiting.put_nowait(None)
                self._missed = False
            return
        self._waiting.put_nowait(message)

    def __aiter__(self) -> AsyncIterator[Message | None]:
        return self

    async def __anext__(self) -> Message | None:
        # only after the messages queued before the gap
        if self._missed and self._waiting.empty():
            self._missed = False
            return None
        return await self._waiting.get()


class ChannelSubscribers:
    """The subscribers of each channel in this process."""

    def __init__(self) -> None:
        self._subscribers: dict[str, set[Subscriber]] = {}

    @property
    def channels(self) -> AbstractSet[str]:
        """The channels with subscribers."""
        return self._subscribers.keys()

    @contextmanager
    def listen(self, *channels: str) -> Generator[Subscriber]:
        """While entered, the yielded subscriber gets the messages of these channels."""
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
        """Deliver a message to the subscribers of its channel."""
        # a copy; `Subscriber.feed` never blocks, so that a slow one cannot hold up the others
        for subscriber in tuple(self._subscribers.get(message.channel, ())):
            subscriber.feed(message)

    def note_gap(self, channel: str) -> None:
        """Tell the subscribers of a channel that messages may have been missed."""
        for subscriber in tuple(self._subscribers.get(channel, ())):
            subscriber.feed(None)


def part_of(now: float, window: float) -> int:
    """The number of the window part that contains a moment."""
    return math.floor(now / (window / WINDOW_PARTS))
