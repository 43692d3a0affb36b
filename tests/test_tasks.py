import asyncio
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar

import anyio
import pytest

from multitap.errors import ungrouped
from multitap.tasks import WAITING, CancelHandle, InOwnTask, LightTask, Tasks, in_task


async def test_a_callback_may_start_a_task():
    done = asyncio.Event()

    async def work():
        with anyio.fail_after(30):
            await anyio.sleep(0)
        done.set()

    async with Tasks() as tasks:
        asyncio.get_running_loop().call_soon(tasks.start_soon, work)
        with anyio.fail_after(30):
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

    with anyio.fail_after(30):
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

    with anyio.fail_after(30):
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


async def test_a_light_task_that_fails_does_not_keep_others_from_their_work(caplog):
    async def wrong():
        raise ZeroDivisionError

    async with Tasks() as tasks:
        light = LightTask(tasks)
        light.run(wrong())
        light.run()
        light.cancel()

    assert "ZeroDivisionError" in caplog.text


async def test_a_light_task_that_waits_for_more_than_an_answer_becomes_a_task():
    done = asyncio.Event()

    async def work(light):
        await asyncio.sleep(0.001)
        assert asyncio.current_task() is light.task
        done.set()

    async with Tasks() as tasks:
        light = LightTask(tasks)
        light.run(work(light))
        with anyio.fail_after(30):
            await done.wait()


async def test_a_cancelled_light_task_cleans_up_whatever_its_clean_up_waits_for():
    ended = asyncio.Event()

    async def work():
        try:
            await WAITING
        finally:
            await asyncio.sleep(0.001)
            await asyncio.sleep(0)
            ended.set()

    async with Tasks() as tasks:
        light = LightTask(tasks)
        light.run(work())
        light.cancel()
        with anyio.fail_after(30):
            await ended.wait()


async def test_a_cancelled_light_task_may_clean_up_in_a_task():
    seen = []

    async def work(light):
        try:
            await WAITING
        finally:
            await in_task(light)
            seen.append(asyncio.current_task() is light.task)

    async with Tasks() as tasks:
        light = LightTask(tasks)
        light.run(work(light))
        light.cancel()
        with anyio.fail_after(30):
            while not seen:
                await asyncio.sleep(0)

    assert seen == [True]


@pytest.mark.parametrize("wait", [lambda _: WAITING, lambda _: asyncio.sleep(0), in_task])
async def test_a_light_task_that_cancels_itself_notices_it_at_its_next_wait(wait):
    seen = []

    async def work(light):
        light.cancel()
        try:
            await wait(light)
            seen.append("went on")
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async with Tasks() as tasks:
        light = LightTask(tasks)
        light.run(work(light))
        with anyio.fail_after(30):
            while not seen:
                await asyncio.sleep(0)

    assert seen == ["cancelled"]


async def test_a_light_task_that_was_cancelled_before_it_began_ends_at_its_first_wait():
    seen = []

    async def work():
        seen.append("begun")
        await WAITING
        seen.append("went on")

    async with Tasks() as tasks:
        light = LightTask(tasks)
        light.cancel()
        light.run(work())
        light.run()

    assert seen == ["begun"]


async def test_a_light_task_is_cancelled_once_and_may_wait_for_another_answer():
    seen = []

    async def work():
        try:
            await WAITING
        except asyncio.CancelledError:
            await WAITING
            await WAITING
            seen.append("done")

    async with Tasks() as tasks:
        light = LightTask(tasks)
        light.run(work())
        for step in (light.cancel, light.run, light.cancel, light.run):
            step()

    assert seen == ["done"]


async def test_a_light_task_that_became_a_task_is_cancelled_before_it_begins():
    seen = []

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            seen.append("ended")

    async with Tasks() as tasks:
        light = LightTask(tasks)
        light.run(work())
        light.cancel()

    assert seen == ["ended"]


async def test_a_light_task_that_becomes_a_task_after_its_owner_has_left_is_cancelled():
    seen = []

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("ended")

    async with Tasks() as tasks:
        light = LightTask(tasks)
    light.run(work())
    with anyio.fail_after(30):
        while not seen:
            await asyncio.sleep(0)

    assert seen == ["ended"]


async def test_a_late_answer_does_not_step_a_light_task_that_is_a_task_now(caplog):
    seen = []

    async def work(light):
        await in_task(light)
        seen.append(asyncio.current_task() is light.task)

    async with Tasks() as tasks:
        light = LightTask(tasks)
        light.run(work(light))
        light.run()
        with anyio.fail_after(30):
            while not seen:
                await asyncio.sleep(0)

    assert seen == [True]
    assert not caplog.text


async def test_an_error_of_a_light_task_ends_its_owner_where_it_became_a_task():
    async def work():
        await asyncio.sleep(0)
        raise LookupError("gone")

    async def own():
        with ungrouped():
            async with Tasks() as tasks:
                LightTask(tasks).run(work())
                await anyio.sleep_forever()

    with pytest.raises(LookupError, match="gone"):
        await own()


VARIABLE = ContextVar("variable", default="unset")


async def _set_and_wait(seen, *waits):
    VARIABLE.set("own")
    for wait in waits:
        await wait
        seen.append(VARIABLE.get())


async def test_a_light_task_keeps_its_context_variables_and_gives_them_to_nobody():
    seen = []
    async with Tasks() as tasks:
        light = LightTask(tasks)
        light.run(_set_and_wait(seen, WAITING, asyncio.sleep(0), asyncio.sleep(0)))
        assert VARIABLE.get() == "unset"

        Context().run(light.run)  # by a reader with a context of its own
        with anyio.fail_after(30):
            while len(seen) < 3:
                await asyncio.sleep(0)

    assert seen == ["own", "own", "own"]
    assert VARIABLE.get() == "unset"


async def test_a_cancelled_light_task_cleans_up_in_its_own_context():
    seen = []

    async def work():
        VARIABLE.set("own")
        try:
            await WAITING
        finally:
            seen.append(VARIABLE.get())
            VARIABLE.set("cleaned up")

    async with Tasks() as tasks:
        light = LightTask(tasks)
        light.run(work())
        light.cancel()

    assert seen == ["own"]
    assert VARIABLE.get() == "unset"


async def test_a_light_task_goes_on_as_a_task_of_its_owner_and_ends_with_it():
    seen = []

    async def work(light):
        seen.append(asyncio.current_task() is caller)
        await in_task(light)
        seen.append(asyncio.current_task() is light.task)
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("ended")

    caller = asyncio.current_task()
    async with Tasks() as tasks:
        light = LightTask(tasks)
        light.run(work(light))
        while len(seen) < 2:
            await asyncio.sleep(0)

    assert seen == [True, True, "ended"]


@asynccontextmanager
async def _scoped():
    """A block that only the task may leave that entered it."""
    async with anyio.create_task_group() as tasks:
        yield tasks
        tasks.cancel_scope.cancel()


async def test_a_block_in_its_own_task_can_be_left_by_another_task():
    block = InOwnTask(_scoped())
    async with Tasks() as tasks:
        entering = tasks.adopt(_enter(block))
        await asyncio.wait((entering,))
        leaving = tasks.adopt(block.__aexit__(None, None, None))
        await asyncio.wait((leaving,))

        assert leaving.exception() is None


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
