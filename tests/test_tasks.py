import asyncio
from contextlib import asynccontextmanager
from contextvars import ContextVar

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multitap.errors import ungrouped
from multitap.tasks import CancelHandle, InOwnTask, Tasks, Work
from tests.waiting import PATIENCE, until


async def test_a_callback_may_start_a_task():
    done = asyncio.Event()

    async def work():
        with anyio.fail_after(PATIENCE):
            await anyio.sleep(0)
        done.set()

    async with Tasks() as tasks:
        asyncio.get_running_loop().call_soon(tasks.start_soon, work)
        with anyio.fail_after(PATIENCE):
            await done.wait()


async def test_leaving_the_block_ends_what_still_runs_and_waits_for_it():
    ended = []

    async def work():
        try:
            await anyio.sleep_forever()
        finally:
            await anyio.sleep(0.01)  # its end takes a while
            ended.append(True)

    async with Tasks() as tasks:
        tasks.start_soon(work)
        await anyio.sleep(0)

    assert ended == [True]


async def test_a_task_whose_wait_is_over_at_that_moment_ends_too():
    """The time of a wait is up in the turn of the loop in which the block is left."""

    async def work():
        while True:
            with anyio.move_on_after(0.001):
                await anyio.sleep_forever()

    with anyio.fail_after(PATIENCE):
        for _ in range(20):
            async with Tasks() as tasks:
                tasks.start_soon(work)
                task = await _first(tasks)
                while not task.cancelling():
                    await asyncio.sleep(0)


async def _first(tasks):
    while not tasks._running:
        await asyncio.sleep(0)
    return next(iter(tasks._running))


async def test_a_task_cleans_up_in_peace_however_often_its_owner_is_cancelled():
    ended, cleaning = [], asyncio.Event()

    async def work():
        try:
            await anyio.sleep_forever()
        finally:
            cleaning.set()
            await anyio.sleep(0.05)  # its end takes a while
            ended.append(True)

    async def own():
        async with Tasks() as tasks:
            tasks.start_soon(work)
            await anyio.sleep_forever()

    async with anyio.create_task_group() as owners:
        owner = asyncio.get_running_loop().create_task(own())
        owners.start_soon(anyio.sleep, 0)
        await anyio.sleep(0)
        owner.cancel()
        await cleaning.wait()
        owner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner

    assert ended == [True]


async def test_a_task_that_swallows_its_cancellation_does_not_hold_up_its_owner(caplog):
    swallowed = []

    async def work():
        while len(swallowed) < 2:
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError:
                swallowed.append(True)

    with anyio.fail_after(PATIENCE):
        async with Tasks(end_limit=0.01) as tasks:
            tasks.start_soon(work, name="stubborn")
            await anyio.sleep(0)
        while len(swallowed) < 2:
            await anyio.sleep(0)

    assert "'stubborn' still runs" in caplog.text


async def test_a_cancelled_scope_ends_the_block_and_nothing_outside_it():
    async def work():
        await anyio.sleep_forever()

    with anyio.move_on_after(0.01) as scope:
        async with Tasks() as tasks:
            tasks.start_soon(work)
            await anyio.sleep_forever()

    await anyio.sleep(0)
    assert scope.cancelled_caught


async def test_an_error_in_a_task_ends_the_block_and_leaves_as_itself():
    async def work():
        raise LookupError("gone")

    async def own():
        with ungrouped():
            async with Tasks() as tasks:
                tasks.start_soon(work)
                await anyio.sleep_forever()

    with pytest.raises(LookupError, match="gone"):
        await own()

    await anyio.sleep(0)
    assert not asyncio.current_task().cancelling()


async def test_an_error_in_a_task_apart_is_logged_and_ends_nothing_else(caplog):
    failed, goes_on = anyio.Event(), anyio.Event()

    async def fail():
        failed.set()
        raise ValueError("of one client")

    async with Tasks() as tasks:
        tasks.start_apart(fail)
        await failed.wait()
        tasks.start_soon(_set, goes_on)
        await goes_on.wait()

    assert "of one client" in caplog.text


async def _set(event):
    event.set()


async def test_the_error_of_the_block_itself_leaves_as_itself():
    async def own():
        with ungrouped():
            async with Tasks() as tasks:
                tasks.start_soon(anyio.sleep_forever)
                raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        await own()


async def test_work_that_is_given_up_before_it_began_does_nothing():
    handle, done = CancelHandle(), []

    async def work():
        with handle:
            await anyio.sleep(0)
            done.append(True)

    handle.cancel()
    async with Tasks() as tasks:
        tasks.start_soon(work)
        await anyio.wait_all_tasks_blocked()

    assert not done


VARIABLE = ContextVar("variable", default="unset")
WAITS = 3


async def test_work_runs_in_a_task_of_its_owner_and_ends_with_it():
    seen = []

    async def work(it):
        await asyncio.sleep(0)
        seen.append(asyncio.current_task() is it.task)
        with anyio.move_on_after(0):  # needs a task
            await anyio.sleep_forever()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("ended")

    async with Tasks() as tasks:
        it = Work()
        tasks.begin(it, work(it))
        await until(lambda: seen)

    assert seen == [True, "ended"]


