"""Leases, fencing and hand-over, in virtual time, under a coordinator that loses and forgets.

The code is the real one. Each replica has a clock of its own that runs a little fast or slow; each
request to the coordinator takes any time, its answer may be lost, a replica may be cut off or stand
still for seconds, and the coordinator may forget everything. One server is a pool of two.

What it does not have: a coordinator that comes back with older data, as a Redis that lost its last
writes does (see "What it does not do" in docs/cluster.md), and a replica that stands still between
its look at the lease and the write to the pipe.
"""

import asyncio
import random

import pytest

from multitap.cluster import leases as subject
from multitap.cluster.coordinator import Coordinator
from multitap.cluster.leases import OwnerLease, Ownership, ServerPool
from multitap.cluster.local_coordinator import LocalLeases
from multitap.errors import CoordinatorDown
from multitap.tasks import Tasks
from tests.simulation.clock import run

SERVERS = {"calc": 1, "files": 1, "pool": 2}
"""How many replicas run each."""
SECONDS = 30.0


class World:
    """What really happens: who got which token, and who executed what with it."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.loop = asyncio.get_running_loop()
        self.leases = LocalLeases(lambda: 1_000_000 + self.loop.time())
        self.newest = {}
        self.executed = {server: [] for server in SERVERS}

    def issued(self, name, holder, token):
        if name == subject.EPOCH:
            return
        assert token > self.newest.get(name, (0, ""))[0], "a token fell"
        self.newest[name] = token, holder

    def execute(self, server, holder, lease):
        """A request is written to the server's pipe now."""
        newest, its_holder = self.newest[lease.name]
        # one that gets a new token after a loss has it before it knows
        assert lease.token == newest or holder == its_holder, (
            f"{server}: executed by {holder} under {lease.token}, but {its_holder} has {newest}"
        )
        self.executed[server].append(self.loop.time())


class Adversary:
    """The coordinator as one replica meets it."""

    lease_ttl = Coordinator.lease_ttl

    def __init__(self, world):
        self.world = world
        self.leases = self
        self.cut_off = False
        self.slow = 0.05
        self.loss = 0.02
        self.going = asyncio.Event()
        """Cleared while the replica stands still: its clock and its leases run on."""
        self.going.set()

    async def _travel(self):
        chance = self.world.random
        await asyncio.sleep(chance.random() * self.slow)
        await self.going.wait()
        if self.cut_off or chance.random() < self.loss:
            await asyncio.sleep(chance.random() * 2)
            raise CoordinatorDown("lost")

    async def acquire(self, name, holder, *, ttl, note=b"", guard=None):
        await self._travel()
        token = await self.world.leases.acquire(name, holder, ttl=ttl, note=note, guard=guard)
        if token is not None:
            self.world.issued(name, holder, token)
        await self._travel()
        return token

    async def renew(self, held, *, ttl):
        await self._travel()
        kept = await self.world.leases.renew(held, ttl=ttl)
        await self._travel()
        return kept

    async def release(self, name, token):
        await self._travel()
        was_held = await self.world.leases.release(name, token)
        await self._travel()
        return was_held

    async def look(self, *names):
        await self._travel()
        found = await self.world.leases.look(*names)
        await self._travel()
        return found


class SimulatedReplica:
    def __init__(self, world, name, names, *, is_connected=None):
        self.world = world
        self.name = name
        self.adversary, chance = Adversary(world), world.random
        rate, offset = world.random.uniform(0.97, 1.03), world.random.uniform(0, 1000)
        self.ownership = Ownership(
            self.adversary,
            name,
            name,
            peers=self,
            on_change=lambda _: None,
            is_connected=lambda _: is_connected() if is_connected else chance.random() < 0.5,
            clock=lambda: offset + world.loop.time() * rate,
        )
        self._names = names
        self.ownership.apply({server: ServerPool(slots) for server, slots in SERVERS.items()})

    def candidates(self, _):
        return self._names

    async def serve(self):
        """Execute requests as an owner does: a look at the lease, and then at once the write."""
        while True:
            await asyncio.sleep(self.world.random.random() * 0.1)
            # whatever it wanted to do, it does as soon as it goes on
            await self.adversary.going.wait()
            for server in SERVERS:
                lease = self.ownership.lease(server)
                if lease is not None and lease.is_valid:
                    self.world.execute(server, self.name, lease)

    async def suffer(self):
        chance = self.world.random
        while True:
            await asyncio.sleep(chance.random() * 6)
            match chance.randrange(6):
                case 0:
                    self.adversary.cut_off = True
                    await asyncio.sleep(chance.random() * 6)
                    self.adversary.cut_off = False
                case 1:
                    # a bad network: answers come long after they were given
                    self.adversary.slow = 10.0
                    await asyncio.sleep(chance.random() * 6)
                    self.adversary.slow = 0.05
                case 2:
                    await self.ownership.hand_over()
                    self.ownership.is_draining = False
                case 3:
                    self.adversary.going.clear()
                    await asyncio.sleep(chance.random() * 6)
                    self.adversary.going.set()
                case _:
                    pass


