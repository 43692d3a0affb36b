"""What one worker of a gateway learns from the others."""

import pytest

from multitap.cluster.bus import ReplicaBus, ReplicaIdentity
from multitap.cluster.local_coordinator import LocalCoordinator
from multitap.cluster.worker_peers import WorkerPeers
from multitap.tasks import Tasks


class Keys:
    """What a worker does with a key of the console."""

    def __init__(self, *issued):
        self.issued = set(issued)

    async def take_key_here(self, digest):
        taken = digest in self.issued
        self.issued.discard(digest)
        return taken


@pytest.mark.parametrize(("key", "is_known"), [(b"issued", True), (b"wrong", False)])
async def test_a_key_of_a_worker_that_is_seen_late_is_not_refused(key, is_known):
    seen = iter([[], [], ["first"]])
    last = ["first"]
    coordinator = LocalCoordinator()
    async with Tasks() as tasks:

        def bus(name):
            alive = {"first", "second"}.__contains__
            opened = ReplicaBus(ReplicaIdentity(name, coordinator, b"k" * 32, alive), tasks)
            tasks.start_soon(opened.run)
            return opened

        first, second = bus("first"), bus("second")
        WorkerPeers(first, list, Keys(b"issued"), count=2)
        peers = WorkerPeers(second, lambda: next(seen, last), Keys(), count=2)
        for opened in (first, second):
            await opened.wait_listening()

        assert await peers.take_key(key) is is_known
