"""Tokens that were revoked at one replica, and hold nowhere from then on."""

from contextlib import suppress

import anyio

from multitap.cluster.coordinator import CoordinatorDown
from multitap.gateway.fronts.token_sources import TokenSources
from multitap.gateway.replicas.replica_bus import Note, ReplicaBus

LOOK = 0.25
"""Seconds between two looks for tokens that were revoked here."""
RESCAN = 30.0
"""Seconds between two looks at all of them: a message may get lost."""
KEPT = 400 * 86_400.0
"""Seconds for which a revocation is remembered."""

_PREFIX = "revoked:"


class TokenRevocations:
    """Tells the other replicas which tokens were revoked here, and hears of theirs.

    Args:
        sources: The tokens of this replica.
        bus: The other replicas.
    """

    def __init__(self, sources: TokenSources, bus: ReplicaBus) -> None:
        self._sources = sources
        self._bus = bus
        self._told: set[str] = set()
        bus.on("revoked", self._on_revoked)
        bus.on_gap.append(self._look)

    async def run(self) -> None:
        """Keep the replicas in agreement until cancelled."""
        looked = -RESCAN
        while True:
            with suppress(CoordinatorDown):  # tried again; what is known holds
                for token_id in self._sources.revoked_here - self._told:
                    await self._bus.coordinator.records.write(_PREFIX + token_id, b"1", ttl=KEPT)
                    await self._bus.tell_all("revoked", token_id.encode())
                    self._told.add(token_id)
                if anyio.current_time() - looked >= RESCAN:
                    await self._look()
                    looked = anyio.current_time()
            await anyio.sleep(LOOK)

    async def _look(self) -> None:
        found = await self._bus.coordinator.records.scan(_PREFIX)
        ids = {key.removeprefix(_PREFIX) for key in found}
        self._told |= ids
        self._sources.revoked_elsewhere |= ids

    async def _on_revoked(self, note: Note) -> None:
        self._sources.revoked_elsewhere |= {note.data.decode()}
