"""The replicas of a cluster, their heartbeats, and whether their configurations agree."""

import contextlib
import logging
import time
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet

import anyio
import msgspec

from multitap.cluster.coordinator import Coordinator, CoordinatorDown, Records
from multitap.cluster.peer_messages import PROTOCOL
from multitap.errors import ConfigError, counted
from multitap.upstream.signals import Bell
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
    """Announces this replica to the others, and knows them.

    Args:
        coordinator: Holds the records of all replicas.
        me: This replica.
    """

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
        return [one for one in self.members.values() if one.fingerprint != ours]

    def candidates(self, labels: Mapping[str, str] | None) -> Collection[str]:
        """The ids of the replicas that may run a server with these labels."""
        wanted = (labels or {}).items()
        return [
            one.id
            for one in self.members.values()
            if wanted <= one.labels.items() and not one.drains
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
        self.me = msgspec.structs.replace(self.me, seen=await self._coordinator.time())
        await self._records.write(f"member/{self.me.id}", msgspec.json.encode(self.me), ttl=TTL)
        # after the record: a listed replica without a record counts as gone
        await self._list(come={self.me.id})
        await self._look()

    async def is_alive(self, replica: str) -> bool:
        """Whether the coordinator has a recent heartbeat of a replica."""
        return await self._records.read(f"member/{replica}") is not None

    async def leave(self) -> None:
        """Remove this replica from the members."""
        with contextlib.suppress(CoordinatorDown):
            await self._records.delete(f"member/{self.me.id}")
            await self._list(gone={self.me.id})

    async def _look(self) -> None:
        index = _parse_index(await self._records.read(_INDEX) or b"[]")
        found = await known_members(self._records)
        # only those that were listed before the records were read: others may join meanwhile
        if gone := set(index) - found.keys():
            await self._list(gone=gone)
        # ours as it is now: `describe` may have changed it during the awaits
        found[self.me.id] = self.me
        before, self.members = self.members, found
        if before.keys() != found.keys():
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


async def known_members(records: Records) -> dict[str, Member]:
    """All replicas with a recent heartbeat, by id."""
    found: dict[str, Member] = {}
    for one in _parse_index(await records.read(_INDEX) or b"[]"):
        kept = await records.read(f"member/{one}")
        if kept is not None:
            found[one] = _parse(kept)
    return found
