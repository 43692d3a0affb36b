"""Shares revoked tokens among replicas, so that all of them refuse them."""

from contextlib import suppress

import anyio
import msgspec

from multitap.cluster.coordinator import CoordinatorDown
from multitap.gateway.fronts.token_sources import TokenSources
from multitap.gateway.replicas.replica_bus import ReplicaBus

LOOK = 0.25
"""Seconds between two checks for revoked tokens, here or elsewhere."""

_KEY = "revoked-tokens"
_TRIES = 20  # others may revoke at the same moment; beyond that the next look tries again

_decode = msgspec.json.Decoder(frozenset[str]).decode


class TokenRevocations:
    """Publishes the tokens that were revoked here, and applies those of other replicas.

    They are one record that each replica reads several times a second, because a message could
    get lost.
    """

    def __init__(self, sources: TokenSources, bus: ReplicaBus) -> None:
        self._sources = sources
        self._records = bus.coordinator.records

    async def run(self) -> None:
        """Keep the revocations of all replicas in step until cancelled."""
        while True:
            with suppress(CoordinatorDown):  # tried again; known revocations stay in force
                await self._agree()
            await anyio.sleep(LOOK)

    async def _agree(self) -> None:
        for _ in range(_TRIES):
            kept = await self._records.read(_KEY)
            known = _decode(kept) if kept else frozenset[str]()
            self._sources.revoked_elsewhere |= known
            ours = self._sources.revoked_here | self._sources.revoked_elsewhere
            # also the revocations of others: the coordinator may have lost them
            if ours <= known or await self._records.swap(
                _KEY, kept, msgspec.json.encode(sorted(ours))
            ):
                return
