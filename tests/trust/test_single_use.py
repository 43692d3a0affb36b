"""What was issued is used once: by whom it was issued for, for what, and in time."""

import asyncio
from itertools import count

import anyio
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from multitap.cluster.coordinator import CoordinatorClock
from multitap.cluster.local_coordinator import LocalCoordinator
from multitap.cluster.redis_coordinator import open_redis
from multitap.errors import CoordinatorDown
from multitap.trust.single_use import (
    WINDOW,
    Issued,
    ReplayGuard,
    Seal,
    SingleUse,
    Unsealed,
    bind,
)
from tests.cluster.redis_server import needs_redis, running_redis

KEY = b"k" * 32
LIFE = 10

bindings = st.lists(st.text(max_size=4) | st.binary(max_size=4), max_size=4).map(tuple)
seconds = st.integers(0, 3 * LIFE)
jumps = st.integers(-(10**6), 10**6)


class Machine:
    """A machine whose clocks do what they like."""

    def __init__(self):
        self.steady, self.wall = 100, 10**9

    def clocks(self):
        return self.steady, self.wall


@given(bindings, bindings)
def test_values_are_bound_as_they_are(one, other):
    flat = [tuple(part.encode() if isinstance(part, str) else part for part in each)
            for each in (one, other)]  # fmt: skip

    assert (bind(*one) == bind(*other)) == (flat[0] == flat[1])


@given(bindings, bindings)
def test_what_was_issued_for_one_thing_is_used_once_and_for_nothing_else(one, other):
    assume(bind(*one) != bind(*other))
    issued = Issued()
    issued.issue(*one, life=LIFE)

    assert not issued.take(*other)
    assert issued.take(*one)
    assert not issued.take(*one)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("issue"), st.integers(0, 2)),
        st.tuples(st.just("take"), st.integers(0, 2)),
        st.tuples(st.just("pass"), seconds),
        st.tuples(st.just("sleep"), seconds),
        st.tuples(st.just("set"), jumps),
    ),
    max_size=30,
)


@given(steps)
def test_no_clock_prolongs_what_was_issued(steps):
    machine, open_since = Machine(), {}
    issued = Issued(clocks=machine.clocks)
    for step, value in steps:
        match step:
            case "issue":
                issued.issue(str(value), life=LIFE)
                open_since[value] = machine.clocks()
            case "take":
                since = open_since.pop(value, (-LIFE, -LIFE))
                passed = (now - then for now, then in zip(machine.clocks(), since, strict=True))
                assert issued.take(str(value)) == all(time < LIFE for time in passed)
            case "pass":
                machine.steady += value
                machine.wall += value
            case "sleep":  # one clock stands still, and the other shows it
                machine.wall += value
            case "set":
                machine.wall += value


@given(st.lists(bindings, unique_by=lambda one: bind(*one), max_size=12))
def test_memory_is_bounded_and_the_newest_stay(many):
    issued = Issued(most=4)
    for binding in many:
        issued.issue(*binding, life=LIFE)

    assert [issued.take(*binding) for binding in many] == [
        number >= len(many) - 4 for number in range(len(many))
    ]


@given(st.binary(max_size=50), st.text(max_size=5), st.data())
def test_a_seal_opens_unchanged_and_for_its_purpose_only(content, purpose, data):
    seal = Seal(KEY, lambda: 5.0)
    sealed = seal.seal(content, purpose)
    place = data.draw(st.integers(0, len(sealed) - 1))
    changed = bytearray(sealed)
    changed[place] ^= data.draw(st.integers(1, 255))

    opened = seal.unseal(sealed, purpose)
    assert (opened.data, opened.time) == (content, 5.0)
    assert seal.unseal(bytes(changed), purpose) is None
    assert seal.unseal(sealed[:place], purpose) is None
    assert seal.unseal(sealed, f"{purpose}!") is None
    assert Seal(b"o" * 32).unseal(sealed, purpose) is None


