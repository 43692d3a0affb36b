"""Tokens that were revoked at one replica, and hold nowhere from then on."""

from contextlib import suppress

import anyio
import msgspec

from multitap.cluster.coordinator import CoordinatorDown
from multitap.gateway.fronts.token_sources import TokenSources
from multitap.gateway.replicas.replica_bus import ReplicaBus

LOOK = 0.25
"""Seconds between two looks for tokens that were revoked, here or elsewhere."""

_KEY = "revoked-tokens"
_TRIES = 20  # others may revoke at the same moment; beyond that the next look tries again

_decode = msgspec.json.Decoder(frozenset[str]).decode


class TokenRevocations:
    """Tells the other replicas which tokens were revoked here, and learns of theirs.

    All of them are one record, which each replica reads several times a second: a message could
    get lost, and a token that was revoked must not be let in.

    Args:
        sources: The tokens of this replica.
        bus: The other replicas.
    """

    def __init__(self, sources: TokenSources, bus: ReplicaBus) -> None:
        self._sources = sources
        self._records = bus.coordinator.records

    async def run(self) -> None:
        """Keep the replicas in agreement until cancelled."""
        while True:
            with suppress(CoordinatorDown):  # tried again; what is known holds
                await self._agree()
            await anyio.sleep(LOOK)

    async def _agree(self) -> None:
        for _ in range(_TRIES):
            kept = await self._records.read(_KEY)
            known = _decode(kept) if kept else frozenset[str]()
            self._sources.revoked_elsewhere |= known
            ours = self._sources.revoked_here | self._sources.revoked_elsewhere
            # also what others revoked: the coordinator may have lost it
            if ours <= known or await self._records.swap(
                _KEY, kept, msgspec.json.encode(sorted(ours))
            ):
                return
