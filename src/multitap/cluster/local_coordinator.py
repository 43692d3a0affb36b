"""A coordinator in the memory of one process, for tests and for several workers."""

import asyncio
import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec

from multitap.cluster.coordinator import (
    WINDOW_PARTS,
    Allowance,
    ChannelSubscribers,
    Coordinator,
    Health,
    Lease,
    Message,
    StreamEnds,
    StreamEntry,
    part_of,
)
from multitap.tasks import Bell

# No locks in this module: no method awaits between reading and changing a value, so each is
# atomic, as in Redis.
Clock = Callable[[], float]

_SWEEP = 256
"""Writes between two sweeps of expired values: a sweep looks at all values, so it is rare."""


class LocalRecords:
    """See `Records`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[bytes, float]] = {}
        self._writes = 0

    async def read(self, key: str) -> bytes | None:
        return self._read(key)

    async def write(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
        self._write(key, value, ttl)

    async def swap(
        self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None
    ) -> bool:
        if self._read(key) != expected:
            return False
        self._write(key, value, ttl)
        return True

    async def touch(self, key: str, ttl: float) -> bool:
        value = self._read(key)
        if value is not None:
            self._write(key, value, ttl)
        return value is not None

    async def delete(self, key: str) -> bool:
        if self._read(key) is None:
            return False
        del self._kept[key]
        return True

    async def scan(self, prefix: str) -> Mapping[str, bytes]:
        now = self._clock()
        return {
            key: value
            for key, (value, until) in self._kept.items()
            if key.startswith(prefix) and until > now
        }

    def _read(self, key: str) -> bytes | None:
        value, until = self._kept.get(key, (b"", 0.0))
        return value if until > self._clock() else None

    def _write(self, key: str, value: bytes, ttl: float | None) -> None:
        now = self._clock()
        self._kept[key] = value, math.inf if ttl is None else now + ttl
        self._writes += 1
        if self._writes % _SWEEP == 0:
            self._kept = {name: record for name, record in self._kept.items() if record[1] > now}


class LocalLeases:
    """See `Leases`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # never swept: the next token must be greater than the last, however long ago that was
        self._kept: dict[str, tuple[str, int, float, bytes]] = {}
        self._connected: set[str] = set()

    async def acquire(
        self,
        name: str,
        holder: str,
        *,
        ttl: float,
        note: bytes = b"",
        guard: tuple[str, int] | None = None,
    ) -> int | None:
        now = self._clock()
        if guard is not None and self._kept.get(guard[0], ("", 0))[1] != guard[1]:
            return None
        owner, last, until, _ = self._kept.get(name, ("", 0, 0.0, b""))
        if owner not in {"", holder} and (until > now or owner in self._connected):
            return None
        # by the clock: greater than every earlier one, even if all of them were forgotten
        token = max(last + 1, int(now * 1000))
        self._kept[name] = holder, token, now + ttl, note
        return token

    async def renew(self, held: Mapping[str, int], *, ttl: float) -> frozenset[str]:
        now = self._clock()
        renewed: set[str] = set()
        for name, token in held.items():
            owner, last, _, note = self._kept.get(name, ("", 0, 0.0, b""))
            if owner and last == token:
                self._kept[name] = owner, token, now + ttl, note
                renewed.add(name)
        return frozenset(renewed)

    async def release(self, name: str, token: int) -> bool:
        owner, last, until, note = self._kept.get(name, ("", 0, 0.0, b""))
        if not owner or last != token:
            return False
        self._kept[name] = "", token, until, note
        return until > self._clock()

    async def look(self, *names: str) -> Mapping[str, Lease]:
        now = self._clock()
        leases = {name: self._kept[name] for name in names if name in self._kept}
        return {
            name: Lease(holder, token, math.inf if holder in self._connected else until - now, note)
            for name, (holder, token, until, note) in leases.items()
        }

    def connect(self, holder: str) -> None:
        """Let no lease of this holder expire while its process lives.

        One that gets no time from a busy machine still runs its servers: they must not be started
        a second time before it has ended.
        """
        self._connected.add(holder)

    def disconnect(self, holder: str, ttl: float) -> None:
        """Let no lease of a holder that is gone last longer than `ttl`."""
        self._connected.discard(holder)
        latest = self._clock() + ttl
        for name, (owner, token, until, note) in self._kept.items():
            if owner == holder and until > latest:
                self._kept[name] = owner, token, latest, note

    def forget(self) -> None:
        """Drop all leases, like a coordinator that was flushed."""
        self._kept.clear()


class LocalChannels:
    """See `Channels`."""

    def __init__(self) -> None:
        self._subscriptions = ChannelSubscribers()

    async def publish(self, channel: str, data: bytes) -> None:
        self._subscriptions.feed(Message(channel, data))

    @asynccontextmanager
    async def subscribe(self, *channels: str) -> AsyncGenerator[AsyncIterator[Message | None]]:
        with self._subscriptions.listen(*channels) as subscriber:
            yield subscriber


class _Stream(msgspec.Struct):
    entries: OrderedDict[str, bytes]
    until: float = math.inf
    last: tuple[int, int] = (0, 0)


