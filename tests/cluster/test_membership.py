"""What a replica announces about itself."""

from multitap.cluster.local_coordinator import LocalCoordinator
from multitap.cluster.membership import Member, Membership, known_members


async def test_what_changes_during_a_heartbeat_is_announced(monkeypatch):
    coordinator = LocalCoordinator()
    membership = Membership(coordinator, Member(id="one", fingerprint="x"))
    time = coordinator.time

    async def slow_time():
        membership.describe(owns=["files"])
        return await time()

    monkeypatch.setattr(coordinator, "time", slow_time)
    await membership.beat()

    assert membership.me.owns == ["files"]
    assert (await known_members(coordinator.records))["one"].owns == ["files"]