async def simulate(seed, *, forgets):
    world = World(seed)
    names = [f"r{n}" for n in range(3)]
    async with Tasks() as tasks:
        for name in names:
            replica = SimulatedReplica(world, name, names)
            tasks.start_soon(replica.ownership.run)
            tasks.start_soon(replica.serve)
            tasks.start_soon(replica.suffer)
        if forgets:
            for _ in range(3):
                await asyncio.sleep(SECONDS / 4)
                world.leases.forget()
        await asyncio.sleep(SECONDS)
    return world


@pytest.mark.parametrize("forgets", [False, True], ids=["remembers", "forgets"])
def test_nobody_executes_anything_without_the_newest_token(forgets):
    _simulate_all(range(10), forgets=forgets)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(10, 120), id="some"),
        pytest.param(range(120, 500), id="many", marks=pytest.mark.wide),
    ],
)
@pytest.mark.parametrize("forgets", [False, True], ids=["remembers", "forgets"])
def test_nobody_ever_executes_anything_without_the_newest_token(forgets, seeds):
    _simulate_all(seeds, forgets=forgets)


def _simulate_all(seeds, *, forgets):
    for seed in seeds:
        world = run(lambda seed=seed: simulate(seed, forgets=forgets))

        assert all(world.executed[server] for server in SERVERS), seed


def _valid_forever(monkeypatch):
    monkeypatch.setattr(OwnerLease, "is_valid", property(lambda self: not self.is_lost))


def _counts_from_the_answer(monkeypatch):
    extend = OwnerLease.extend

    def later(self, until):
        extend(self, self._clock() + Coordinator.lease_ttl - subject.MARGIN + until * 0)

    monkeypatch.setattr(OwnerLease, "extend", later)


def _takes_what_is_forgotten(monkeypatch):
    real = Ownership.__init__

    def eager(self, *args, **named):
        real(self, *args, **{**named, "is_fresh": True})

    monkeypatch.setattr(Ownership, "__init__", eager)


def _has_no_margin(monkeypatch):
    monkeypatch.setattr(subject, "MARGIN", -0.4)


@pytest.mark.parametrize(
    "break_it",
    [_valid_forever, _counts_from_the_answer, _takes_what_is_forgotten, _has_no_margin],
    ids=lambda one: one.__name__,
)
def test_the_model_notices_every_way_to_break_it(monkeypatch, break_it):
    break_it(monkeypatch)

    with pytest.raises(BaseExceptionGroup) as found:
        _simulate_many(120)
    assert found.group_contains(AssertionError, match="but|fell")


def _simulate_many(count):
    for seed in range(count):
        run(lambda seed=seed: simulate(seed, forgets=True))


async def starve(seconds, *, is_connected):
    """The number of owners that a server had after its first one stood still for some seconds."""
    world = World(1)
    names = ["r0", "r1"]
    replicas = [SimulatedReplica(world, n, names, is_connected=lambda: is_connected) for n in names]
    async with Tasks() as tasks:
        for replica in replicas:
            replica.adversary.loss = 0.0
            tasks.start_soon(replica.ownership.run)
        while not any(replica.ownership.lease("calc") for replica in replicas):
            await asyncio.sleep(0.1)
        owner = next(replica for replica in replicas if replica.ownership.lease("calc"))
        before = world.newest["calc/0"]
        owner.adversary.going.clear()
        await asyncio.sleep(seconds)
        owner.adversary.going.set()
        await asyncio.sleep(1)
        lease = owner.ownership.lease("calc")
        return world.newest["calc/0"] == before and lease is not None and lease.is_valid


@pytest.mark.parametrize(
    ("seconds", "is_connected", "stays"),
    [(3, True, True), (3, False, False), (3 + subject.GRACE, True, False)],
    ids=["no time", "dead", "hangs"],
)
def test_an_owner_without_time_keeps_its_server_while_its_process_lives(
    seconds, is_connected, stays
):
    assert run(lambda: starve(seconds, is_connected=is_connected)) is stays


def test_a_server_is_taken_over_soon_after_its_owner_is_gone():
    single = [server for server, slots in SERVERS.items() if slots == 1]

    async def owner_dies(seed):
        world = World(seed)
        names = ["r0", "r1", "r2"]
        replicas = [
            SimulatedReplica(world, name, names, is_connected=lambda: False) for name in names
        ]
        for replica in replicas:
            replica.adversary.loss = 0.0
        async with Tasks() as survivors:
            async with Tasks() as doomed:
                for replica in replicas:
                    tasks = doomed if replica is replicas[0] else survivors
                    tasks.start_soon(replica.ownership.run)
                while not any(one.ownership.held for one in replicas):
                    await asyncio.sleep(0.1)
                # all of them, so that it is certain that something is taken over
                for server in single:
                    for one in replicas[1:]:
                        if one.ownership.lease(server):
                            await one.ownership.hand_over()
                            one.ownership.is_draining = False
                await asyncio.sleep(2)
                mine = [server for server in replicas[0].ownership.held if server in single]
            died = world.loop.time()
            while not all(any(one.ownership.lease(s) for one in replicas[1:]) for s in mine):
                await asyncio.sleep(0.01)
            return world.loop.time() - died

    times = [run(lambda seed=seed: owner_dies(seed)) for seed in range(20)]

    assert max(times) < 2.5