class LocalStreams:
    """See `Streams`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, _Stream] = {}
        # one for all streams: readers check again, which is cheap in memory
        self._grown = Bell()
        self._appended = 0

    async def append(self, stream: str, data: bytes, *, most: int, ttl: float | None = None) -> str:
        now = self._clock()
        entry_log = self._find(stream)
        if entry_log is None:
            entry_log = self._kept[stream] = _Stream(OrderedDict())
        moment = int(now * 1000)
        last, number = entry_log.last
        # ids increase even within one millisecond, or if the clock stands still
        entry_log.last = (moment, 0) if moment > last else (last, number + 1)
        entry_id = "{}-{}".format(*entry_log.last)
        entry_log.entries[entry_id] = data
        while len(entry_log.entries) > most:
            entry_log.entries.popitem(last=False)
        if ttl is not None:
            entry_log.until = now + ttl
        self._appended += 1
        if self._appended % _SWEEP == 0:
            self._kept = {
                name: entry_log for name, entry_log in self._kept.items() if entry_log.until > now
            }
        self._grown.ring()
        return entry_id

    async def entries(
        self, stream: str, after: str = "0-0", *, limit: int = 100, wait: float = 0.0
    ) -> list[StreamEntry]:
        if (new_entries := self._after(stream, after, limit)) or wait <= 0:
            return new_entries
        # asyncio's own: a scope of anyio may take a cancellation of its task for its own
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                while not (new_entries := self._after(stream, after, limit)):
                    await self._grown.wait()
        return new_entries

    async def ends(self, stream: str) -> StreamEnds | None:
        entry_log = self._find(stream)
        if entry_log is None or not entry_log.entries:
            return None
        return StreamEnds(next(iter(entry_log.entries)), next(reversed(entry_log.entries)))

    async def trim(self, stream: str, before: str | None = None) -> None:
        entry_log = self._find(stream)
        if entry_log is None:
            return
        if before is None:
            del self._kept[stream]
            return
        limit = order(before)
        for entry_id in [number for number in entry_log.entries if order(number) < limit]:
            del entry_log.entries[entry_id]

    def _find(self, stream: str) -> _Stream | None:
        entry_log = self._kept.get(stream)
        return entry_log if entry_log is not None and entry_log.until > self._clock() else None

    def _after(self, stream: str, after: str, limit: int) -> list[StreamEntry]:
        entry_log, least = self._find(stream), order(after)
        if entry_log is None:
            return []
        newer = [item for item in entry_log.entries.items() if order(item[0]) > least]
        return [StreamEntry(*item) for item in newer[:limit]]


class LocalLimits:
    """See `SharedLimits`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[str, tuple[int, float]] = {}
        self._windows: dict[str, tuple[dict[int, int], float]] = {}
        self._uses = 0

    async def count(self, key: str, amount: int = 1, *, ttl: float) -> int:
        now = self._clock()
        self._sweep(now)
        value, until = self._counts.get(key, (0, 0.0))
        value, until = (value + amount, until) if until > now else (amount, now + ttl)
        self._counts[key] = value, until
        return value

    async def take(self, key: str, *, limit: int, window: float, amount: int = 1) -> Allowance:
        now = self._clock()
        self._sweep(now)
        part = part_of(now, window)
        parts, _ = self._windows.get(key, ({}, 0.0))
        parts = {start: used for start, used in parts.items() if start > part - WINDOW_PARTS}
        used = sum(parts.values())
        if used + amount > limit:
            self._windows[key] = parts, now + window
            oldest = min(parts, default=part)
            wait = (oldest + WINDOW_PARTS) * (window / WINDOW_PARTS) - now
            return Allowance(allowed=False, left=limit - used, retry_after=wait)
        parts[part] = parts.get(part, 0) + amount
        self._windows[key] = parts, now + window
        return Allowance(allowed=True, left=limit - used - amount)

    def _sweep(self, now: float) -> None:
        self._uses += 1
        if self._uses % _SWEEP == 0:
            self._counts = {key: count for key, count in self._counts.items() if count[1] > now}
            self._windows = {
                key: window for key, window in self._windows.items() if window[1] > now
            }


class _Nowhere(msgspec.Struct, frozen=True):
    """See `CoordinatorLine`; there is no connection."""

    health: Health
    health_changed: Bell


class LocalCoordinator(Coordinator):
    """See `Coordinator`; always up."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock = clock or _steady_clock()
        self._local_leases = LocalLeases(clock)
        super().__init__(
            _Nowhere(Health(is_up=True), Bell()),
            records=LocalRecords(clock),
            leases=self._local_leases,
            channels=LocalChannels(),
            streams=LocalStreams(clock),
            limits=LocalLimits(clock),
        )

    async def time(self) -> float:
        return self._clock()

    def add_holder(self, holder: str) -> None:
        """Keep the leases of a holder until `drop_holder`, even if it does not renew them."""
        self._local_leases.connect(holder)

    def drop_holder(self, holder: str) -> None:
        """Let the leases of a holder that has ended expire as soon as those of any other."""
        self._local_leases.disconnect(holder, self.lease_ttl)


def _steady_clock() -> Clock:
    """Seconds since 1970 by a clock that never jumps, so that leases and tokens stay valid."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


def order(entry_id: str) -> tuple[int, int]:
    """The sort key of a stream's entry ids."""
    moment, _, number = entry_id.partition("-")
    return int(moment), int(number or 0)
