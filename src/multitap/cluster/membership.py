"""The replicas of a cluster: who is alive, and the key that they share."""

import base64
import binascii
import contextlib
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import anyio
import msgspec

from multitap.cluster.coordinator import Coordinator, Records
from multitap.cluster.peer_messages import PROTOCOL
from multitap.errors import ConfigError, CoordinatorDown, counted
from multitap.tasks import Bell
from multitap.version import VERSION

logger = logging.getLogger(__name__)

BEAT = 1.0
TTL = 4.0
"""Seconds without a heartbeat after which a replica is forgotten: three may get lost."""
CLOCKS = 5.0
"""Seconds that a machine's clock may differ from the coordinator's: tokens expire by it."""
_INDEX = "members"  # a list of ids, because a scan would step through all keys of Redis
_TRIES = 20  # attempts of a change that races with others; the next heartbeat repeats it


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One replica, as it describes itself; fields of newer versions are ignored."""

    id: str
    version: str = VERSION
    protocol: int = PROTOCOL
    address: str = ""
    """Its address for other replicas."""
    url: str = ""
    """Its address for clients."""
    fingerprint: str = ""
    """A digest of its configuration."""
    labels: dict[str, str] = {}
    started: float = 0.0
    seen: float = 0.0
    """The time of its last heartbeat, by the coordinator's clock."""
    owns: list[str] = []
    """The servers that it runs for the cluster."""
    drains: bool = False
    """Whether it is about to leave."""


_parse = msgspec.json.Decoder(Member).decode
_parse_index = msgspec.json.Decoder(list[str]).decode


class Membership:
    """Announces this replica to the others, and knows them."""

    def __init__(self, coordinator: Coordinator, me: Member) -> None:
        self.me = me
        self.members: Mapping[str, Member] = {me.id: me}
        """All replicas with a recent heartbeat, this one included, by id."""
        self.changed = Bell()
        self._coordinator = coordinator
        self._records = coordinator.records

    @property
    def drifted(self) -> list[Member]:
        """The replicas whose configuration differs from ours."""
        ours = self.me.fingerprint
        return [member for member in self.members.values() if member.fingerprint != ours]

    def candidates(self, labels: Mapping[str, str] | None) -> Collection[str]:
        """The ids of the replicas that may run a server with these labels."""
        required = (labels or {}).items()
        return [
            member.id
            for member in self.members.values()
            if required <= member.labels.items() and not member.drains
        ]

    def describe(self, **changes: object) -> None:
        """Change what this replica announces with its next heartbeat."""
        self.me = msgspec.structs.replace(self.me, **changes)

    async def join(self, *, allow_drift: bool) -> None:
        """Become a member.

        Raises:
            ConfigError: The clock or the configuration differs.
            CoordinatorDown: The coordinator cannot be reached.
        """
        off = time.time() - await self._coordinator.time()
        if abs(off) > CLOCKS:
            ahead = "ahead of" if off > 0 else "behind"
            raise ConfigError(
                f"this machine's clock is {abs(off):.0f} s {ahead} the coordinator's",
                hint="synchronise both clocks, for example with chrony",
            )
        await self._look()
        if self.drifted and not allow_drift:
            other = self.drifted[0]
            raise ConfigError(
                "the configuration differs from that of"
                f" {counted(len(self.drifted), 'other replica')}, such as {other.id!r}",
                hint="make them the same, or use `--allow-drift` during a roll-out",
            )
        await self.beat()

    async def run(self) -> None:
        """Send a heartbeat once a second, until cancelled."""
        while True:
            await anyio.sleep(BEAT)
            with contextlib.suppress(CoordinatorDown):
                await self.beat()

    async def beat(self) -> None:
        """Send a heartbeat, and read those of the others."""
        seen = await self._coordinator.time()
        # only now: `describe` may have changed it during the await
        self.me = msgspec.structs.replace(self.me, seen=seen)
        await self._records.write(f"member/{self.me.id}", msgspec.json.encode(self.me), ttl=TTL)
        # after the record: a listed replica without a record counts as gone
        await self._list(come={self.me.id})
        await self._look()

    async def is_alive(self, replica: str) -> bool:
        """Whether the coordinator has a recent heartbeat of a replica."""
        return await is_member(self._records, replica)

    async def leave(self) -> None:
        """Remove this replica from the members."""
        with contextlib.suppress(CoordinatorDown):
            await self._records.delete(f"member/{self.me.id}")
            await self._list(gone={self.me.id})

    async def _look(self) -> None:
        index = _parse_index(await self._records.read(_INDEX) or b"[]")
        members = await known_members(self._records)
        # only those that were listed before the records were read: others may join meanwhile
        if gone := set(index) - members.keys():
            await self._list(gone=gone)
        # ours as it is now: `describe` may have changed it during the awaits
        members[self.me.id] = self.me
        before, self.members = self.members, members
        if before.keys() != members.keys():
            self.changed.ring()

    async def _list(
        self, *, gone: AbstractSet[str] = frozenset(), come: AbstractSet[str] = frozenset()
    ) -> None:
        for _ in range(_TRIES):
            before = await self._records.read(_INDEX)
            ids = set(_parse_index(before or b"[]"))
            after = (ids - gone) | come
            if after == ids or await self._records.swap(
                _INDEX, before, msgspec.json.encode(sorted(after))
            ):
                return


