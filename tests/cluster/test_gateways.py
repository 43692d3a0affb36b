"""A client's own session with a server is at one replica, however many want it at once."""

import pytest

from multitap.cluster.bus import ReplicaBus, ReplicaIdentity
from multitap.cluster.gateways import SessionAffinity
from multitap.cluster.local_coordinator import LocalCoordinator, LocalRecords
from multitap.gateway.client import OnOtherReplica
from multitap.principal import token_principal
from multitap.tasks import Tasks


class Contended(LocalRecords):
    """Another replica is quicker each time; all but the last one die at once."""

    def __init__(self, clock, names):
        super().__init__(clock)
        self._names = names

    async def swap(self, key, expected, value, *, ttl=None):
        if self._names:
            await self.write(key, self._names.pop(0).encode(), ttl=ttl)
        return await super().swap(key, expected, value, ttl=ttl)


class _Client:
    replicas = None
    principal = token_principal("ann")


async def test_a_seat_that_others_keep_taking_is_given_to_one():
    coordinator = LocalCoordinator()
    dead = [f"dead-{n}" for n in range(5)]
    coordinator.records = Contended(lambda: 0.0, [*dead, "alive"])
    identity = ReplicaIdentity("us", coordinator, b"k" * 32, is_alive={"us", "alive"}.__contains__)
    async with Tasks() as tasks:
        seats = SessionAffinity(ReplicaBus(identity, tasks))
        with pytest.raises(OnOtherReplica) as found:
            await seats.check(_Client(), "zoo")

    assert found.value.replica == "alive"
