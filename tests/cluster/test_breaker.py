"""Failures of a server are counted once for all replicas."""

import asyncio

import anyio
import msgspec
import pytest

from multitap.cluster.breaker import BreakerRecord, SharedBreaker
from multitap.cluster.local_coordinator import LocalCoordinator
from multitap.events import Failure, FailureCode, LinkState, Phase
from multitap.upstream.backoff import Paused, RestartHistory, Restarts
from tests.cluster.hubs import open_node, zoo
from tests.waiting import PATIENCE
from tests.zoo.ledger import Ledger

DOWN = Failure(FailureCode.UNREACHABLE, Phase.SPAWN, "nobody answers")


class Cluster:
    """Breakers of several replicas on one coordinator, whose clock is turned by hand."""

    def __init__(self):
        self.now = 1000.0
        self.coordinator = LocalCoordinator(lambda: self.now)
        self.alive = {"a", "b", "c"}

    async def is_alive(self, replica):
        return replica in self.alive

    async def attempt(self, replica, *, is_first=False, is_ordered=False):
        """One that was admitted, and what the replica knows then."""
        breaker = SharedBreaker(
            self.coordinator,
            "far",
            replica=replica,
            timeout=30,
            is_alive=self.is_alive,
        )
        restarts = Restarts()
        await breaker.admit(restarts, is_first=is_first, is_ordered=is_ordered)
        return breaker, restarts

    async def admitted(self, *replicas):
        """Which of them may try now."""
        found = []
        for one in replicas:
            try:
                await self.attempt(one)
            except Paused:
                continue
            found.append(one)
        return found


@pytest.fixture
async def cluster():
    return Cluster()


async def down(cluster, pause=4.0):
    """All three have met the same failure."""
    attempts = [await cluster.attempt(one, is_first=True) for one in "abc"]
    return [
        await breaker.on_lost(RestartHistory(failures=3 + n), pause + n, DOWN)
        for n, (breaker, _) in enumerate(attempts)
    ]


async def test_a_failure_that_all_meet_counts_once(cluster):
    pauses = await down(cluster)

    kept = msgspec.json.decode(await cluster.coordinator.records.read("breaker/far"))
    assert pauses == [4.0, 4.0, 4.0]
    assert kept["history"]["failures"] == 3


async def test_after_a_pause_one_replica_tries_and_the_others_wait_for_what_comes_of_it(cluster):
    await down(cluster)
    assert await cluster.admitted("a", "b", "c") == []
    cluster.now += 5
    breaker, restarts = await cluster.attempt("b")

    assert restarts.history.failures == 3
    assert await cluster.admitted("a", "c") == []

    await breaker.came_up()
    assert await cluster.admitted("a", "c") == ["a", "c"]


async def test_a_replica_that_dies_while_it_tries_holds_nobody_up(cluster):
    await down(cluster)
    cluster.now += 5
    await cluster.attempt("b")
    cluster.alive.discard("b")

    assert await cluster.admitted("a", "c") == ["a"]


async def test_what_comes_of_an_attempt_that_was_taken_over_changes_nothing(cluster):
    await down(cluster)
    cluster.now += 5
    first, _ = await cluster.attempt("b")
    cluster.alive.discard("b")
    await cluster.attempt("a")
    cluster.alive.add("b")  # it only stood still
    await first.on_lost(RestartHistory(failures=9), 0.5, DOWN)
    cluster.now += 1
    await first.give_up()

    assert await cluster.admitted("c") == []


async def test_replicas_that_may_try_at_the_same_moment_leave_it_to_one(cluster):
    await down(cluster)
    cluster.now += 5
    admitted = []

    async def attempt(one):
        admitted.extend(await cluster.admitted(one))

    async with anyio.create_task_group() as tasks:
        for one in "abc":
            tasks.start_soon(attempt, one)

    assert len(admitted) == 1


async def test_a_replica_that_has_just_come_is_waited_for(tmp_path):
    coordinator = LocalCoordinator()
    async with open_node(coordinator, tmp_path, name="old", servers={}) as old:
        known = old.replica.membership.members
        async with open_node(coordinator, tmp_path, name="new", servers={}):
            assert "new" not in known
            assert await old.replica.membership.is_alive("new")
        assert not await old.replica.membership.is_alive("new")


async def test_an_attempt_that_is_given_up_is_left_to_another_replica(cluster):
    await down(cluster)
    cluster.now += 5
    breaker, _ = await cluster.attempt("b")
    await breaker.give_up()

    assert await cluster.admitted("a", "c") == ["a"]


async def test_what_a_person_wants_is_done_and_the_past_forgotten(cluster):
    await down(cluster)
    _, restarts = await cluster.attempt("c", is_ordered=True)

    assert restarts.history == RestartHistory()
    assert await cluster.admitted("a", "b") == ["a", "b"]


async def test_the_starts_of_one_owner_count_for_the_next(cluster):
    began = asyncio.get_running_loop().time()
    breaker, restarts = await cluster.attempt("a")
    for _ in range(5):
        restarts.on_started(began)
    await breaker.on_lost(restarts.history, 1.0, DOWN)
    cluster.now += 2
    _, taken_over = await cluster.attempt("b")
    now = asyncio.get_running_loop().time()
    taken_over.on_started(now)

    assert taken_over.tripped(now)


async def test_a_new_owner_waits_as_long_as_the_old_one_and_a_person_does_not(tmp_path):
    coordinator, ledger = LocalCoordinator(), Ledger(tmp_path / "ledger")
    ledger.folder.mkdir()
    record = BreakerRecord(
        number=9,
        due=await coordinator.time() + 500,
        code=FailureCode.CRASH_LOOP,
        message="it keeps crashing",
    )
    await coordinator.records.write("breaker/zoo", msgspec.json.encode(record))
    servers = {"zoo": zoo(env=ledger.env)}
    async with open_node(coordinator, tmp_path, name="one", servers=servers) as node:
        with anyio.fail_after(PATIENCE):
            await node.hub.settled()
            link = node.hub.links["zoo"]
            assert link.state is LinkState.ERROR
            assert link.failure.code is FailureCode.CRASH_LOOP
            assert not ledger.pids

            node.hub.restart("zoo")
            while link.state is not LinkState.CONNECTED:
                await node.hub.changed.wait()

    assert len(ledger.pids) == 1
