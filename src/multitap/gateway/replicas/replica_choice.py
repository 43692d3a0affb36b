"""Chooses the replica that holds a client's own sessions with servers."""

import hashlib

from multitap.gateway.client import Client, OnOtherReplica
from multitap.gateway.replicas.replica_bus import ReplicaBus

SEAT = 3600.0
"""Seconds that a client is bound to a replica after its last call.

More than `private_links.IDLE`: by then the session there has ended."""


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
        elsewhere = client.elsewhere
        owner = f"principal {client.principal}" if elsewhere is None else elsewhere.session_id
        key = f"seat:{hashlib.sha256(owner.encode()).hexdigest()[:32]}:{server}"
        own = self._bus.name.encode()
        # Each change is a swap, so of several replicas that look at the same time one gets the
        # seat. A lost one means that another was quicker, which the next look finds.
        while True:
            seat = await self._records.read(key)
            if seat is not None and seat != own and self._bus.is_alive(seat.decode()):
                raise OnOtherReplica(seat.decode())
            # free, ours, or its replica is gone
            if await self._records.swap(key, seat, own, ttl=SEAT):
                return