@given(
    st.lists(st.tuples(st.integers(0, 8), st.floats(-2 * WINDOW, 2 * WINDOW)), max_size=40),
    st.integers(1, 4),
)
def test_no_message_is_accepted_twice_whatever_the_clock_does(arrivals, most):
    now = 1e9
    guard = ReplayGuard(lambda: now, since=now - 1, most=most)
    sent, accepted = {}, []
    for number, jump in arrivals:
        now += jump
        message = sent.setdefault(number, Unsealed(b"", now, str(number).encode()))
        if guard.accept(message):
            assert abs(now - message.time) <= WINDOW
            accepted.append(number)

    assert len(accepted) == len(set(accepted))


@given(st.lists(st.floats(0.001, WINDOW / 4), max_size=40))
def test_every_message_that_comes_in_time_is_accepted(pauses):
    now = 1e9
    guard = ReplayGuard(lambda: now, since=now)
    for number, pause in enumerate(pauses):
        now += pause

        assert guard.accept(Unsealed(b"", now - pause / 2, str(number).encode()))


def test_nothing_from_before_the_start_is_accepted():
    guard = ReplayGuard(lambda: 100.0, since=100.0)

    assert not guard.accept(Unsealed(b"", 99.9, b"n"))
    assert guard.accept(Unsealed(b"", 100.1, b"n"))


def replica(coordinator, clock=lambda: 1e9):
    shared = SingleUse(LIFE)
    shared.share(coordinator.records, Seal(KEY, clock))
    return shared


async def use_over_replicas(coordinator, one, other):
    """Two replicas try everything at the same moment."""
    here, there = replica(coordinator), replica(coordinator)
    await here.issue(*one)
    taken = []

    async def take(which, binding):
        taken.append((binding == one, await which.take(*binding)))

    async with anyio.create_task_group() as tasks:
        for which in (here, there, here, there):
            tasks.start_soon(take, which, other)
            tasks.start_soon(take, which, one)
    return sorted(is_right for is_right, is_taken in taken if is_taken)


@given(bindings, bindings)
def test_two_replicas_use_it_once(one, other):
    assume(bind(*one) != bind(*other))

    assert asyncio.run(use_over_replicas(LocalCoordinator(), one, other)) == [True]


@needs_redis
def test_two_replicas_use_it_once_over_redis():
    numbers = count()

    with running_redis() as server:

        async def use(one, other):
            async with open_redis(server.url, namespace=f"n{next(numbers)}") as coordinator:
                return await use_over_replicas(coordinator, one, other)

        @settings(max_examples=20)
        @given(bindings, bindings)
        def check(one, other):
            assume(bind(*one) != bind(*other))

            assert asyncio.run(use(one, other)) == [True]

        check()


async def test_a_used_record_that_is_put_back_is_not_used_again():
    coordinator = LocalCoordinator()
    here = replica(coordinator)
    await here.issue("a")
    ((name, record),) = (await coordinator.records.scan("once/")).items()

    assert await here.take("a")
    await coordinator.records.write(name, record)
    assert not await here.take("a")


async def test_an_expired_record_that_is_put_back_is_not_used_by_any_replica():
    now = 1e9
    coordinator = LocalCoordinator()
    here, there = replica(coordinator, lambda: now), replica(coordinator, lambda: now)
    await here.issue("a")
    now += LIFE + 1

    assert not await there.take("a")


async def test_a_record_of_another_key_or_name_is_not_used():
    coordinator = LocalCoordinator()
    here = replica(coordinator)
    await here.issue("a")
    ((name, record),) = (await coordinator.records.scan("once/")).items()
    await here.issue("b")
    (other,) = (await coordinator.records.scan("once/")).keys() - {name}
    await coordinator.records.write(other, record)

    assert not await here.take("b")


async def test_without_a_coordinator_nothing_is_used():
    class Down:
        async def read(self, *_, **__):
            raise CoordinatorDown("Redis does not answer")

        write = delete = read

    shared = SingleUse(LIFE)
    shared.share(Down(), Seal(KEY))
    await shared.issue("a")

    assert not await shared.take("a")


@pytest.mark.parametrize("off", [-3600.0, 3600.0])
async def test_the_clock_of_a_cluster_is_the_coordinators(off):
    clock = CoordinatorClock(LocalCoordinator(lambda: 1e9 + off))
    await clock.adjust()

    assert abs(clock() - (1e9 + off)) < WINDOW
