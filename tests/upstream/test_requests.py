"""The slots of a server, and who waits for one."""

import asyncio

import anyio
import pytest

from multitap import HttpServer, Settings, open_hub
from multitap.upstream.requests import Attribution, CallSlots, QueueFull, ServerHabits
from multitap.wire.jsonrpc import EMPTY
from tests.waiting import PATIENCE
from tests.wire import http_zoo as zoo


async def test_a_free_slot_is_taken_without_waiting():
    slots = CallSlots(working=2, waiting=0)

    assert slots.take()
    assert slots.take()
    assert not slots.take()


async def test_who_waits_longest_is_next():
    slots = CallSlots(working=1, waiting=2)
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
    slots = CallSlots(working=1, waiting=0)
    slots.take()

    with pytest.raises(QueueFull):
        await slots.wait()


async def test_a_slot_given_to_one_who_left_goes_to_the_next():
    slots = CallSlots(working=1, waiting=2)
    slots.take()
    leaver = asyncio.get_running_loop().create_task(slots.wait())
    await anyio.wait_all_tasks_blocked()
    slots.give()
    leaver.cancel()
    await asyncio.wait({leaver})

    assert leaver.cancelled()
    assert slots.working == 0


async def test_one_rival_leaves_slots_to_the_others():
    slots = CallSlots(working=8, waiting=4)
    assert slots.take("b")

    assert [slots.take("a") for _ in range(7)] == [True] * 6 + [False]
    assert slots.take("b")
    assert not slots.take("c")
    slots.give("a")
    assert slots.take("c")


async def test_calls_that_hang_never_take_all_slots():
    slots = CallSlots(working=4, waiting=4)

    assert [slots.take("a") for _ in range(4)] == [True, True, True, False]
    assert slots.take("b")


async def test_a_holder_alone_may_have_all_slots_and_a_newcomer_gets_the_next_ones():
    slots = CallSlots(working=4, waiting=8)
    assert slots.take("a")
    slots.give("a")  # its calls are answered
    assert [slots.take("a") for _ in range(5)] == [True] * 4 + [False]
    order = []

    async def work(slot_holder):
        await slots.wait(slot_holder)
        order.append(slot_holder)

    async with anyio.create_task_group() as tasks:
        for slot_holder in "aaabb":
            tasks.start_soon(work, slot_holder)
            await anyio.wait_all_tasks_blocked()
        for given in range(1, 4):
            slots.give("a")
            await anyio.wait_all_tasks_blocked()
            assert len(order) == given
        tasks.cancel_scope.cancel()

    assert order[:2] == ["b", "a"] or order[:2] == ["b", "b"]
    assert order.count("b") == 2


async def test_rivals_are_called_up_in_turn():
    slots = CallSlots(working=1, waiting=8)
    assert slots.take("a")
    order = []

    async def work(slot_holder):
        await slots.wait(slot_holder)
        order.append(slot_holder)
        slots.give(slot_holder)

    async with anyio.create_task_group() as tasks:
        for slot_holder in "aaaabbc":
            tasks.start_soon(work, slot_holder)
        await anyio.wait_all_tasks_blocked()
        slots.give("a")

    assert "".join(order[:3]) == "abc"
    assert sorted(order) == [*"aaaabbc"]
    assert slots.working == 0


async def test_one_rival_does_not_fill_the_queue():
    slots = CallSlots(working=1, waiting=4)
    assert slots.take("a")
    async with anyio.create_task_group() as tasks:
        for slot_holder in ("a", "a", "a", "b"):
            tasks.start_soon(slots.wait, slot_holder)
            await anyio.wait_all_tasks_blocked()
        with pytest.raises(QueueFull, match="4 calls already waiting"):
            await slots.wait("a")
        tasks.cancel_scope.cancel()
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(slots.wait, "a")
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(QueueFull, match="3 of the 4 waiting calls"):
            await slots.wait("a")
        tasks.cancel_scope.cancel()


async def test_a_slot_given_back_before_one_waits_is_not_lost():
    slots = CallSlots(1, 1)
    assert slots.take("first")
    assert not slots.take("second")
    slots.give("first")

    with anyio.fail_after(PATIENCE):
        await slots.wait("second")

    assert slots.working == 1


async def test_methods_that_clients_invent_do_not_fill_the_memory():
    attribution = Attribution(ServerHabits(), mixes=True)
    attribution.was_quiet("add")
    attribution.was_quiet("acme/" + 1000 * "x")
    for number in range(30_000):
        attribution.was_quiet(f"acme/{number}")

    assert not attribution.may_mix("add")
    assert len(attribution.quiet_subjects) <= 20_000
    assert max(map(len, attribution.quiet_subjects)) <= 256


@pytest.mark.parametrize("status", [400, 401, 500])
async def test_a_notification_that_a_server_refuses_is_dropped(tmp_path, status):
    async def handler(request, caller):
        if request.rpc in {"acme/hello", "notifications/roots/list_changed"}:
            await caller.respond(status=status)
        elif request.rpc == "initialize":
            terms = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "serverInfo": {"name": "s", "version": "1"},
            }
            await caller.respond(zoo.result(request, **terms))
        else:
            await zoo.polite(request, caller)

    async with zoo.serve(handler) as server:
        config = HttpServer(url=server.url, era="handshake")
        async with open_hub(Settings(servers={"s": config}, state_dir=tmp_path)) as hub:
            await hub.settled()
            requests = hub.links["s"].requests
            await requests.notify("acme/hello", {}, EMPTY)
            await requests.tell("notifications/roots/list_changed")

        assert server.of("acme/hello")
        assert server.of("notifications/roots/list_changed")
