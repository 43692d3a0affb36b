"""The events of session streams, kept where every replica can read them."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator

import anyio
import msgspec

from multitap.cluster.coordinator import CoordinatorDown, StreamEntry
from multitap.gateway.replicas.replica_bus import ReplicaBus
from multitap.gateway.replicas.session_records import name_of

logger = logging.getLogger(__name__)

MOST_WAITING = 8192
"""Events that wait to be written while the coordinator is slow or down; the oldest are dropped."""
_AGAIN = 0.25
"""Seconds until another attempt to write."""
_LOOK = 1.0
"""Seconds between two checks that the replica that writes a stream is alive."""
_PAGE = 256


class KeptEvent(msgspec.Struct, array_like=True):
    """One event, or with number 0 the beginning of a stream."""

    stream: str
    number: int
    encoded: bytes
    """The event; for the beginning, the id of the request that the stream answers."""
    is_last: bool
    replica: str
    """The replica that sent it."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(KeptEvent).decode


class _Written:
    """The entries that this replica has written for one session."""

    __slots__ = ("sizes", "total")

    def __init__(self) -> None:
        self.sizes: deque[tuple[str, int]] = deque()
        """The entries and their sizes, oldest first."""
        self.total = 0


class KeptEvents:
    """Writes the events of this replica's streams, and reads those of all.

    Args:
        bus: Has the coordinator, and knows the replicas.
        most: Events that are kept for a session.
        room: Their bytes, as far as this replica sends them; the newest may be longer.
        age: Seconds that they are kept.
    """

    def __init__(self, bus: ReplicaBus, *, most: int, room: int, age: float) -> None:
        self._bus = bus
        self._streams = bus.coordinator.streams
        self._most, self._room, self._age = most, room, age
        self._waiting: deque[tuple[str, KeptEvent]] = deque()
        self._stirred = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._written: dict[str, _Written] = {}

    def keep(self, session_id: str, event: KeptEvent) -> None:
        """Write an event soon; never waits."""
        if len(self._waiting) >= MOST_WAITING:  # the coordinator is down: drop the oldest
            self._waiting.popleft()
        self._waiting.append((session_id, event))
        self._drained.clear()
        self._stirred.set()

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            # before the queue is read: events that are added later set it again
            self._stirred.clear()
            while self._waiting:
                session_id, event = self._waiting[0]
                try:
                    await self._write(session_id, event)
                except CoordinatorDown as exc:
                    logger.debug("events wait: %s", exc)
                    await anyio.sleep(_AGAIN)
                    continue
                # only now: it counts as waiting until it is written
                if self._waiting and self._waiting[0][1] is event:
                    self._waiting.popleft()
            # nothing was awaited since the queue was found empty
            self._drained.set()
            await self._stirred.wait()

    async def flush(self, within: float) -> None:
        """Wait until everything is written."""
        with anyio.move_on_after(within):
            await self._drained.wait()

    async def read(self, session_id: str, stream: str) -> list[KeptEvent]:
        """The kept events of a stream, oldest first."""
        found, _ = await self._after(_key(session_id), "0-0")
        # by number: one that was written twice, or put back by somebody, counts once
        return [*{one.number: one for one in found if one.stream == stream}.values()]

    async def follow(self, session_id: str, stream: str) -> AsyncIterator[KeptEvent]:
        """The kept events, then new ones; ends with the stream, or when its replica is gone."""
        key, cursor, replica, numbers = _key(session_id), "0-0", "", set[int]()
        while True:
            # asked before the last look: what a replica wrote before it went is still read
            alive = bool(replica) and self._bus.is_alive(replica)
            is_first = cursor == "0-0"
            found, cursor = await self._after(key, cursor)
            for event in found:
                if event.stream == stream and event.number not in numbers:
                    numbers.add(event.number)
                    replica = event.replica
                    yield event
                    if event.is_last:
                        return
            if not replica or not (alive or is_first):
                return
            await self._streams.entries(key, cursor, limit=1, wait=_LOOK)

    async def delete(self, session_id: str) -> None:
        self.forget(session_id)
        await self._streams.trim(_key(session_id))

    def forget(self, session_id: str) -> None:
        """Forget a session that is no longer here."""
        self._written.pop(session_id, None)

    async def _write(self, session_id: str, event: KeptEvent) -> None:
        key = _key(session_id)
        sealed = self._bus.seal.seal(_encode(event), key)
        entry_id = await self._streams.append(key, sealed, most=self._most, ttl=self._age)
        written = self._written.setdefault(session_id, _Written())
        written.sizes.append((entry_id, len(sealed)))
        written.total += len(sealed)
        if len(written.sizes) > self._most:  # the coordinator has dropped that already
            written.total -= written.sizes.popleft()[1]
        is_too_much = written.total > self._room
        while len(written.sizes) > 1 and written.total > self._room:
            written.total -= written.sizes.popleft()[1]
        if is_too_much:
            await self._streams.trim(key, before=written.sizes[0][0])

    async def _after(self, key: str, cursor: str) -> tuple[list[KeptEvent], str]:
        """The events of a session after an entry, and the last entry that was read."""
        found: list[KeptEvent] = []
        while entries := await self._streams.entries(key, cursor, limit=_PAGE):
            cursor = entries[-1].id
            opened = (self._open(entry, key) for entry in entries)
            found += [one for one in opened if one is not None]
            if len(entries) < _PAGE:
                break
        return found, cursor

    def _open(self, entry: StreamEntry, key: str) -> KeptEvent | None:
        opened = self._bus.seal.unseal(entry.data, key)
        try:
            return _decode(opened.data) if opened is not None else None
        except msgspec.MsgspecError:
            return None


def _key(session_id: str) -> str:
    return f"events:{name_of(session_id)}"
