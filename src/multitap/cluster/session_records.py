"""What every replica can read about a session: its record, and its latest events."""

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import AsyncIterator
from math import inf
from typing import Any

import anyio
import msgspec
from msgspec import Raw

from multitap.catalog.audience import Audience
from multitap.cluster.bus import ReplicaBus
from multitap.cluster.coordinator import StreamEntry
from multitap.errors import CoordinatorDown
from multitap.gateway.client import Client
from multitap.principal import Principal
from multitap.trust.single_use import MOST_REMEMBERED, WINDOW

_PURPOSE = "session"


class SessionRecord(msgspec.Struct, array_like=True):
    """The state of a session, without its requests in progress."""

    principal: Principal
    """The principal that opened it, and the only one that may use it."""
    holder: str
    audience: Audience
    version: str
    capabilities: bytes
    info: dict[str, Any]
    log_level: str | None
    uris: tuple[str, ...]
    """The resources that it is subscribed to."""
    home: str
    """The replica that notifies the client of changes."""

    @classmethod
    def of(cls, client: Client, home: str) -> "SessionRecord":
        return cls(
            client.principal,
            client.holder,
            client.audience,
            client.version,
            bytes(client.capabilities),
            dict(client.info),
            client.log_level,
            tuple(client.followed),
            home,
        )

    def introduce(self, client: Client) -> None:
        """Restore what a client said in its handshake."""
        client.introduce(self.version, Raw(self.capabilities), self.info)
        client.log_level = self.log_level
        client.followed = set(self.uris)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SessionRecord).decode


class SessionRecords:
    """The sessions of all replicas; each is kept for a time after its last use.

    Args:
        ttl: Seconds without a message after which a session ends.
    """

    def __init__(self, bus: ReplicaBus, ttl: float) -> None:
        self._records = bus.coordinator.records
        self._seal = bus.seal
        self._ttl = ttl
        self._newest: dict[str, float] = {}
        """When the records that this replica knows were sealed; infinity for ended sessions."""

    async def write(
        self, session_id: str, record: SessionRecord, *, ttl: float | None = None
    ) -> None:
        # sealed for this id: a record copied to another key does not open
        sealed = self._seal.seal(_encode(record), f"{_PURPOSE} {session_id}")
        self._note(session_id, self._seal.clock())
        await self._records.write(_key(session_id), sealed, ttl=ttl or self._ttl)

    async def read(self, session_id: str) -> SessionRecord | None:
        sealed = await self._records.read(_key(session_id))
        opened = sealed and self._seal.unseal(sealed, f"{_PURPOSE} {session_id}")
        # replicas write independently of each other, so a little older is not an old copy
        if not opened or opened.time < self._newest.get(_key(session_id), -inf) - WINDOW:
            return None
        self._note(session_id, opened.time)
        try:
            return _decode(opened.data)
        except msgspec.MsgspecError:  # written by another version with other fields
            return None

    async def touch(self, session_id: str) -> bool:
        """Prolong a session; returns whether it still exists."""
        return await self._records.touch(_key(session_id), self._ttl)

    async def delete(self, session_id: str) -> bool:
        self.end(session_id)
        return await self._records.delete(_key(session_id))

    def end(self, session_id: str) -> None:
        """Refuse the record of a session that has ended, even if it is put back."""
        self._note(session_id, inf)

    def _note(self, session_id: str, moment: float) -> None:
        key = _key(session_id)
        # removed and added again, so that the oldest is forgotten first
        self._newest[key] = max(moment, self._newest.pop(key, moment))
        if len(self._newest) > MOST_REMEMBERED:
            del self._newest[next(iter(self._newest))]


def _key(session_id: str) -> str:
    return f"session:{name_of(session_id)}"


def name_of(session_id: str) -> str:
    """A public name for a session; unlike its id, it does not grant access."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:32]


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


_decode_event = msgspec.msgpack.Decoder(KeptEvent).decode


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
        room: Their bytes, as far as this replica sends them; the newest may be longer.
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
        events, _ = await self._after(_events_key(session_id), "0-0")
        # by number: one that was written twice, or put back by somebody, counts once
        return [*{event.number: event for event in events if event.stream == stream}.values()]

    async def follow(self, session_id: str, stream: str) -> AsyncIterator[KeptEvent]:
        """The kept events, then new ones; ends with the stream, or when its replica is gone."""
        key, cursor, replica, numbers = _events_key(session_id), "0-0", "", set[int]()
        while True:
            # asked before the last look: what a replica wrote before it went is still read
            alive = bool(replica) and self._bus.is_alive(replica)
            is_first = cursor == "0-0"
            events, cursor = await self._after(key, cursor)
            for event in events:
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
        await self._streams.trim(_events_key(session_id))

    def forget(self, session_id: str) -> None:
        """Forget a session that is no longer here."""
        self._written.pop(session_id, None)

    async def _write(self, session_id: str, event: KeptEvent) -> None:
        key = _events_key(session_id)
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
        events: list[KeptEvent] = []
        while entries := await self._streams.entries(key, cursor, limit=_PAGE):
            cursor = entries[-1].id
            opened = (self._open(entry, key) for entry in entries)
            events += [event for event in opened if event is not None]
            if len(entries) < _PAGE:
                break
        return events, cursor

    def _open(self, entry: StreamEntry, key: str) -> KeptEvent | None:
        opened = self._bus.seal.unseal(entry.data, key)
        try:
            return _decode_event(opened.data) if opened is not None else None
        except msgspec.MsgspecError:
            return None


def _events_key(session_id: str) -> str:
    return f"events:{name_of(session_id)}"
