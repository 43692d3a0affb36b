"""Sessions as values, which any replica can make a client of."""

import hashlib
from typing import Any

import msgspec
from msgspec import Raw

from multitap.catalog.audience import Audience
from multitap.gateway.client import Client
from multitap.gateway.replicas.replica_bus import ReplicaBus

_PURPOSE = "session"


class SessionRecord(msgspec.Struct, array_like=True):
    """What a session is, apart from what happens in it right now."""

    principal: str
    """Whom the credentials name that it was opened with; nobody else may use it."""
    holder: str
    profiles: tuple[str, ...]
    allow: tuple[str, ...]
    version: str
    capabilities: bytes
    info: dict[str, Any]
    log_level: str | None
    uris: tuple[str, ...]
    """The resources that it follows."""
    home: str
    """The replica that tells the client of changes."""

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
        """Tell a client what it said when it shook hands."""
        client.introduce(self.version, Raw(self.capabilities), self.info)
        client.log_level = self.log_level
        client.followed = set(self.uris)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SessionRecord).decode


class SessionRecords:
    """The sessions of all replicas; each is kept for a time after its last use.

    Args:
        bus: Who the replicas are.
        ttl: Seconds without a message after which a session ends.
    """

    def __init__(self, bus: ReplicaBus, ttl: float) -> None:
        self._records = bus.coordinator.records
        self._seal = bus.seal
        self._ttl = ttl

    async def write(
        self, session_id: str, record: SessionRecord, *, ttl: float | None = None
    ) -> None:
        # sealed for this id: a record copied to another key does not open
        sealed = self._seal.seal(_encode(record), f"{_PURPOSE} {session_id}")
        await self._records.write(_key(session_id), sealed, ttl=ttl or self._ttl)

    async def read(self, session_id: str) -> SessionRecord | None:
        sealed = await self._records.read(_key(session_id))
        opened = sealed and self._seal.unseal(sealed, f"{_PURPOSE} {session_id}")
        try:
            return _decode(opened) if opened else None
        except msgspec.MsgspecError:  # of another version, which knows more or less of it
            return None

    async def touch(self, session_id: str) -> bool:
        """Note a use; whether the session is still there."""
        return await self._records.touch(_key(session_id), self._ttl)

    async def delete(self, session_id: str) -> bool:
        return await self._records.delete(_key(session_id))


def _key(session_id: str) -> str:
    return f"session:{name_of(session_id)}"


def name_of(session_id: str) -> str:
    """What a session is called where others may look: its id opens it, and this does not."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:32]
