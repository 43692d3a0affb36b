import asyncio

import anyio
import pytest

from multitap.upstream.slots import Full, Slots


async def test_a_free_slot_is_taken_without_waiting():
    slots = Slots(working=2, waiting=0)

    assert slots.take()
    assert slots.take()
    assert not slots.take()


async def test_who_waits_longest_is_next():
    slots = Slots(working=1, waiting=2)
    slots.take()
    order = []

    async def work(name):
        await slots.wait()
        order.append(name)
        slots.give()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work, "first")
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(work, "second")
        await anyio.wait_all_tasks_blocked()
        slots.give()

    assert order == ["first", "second"]
    assert slots.working == 0


async def test_a_full_queue_refuses_at_once():
    slots = Slots(working=1, waiting=0)
    slots.take()

    with pytest.raises(Full):
        await slots.wait()


async def test_a_slot_given_to_one_who_left_goes_to_the_next():
    slots = Slots(working=1, waiting=2)
    slots.take()
    leaver = asyncio.get_running_loop().create_task(slots.wait())
    await anyio.wait_all_tasks_blocked()
    slots.give()
    leaver.cancel()
    await asyncio.wait({leaver})

    assert leaver.cancelled()
    assert slots.working == 0


async def test_one_rival_leaves_slots_to_the_others():
    slots = Slots(working=4, waiting=4)

    assert [slots.take("a") for _ in range(4)] == [True, True, True, False]
    assert slots.take("b")
    assert not slots.take("c")
    slots.give("a")
    assert slots.take("c")


async def test_rivals_are_called_up_in_turn():
    slots = Slots(working=1, waiting=8)
    assert slots.take("a")
    order = []

    async def work(rival):
        await slots.wait(rival)
        order.append(rival)
        slots.give(rival)

    async with anyio.create_task_group() as tasks:
        for rival in "aaaabbc":
            tasks.start_soon(work, rival)
        await anyio.wait_all_tasks_blocked()
        slots.give("a")

    assert "".join(order[:3]) == "abc"
    assert sorted(order) == [*"aaaabbc"]
    assert slots.working == 0


async def test_one_rival_does_not_fill_the_queue():
    slots = Slots(working=1, waiting=4)
    assert slots.take("a")
    async with anyio.create_task_group() as tasks:
        for rival in ("a", "a", "a", "b"):
            tasks.start_soon(slots.wait, rival)
            await anyio.wait_all_tasks_blocked()
        with pytest.raises(Full, match="4 calls already wait"):
            await slots.wait("a")
        tasks.cancel_scope.cancel()
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(slots.wait, "a")
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Full, match="3 of all 4 waiting calls"):
            await slots.wait("a")
        tasks.cancel_scope.cancel()
