"""One audit log for all replicas: each sends its entries to a stream, and one of them writes them.

A batch of entries has an id, which the log remembers: a batch that is sent or read twice, because
somebody died in between, is written once.
"""

import logging
import secrets
from collections import deque
from contextlib import suppress

import anyio
import msgspec

from multitap.cluster.coordinator import CoordinatorDown, StreamEntry
from multitap.gateway.replicas.replica_bus import ReplicaBus
from multitap.store import Store
from multitap.store.audit_file import AuditBatch
from multitap.trust.single_use import WINDOW

logger = logging.getLogger(__name__)

MOST_BATCHES = 1_000_000
"""Batches that wait to be written; beyond that, the oldest are lost."""
LEASE = 3.0
"""Seconds after which another replica takes over from a writer that is gone."""
PACE = 0.05
"""Seconds between two messages, each with all entries since the last: one for each call would cost
more than the call."""
_AGAIN = 0.5
_STREAM = "audit"
_PAGE = 100

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AuditBatch).decode


class SharedAudit:
    """Sends this replica's entries to the stream, and writes all entries while it has the lease."""

    def __init__(self, bus: ReplicaBus, store: Store) -> None:
        self._bus = bus
        self._coordinator = bus.coordinator
        self._store = store
        self._waiting: deque[AuditBatch] = deque()
        self._lock = anyio.Lock()
        self.is_delayed = False
        """Whether the last entries could not be sent."""

    async def send(self) -> None:
        """Send all waiting entries; those that cannot be sent now are sent later."""
        try:
            await self._send_all()
            self.is_delayed = False
        except CoordinatorDown as exc:
            self.is_delayed = True
            logger.debug("the audit log waits: %s", exc)

    async def keep_sending(self) -> None:
        """Send entries soon after they are recorded: waiting ones are lost with this process."""
        while True:
            # entries that could not be sent are tried again without a new one
            if self.is_delayed:
                await anyio.sleep(_AGAIN)
            else:
                await self._store.wait_pending()
            await self.send()
            await anyio.sleep(PACE)

    async def _send_all(self) -> None:
        # one at a time, so that the entries of a replica stay in order; callers that wait for the
        # lock find their entries sent
        async with self._lock:
            if bodies := self._store.take_audit_bodies():
                self._waiting.append(AuditBatch(secrets.token_urlsafe(12), bodies))
            while self._waiting:
                await self._bus.clock.check()
                sealed = self._bus.seal.seal(_encode(self._waiting[0]), _STREAM)
                # removed only once it is sent: if the reply is lost it goes twice, with the same id
                await self._coordinator.streams.append(_STREAM, sealed, most=MOST_BATCHES)
                self._waiting.popleft()

    async def run(self) -> None:
        """Write the entries of all replicas, while this one has the lease."""
        while True:
            try:
                token = await self._coordinator.leases.acquire(_STREAM, self._bus.name, ttl=LEASE)
                if token is not None:
                    await self._write(token)
            except CoordinatorDown as exc:
                logger.debug("the audit log waits: %s", exc)
            await anyio.sleep(_AGAIN)

    async def _write(self, token: int) -> None:
        streams, leases = self._coordinator.streams, self._coordinator.leases
        try:
            while _STREAM in await leases.renew({_STREAM: token}, ttl=LEASE):
                entries = await streams.entries(_STREAM, limit=_PAGE, wait=LEASE / 3)
                # a replica that was suspended meanwhile must not write beside its successor
                if not entries or _STREAM not in await leases.renew({_STREAM: token}, ttl=LEASE):
                    continue
                batches = [one for one in map(self._open, entries) if one is not None]
                if batches and not await self._store.write_audit_batches(batches):
                    return  # another one may have a disk that works
                # only what is on disk: if we die before this, the next one reads the same ids
                await streams.trim(_STREAM, before=_after(entries[-1].id))
                # they are safe in the stream, and one transaction for many costs less
                if len(entries) < _PAGE:
                    await anyio.sleep(_AGAIN)
        finally:
            # given back also when cancelled, or the next one waits for its end
            with anyio.CancelScope(shield=True), suppress(CoordinatorDown):
                await leases.release(_STREAM, token)

    def _open(self, entry: StreamEntry) -> AuditBatch | None:
        opened = self._bus.seal.unseal(entry.data, _STREAM)
        # Sealed just before it is appended, by the same clock: whatever is older was copied. Until
        # then, the log knows the batch by its id.
        if opened is None or _time(entry.id) - opened.time > WINDOW:
            logger.warning("a batch of audit entries is not ours, or was sent again: %s", entry.id)
            return None
        try:
            return _decode(opened.data)
        except msgspec.MsgspecError:
            logger.warning("a batch of audit entries cannot be read: %s", entry.id)
            return None


def _time(entry_id: str) -> float:
    return int(entry_id.partition("-")[0]) / 1000


def _after(entry_id: str) -> str:
    moment, _, number = entry_id.partition("-")
    return f"{moment}-{int(number) + 1}"
