"""Sessions as records from which any replica can restore the client."""

import hashlib
from math import inf
from typing import Any

import msgspec
from msgspec import Raw

from multitap.catalog.audience import Audience
from multitap.gateway.client import Client
from multitap.gateway.replicas.replica_bus import ReplicaBus
from multitap.trust.single_use import MOST_REMEMBERED, WINDOW

_PURPOSE = "session"


class SessionRecord(msgspec.Struct, array_like=True):
    """The state of a session, without its requests in progress."""

    principal: str
    """The principal that opened it, and the only one that may use it."""
    holder: str
    profiles: tuple[str, ...]
    allow: tuple[str, ...]
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
        audience = client.audience
        return cls(
            client.principal,
            client.holder,
            audience.profiles,
            audience.allow,
            client.version,
            bytes(client.capabilities),
            dict(client.info),
            client.log_level,
            tuple(client.followed),
            home,
        )

    @property
    def audience(self) -> Audience:
        return Audience(self.profiles, self.allow)

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
        bus: Has the coordinator, and knows the replicas.
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