@pytest.mark.parametrize("turns", range(WAITS + 3))
@pytest.mark.parametrize("by", ["itself", "its owner"])
async def test_work_cleans_up_wherever_it_is_cancelled(turns, by):
    seen = []

    async def work():
        seen.append("begun")
        try:
            for _ in range(WAITS):
                await asyncio.sleep(0)
            seen.append("done")
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            seen.append("ended")

    async with Tasks() as tasks:
        it = Work()
        tasks.begin(it, work())
        for _ in range(turns):
            await asyncio.sleep(0)
        if by == "itself":
            it.cancel()
            await until(lambda: "ended" in seen)

    assert seen in (["begun", "cancelled", "ended"], ["begun", "done", "ended"])
    assert it.stopped == (by == "itself")


@given(st.lists(st.sampled_from(["wait", "future", "scope", "cancel", "other"]), max_size=8))
@settings(deadline=None, max_examples=50)
def test_work_keeps_its_context_and_releases_what_it_holds(steps):
    """Whatever it waits for, and wherever it or another cancels it."""

    async def scenario():
        held, leaked = [], []

        async def work(it, number):
            VARIABLE.set(number)
            held.append(number)
            try:
                for step in steps:
                    match step:
                        case "wait":
                            await asyncio.sleep(0)
                        case "future":
                            future = asyncio.get_running_loop().create_future()
                            asyncio.get_running_loop().call_soon(_ring, future)
                            await future
                        case "scope":
                            with anyio.move_on_after(10):
                                await anyio.sleep(0)
                        case "cancel":
                            it.cancel()
                        case "other":
                            works[number - 1].cancel()
                    leaked.extend({VARIABLE.get()} - {number})
            finally:
                held.remove(number)
                leaked.extend({VARIABLE.get()} - {number})

        async with Tasks() as tasks:
            works = [Work() for _ in range(3)]
            for number, it in enumerate(works):
                tasks.begin(it, work(it, number))
                assert VARIABLE.get() == "unset"
            await until(lambda: not any(it.task for it in works))

        assert not held
        assert not leaked

    asyncio.run(scenario())


def _ring(future):
    if not future.done():
        future.set_result(None)


async def test_work_that_was_cancelled_before_it_began_ends_at_its_first_wait():
    seen = []

    async def work():
        seen.append("begun")
        await asyncio.sleep(0)
        seen.append("went on")

    async with Tasks() as tasks:
        it = Work()
        it.cancel()
        tasks.begin(it, work())
        await until(it.task.done)

    assert seen == ["begun"]


async def test_work_may_answer_after_its_cancellation():
    seen = []

    async def work(it):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            it.resume()
            with anyio.fail_after(PATIENCE):
                await anyio.sleep(0)
            seen.append(asyncio.current_task().cancelling())

    async with Tasks() as tasks:
        it = Work()
        tasks.begin(it, work(it))
        it.cancel()
        await until(lambda: seen)

    assert seen == [0]


async def test_work_that_begins_after_its_owner_has_left_is_cancelled():
    seen = []

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("ended")

    async with Tasks() as tasks:
        pass
    tasks.begin(Work(), work())
    await until(lambda: seen)

    assert seen == ["ended"]


@pytest.mark.parametrize("waits", [0, 1])
async def test_an_error_of_work_is_logged_and_ends_nothing_else(waits, caplog):
    others = []

    async def work():
        for _ in range(waits):
            await asyncio.sleep(0)
        raise LookupError("gone")

    async def other():
        await asyncio.sleep(0)
        others.append("ended")

    async with Tasks() as tasks:
        tasks.begin(Work(), work())
        await until(lambda: caplog.records)
        tasks.begin(Work(), other())
        await until(lambda: others)

    assert [(record.message, str(record.exc_info[1])) for record in caplog.records] == [
        ("a request failed", "gone")
    ]


@asynccontextmanager
async def _scoped():
    """A block that only the task may leave that entered it."""
    async with anyio.create_task_group() as tasks:
        yield tasks
        tasks.cancel_scope.cancel()


async def test_a_block_in_its_own_task_can_be_left_by_another_task(caplog):
    block = InOwnTask(_scoped())
    async with Tasks() as tasks:
        for step in (_enter(block), block.__aexit__(None, None, None)):
            it = Work()
            tasks.begin(it, step)
            await until(lambda it=it: it.task is None)

    assert not caplog.records


async def _enter(block):
    await block.__aenter__()


async def test_what_goes_wrong_in_a_block_in_its_own_task_is_raised_by_it():
    async def fail():
        raise ZeroDivisionError

    async def use():
        with ungrouped():
            async with InOwnTask(_scoped()) as tasks:
                tasks.start_soon(fail)
                await anyio.sleep_forever()

    with pytest.raises(ZeroDivisionError):
        await use()

    assert not asyncio.current_task().cancelling()


async def test_an_error_at_the_entrance_of_a_block_in_its_own_task_is_raised_there():
    @asynccontextmanager
    async def closed():
        raise ZeroDivisionError
        yield

    with pytest.raises(ZeroDivisionError):
        async with InOwnTask(closed()):
            pass


async def test_a_block_in_its_own_task_is_left_when_the_one_who_uses_it_is_cancelled():
    seen = []

    @asynccontextmanager
    async def noted():
        async with _scoped():
            try:
                yield
            finally:
                await anyio.sleep(0)
                seen.append("left")

    with anyio.move_on_after(0.01) as scope:
        async with InOwnTask(noted()):
            await anyio.sleep_forever()

    assert scope.cancelled_caught
    assert seen == ["left"]