async def is_member(records: Records, replica: str) -> bool:
    """Whether there is a recent heartbeat of a replica."""
    return await records.read(f"member/{replica}") is not None


async def known_members(records: Records) -> dict[str, Member]:
    """All replicas with a recent heartbeat, by id."""
    members: dict[str, Member] = {}
    for member_id in _parse_index(await records.read(_INDEX) or b"[]"):
        record = await records.read(f"member/{member_id}")
        if record is not None:
            members[member_id] = _parse(record)
    return members


VARIABLE = "MULTITAP_CLUSTER_KEY"
_SIZE = 32
_LOOK = 0.1  # seconds between two checks for a key
_LEAST = 16  # characters; the key protects all messages between replicas
_PROOF = b"the key of a multitap cluster"
_HINT = f"give all replicas the same key: `--cluster-key-file FILE`, {VARIABLE}, or none of them"


def given_key(path: Path | None, environ: Mapping[str, str]) -> bytes | None:
    """The key in the file or the environment; None if neither is set.

    Raises:
        ConfigError: It cannot be read, or is too short.
    """
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
            raise ConfigError(f"the cluster key {str(path)!r} cannot be read: {reason}") from None
        source = str(path)
    elif VARIABLE in environ:
        text, source = environ[VARIABLE], VARIABLE
    else:
        return None
    if len(text.strip()) < _LEAST:
        raise ConfigError(
            f"the cluster key in {source} is too short",
            hint=f"use at least {_LEAST} characters, such as `openssl rand -hex 32` prints",
        )
    return hashlib.sha256(text.strip().encode()).digest()


async def agree_on_key(records: Records, configured: bytes | None, *, patience: float) -> bytes:
    """The key of the cluster.

    Args:
        patience: Seconds to wait for others to store it again, before a new one is made.

    Raises:
        ConfigError: It differs from the key that this replica was given.
    """
    if configured is None:
        key = await _shared_key(records, patience)
    elif await records.read("key") is not None:
        raise ConfigError(
            "the cluster has a key of its own, and this replica was given another one", hint=_HINT
        )
    else:
        key = configured
    if not await keep_key(records, key, is_shared=configured is None):
        raise ConfigError(
            "the cluster's key differs from the one that this replica was given", hint=_HINT
        )
    return key


async def keep_key(records: Records, key: bytes, *, is_shared: bool) -> bool:
    """Store the key or its proof again if it is missing; False if the cluster has another key."""
    proof, shared = _proof(key), base64.b64encode(key)
    # the key before its proof: a proof of another key would lock all replicas out
    if is_shared and not await _kept(records, "key", shared):
        return False
    return await _kept(records, "key-proof", proof)


async def _kept(records: Records, name: str, value: bytes) -> bool:
    # read first: it is nearly always there, and a script costs Redis more
    if await records.read(name) == value or await records.swap(name, None, value):
        return True
    # another replica was first, perhaps with the same key
    return await records.read(name) == value


async def _shared_key(records: Records, patience: float) -> bytes:
    """The key stored in the cluster; a new one if there is none."""
    until = anyio.current_time() + patience
    while True:
        is_proved = await records.read("key-proof") is not None
        stored = await records.read("key")
        if is_proved and stored is None:
            raise ConfigError("the cluster has a key that this replica was not given", hint=_HINT)
        # A coordinator without a key is new, or has lost everything. In that case the replicas
        # that run store their key again, and a new one would separate this one from them.
        if stored is not None or anyio.current_time() >= until:
            break
        await anyio.sleep(_LOOK)
    if stored is None:
        fresh = base64.b64encode(secrets.token_bytes(_SIZE))
        # replicas that start together all propose one: the first is kept, and all read that
        await records.swap("key", None, fresh)
        stored = await records.read("key") or fresh
    try:
        return base64.b64decode(stored, validate=True)
    except binascii.Error:
        raise ConfigError("the key that the cluster keeps is damaged", hint=_HINT) from None


def _proof(key: bytes) -> bytes:
    return hmac.digest(key, _PROOF, hashlib.sha256).hex().encode()
