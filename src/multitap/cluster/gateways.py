"""What gateways of a cluster agree on: seats, restarts, revoked tokens, the audit log."""

import hashlib
import logging
import secrets
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
import msgspec

from multitap.cluster.bus import ReplicaBus, ReplicaMessage
from multitap.cluster.coordinator import StreamEntry
from multitap.errors import CoordinatorDown
from multitap.gateway.client import Client, OnOtherReplica
from multitap.hub.hub import Hub
from multitap.identity.people import Revocation, in_force
from multitap.store import Store
from multitap.store.audit_log import AuditBatch
from multitap.store.task_records import TaskRecord, decode_task, encode_task
from multitap.trust.single_use import WINDOW

if TYPE_CHECKING:
    # the gateway imports this module, and the fronts import the gateway
    from multitap.gateway.fronts.resource_server import ResourceServer
    from multitap.gateway.fronts.tokens import TokenSources

_TASK = "task:"
SEAT_LIFE = 3600.0
"""Seconds that a client is bound to a replica after its last call.

More than `private_links.IDLE`: by then the session there has ended."""


class SharedTasks:
    """Records of tasks that all replicas share, sealed; a `TaskRecords`."""

    def __init__(self, bus: ReplicaBus) -> None:
        self._records = bus.coordinator.records
        self._seal = bus.seal

    async def save(self, record: TaskRecord) -> None:
        key = f"{_TASK}{record.id}"
        life = max(1.0, record.until - time.time())
        await self._records.write(key, self._seal.seal(encode_task(record), key), ttl=life)

    async def load(self, task_id: str) -> TaskRecord | None:
        key = f"{_TASK}{task_id}"
        sealed = await self._records.read(key)
        return None if sealed is None else self._unseal(key, sealed)

    async def recent(self) -> list[TaskRecord]:
        sealed = await self._records.scan(_TASK)
        records = [self._unseal(key, value) for key, value in sealed.items()]
        present = [record for record in records if record is not None]
        return sorted(present, key=lambda record: record.created, reverse=True)

    def _unseal(self, key: str, sealed: bytes) -> TaskRecord | None:
        opened = self._seal.unseal(sealed, key)
        return None if opened is None else decode_task(opened.data)


class SessionAffinity:
    """Binds a client's own sessions with servers to one replica.

    A server that keeps state for each session must be asked in the same one again, and that is in
    one process: the replica that the client reached first.
    """

    def __init__(self, bus: ReplicaBus) -> None:
        self._bus = bus
        self._records = bus.coordinator.records

    async def check(self, client: Client, server: str) -> None:
        """Check that a client's session with a server is here, or may be opened here.

        Raises:
            OnOtherReplica: It is at another replica.
            CoordinatorDown: That cannot be found out.
        """
        # as in `PrivateLinks`: a session's own, or in the stateless era those of a principal
        replicas = client.replicas
        owner = f"principal {client.principal.key}" if replicas is None else replicas.session_id
        key = f"seat:{hashlib.sha256(owner.encode()).hexdigest()[:32]}:{server}"
        await self._bus.coordinator.until_back(partial(self._take, key))

    async def _take(self, key: str) -> None:
        own = self._bus.name.encode()
        # Each change is a swap, so of several replicas that look at the same time one gets the
        # seat. A lost one means that another was quicker, which the next look finds.
        while True:
            seat = await self._records.read(key)
            if seat is not None and seat != own and self._bus.is_alive(seat.decode()):
                raise OnOtherReplica(seat.decode())
            # free, ours, or its replica is gone
            if await self._records.swap(key, seat, own, ttl=SEAT_LIFE):
                return


_RESTART = "restart"


def share_restarts(bus: ReplicaBus, hub: Hub) -> None:
    """Announce restarts to the other replicas, and repeat theirs.

    The program may run on any of them, and each has a connection of its own to a remote server.
    """

    async def follow(note: ReplicaMessage) -> None:
        link = hub.links.get(note.data.decode())
        # it may be unknown or disabled here, while a changed configuration is rolled out
        if link is not None and link.config.enabled:
            link.restart()

    bus.on(_RESTART, follow)
    hub.on_restart = lambda server: bus.tell_all_soon(_RESTART, server.encode())


REVOCATION_LOOK = 0.25
"""Seconds between two checks for revoked tokens, here or elsewhere."""

_REVOKED_KEY = "revoked-tokens"
_REVOKED_TRIES = 20  # others may revoke at the same moment; beyond that the next look tries again

_decode_decision = msgspec.json.Decoder(Revocation).decode
_decode_revoked = msgspec.json.Decoder(frozenset[str]).decode


class TokenRevocations:
    """Publishes what was revoked here, tokens and people, and applies that of other replicas.

    They are one record that each replica reads several times a second, because a message could
    get lost.
    """

    def __init__(
        self,
        sources: "TokenSources",
        bus: ReplicaBus,
        resource_server: "ResourceServer | None" = None,
    ) -> None:
        self._sources = sources
        self._resources = resource_server
        self._records = bus.coordinator.records

    async def run(self) -> None:
        """Keep the revocations of all replicas in step until cancelled."""
        while True:
            with suppress(CoordinatorDown):  # tried again; known revocations stay in force
                await self._agree()
            await anyio.sleep(REVOCATION_LOOK)

    async def _agree(self) -> None:
        for _ in range(_REVOKED_TRIES):
            stored = await self._records.read(_REVOKED_KEY)
            revoked = _decode_revoked(stored) if stored else frozenset[str]()
            # ids of tokens have no such letter
            decisions = frozenset(text for text in revoked if text.startswith("{"))
            self._sources.revoked_elsewhere |= revoked - decisions
            ours = self._sources.revoked_here | self._sources.revoked_elsewhere
            if self._resources is not None:
                decisions = self._share_decisions(self._resources, decisions)
            ours |= decisions
            # also the revocations of others: the coordinator may have lost them
            if ours <= revoked or await self._records.swap(
                _REVOKED_KEY, stored, msgspec.json.encode(sorted(ours))
            ):
                return

    @staticmethod
    def _share_decisions(resources: "ResourceServer", shared: frozenset[str]) -> frozenset[str]:
        """Take over what was decided about people elsewhere; returns all decisions, encoded."""
        verifier = resources.verifier
        for text in shared:
            with suppress(msgspec.MsgspecError):  # of a newer version
                verifier.elsewhere |= {_decode_decision(text)}
        entries = in_force(verifier.revocations.entries | verifier.elsewhere, time.time())
        return frozenset(msgspec.json.encode(entry).decode() for entry in entries)


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
_decode_batch = msgspec.msgpack.Decoder(AuditBatch).decode


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
                else:
                    self._store.leave_audit()
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
                batches = [batch for batch in map(self._open, entries) if batch is not None]
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
            return _decode_batch(opened.data)
        except msgspec.MsgspecError:
            logger.warning("a batch of audit entries cannot be read: %s", entry.id)
            return None


def _time(entry_id: str) -> float:
    return int(entry_id.partition("-")[0]) / 1000


def _after(entry_id: str) -> str:
    moment, _, number = entry_id.partition("-")
    return f"{moment}-{int(number) + 1}"
