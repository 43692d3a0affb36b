import os
import signal
import sys
from contextlib import asynccontextmanager

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap import Settings, open_hub
from multitap.config import StdioServer
from multitap.events import FailureCode, LinkChanged, LinkState, Warned
from multitap.hub.supervisor import Plan, plan
from tests.waiting import PATIENCE
from tests.zoo.modes import SERVER

ONE, TWO = StdioServer(command="one"), StdioServer(command="two")
configurations = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([ONE, TWO]))


@pytest.mark.parametrize(
    ("running", "wanted", "expected", "words"),
    [
        pytest.param({}, {"a": ONE}, Plan(start=frozenset("a")), "start a", id="added"),
        pytest.param({"a": ONE}, {}, Plan(stop=frozenset("a")), "stop a", id="removed"),
        pytest.param(
            {"a": ONE}, {"a": TWO}, Plan(replace=frozenset("a")), "replace a", id="changed"
        ),
        pytest.param({"a": ONE}, {"a": ONE}, Plan(keep=frozenset("a")), "keep a", id="unchanged"),
        pytest.param({}, {}, Plan(), "nothing to do", id="empty"),
    ],
)
def test_plan(running, wanted, expected, words):
    assert plan(running, wanted) == expected
    assert str(plan(running, wanted)) == words


@given(configurations, configurations)
def test_carrying_out_a_plan_makes_running_equal_to_wanted(running, wanted):
    todo = plan(running, wanted)
    result = {name: config for name, config in running.items() if name not in todo.stop}
    result |= {name: wanted[name] for name in todo.start | todo.replace}

    assert result == wanted
    assert todo.keep | todo.replace | todo.start == wanted.keys()
    assert all(running[name] == wanted[name] for name in todo.keep)


def test_a_successor_that_is_not_up_yet_is_neither_replaced_nor_started_again():
    running, coming = {"a": ONE}, {"a": TWO}

    assert plan(running, {"a": TWO}, coming) == Plan(keep=frozenset("a"))
    assert plan(running, {"a": ONE}, coming) == Plan(keep=frozenset("a"))
    assert plan(running, {}, coming) == Plan(stop=frozenset("a"))


GOOD = StdioServer(command=sys.executable, args=(str(SERVER), "good"))
MISSING = StdioServer(command="/nonexistent/program")
CRASHING = StdioServer(command=sys.executable, args=("-c", "raise SystemExit('no luck')"))
HANGING = StdioServer(command=sys.executable, args=("-c", "input()"))


def good_after(script):
    """A good server that first runs a script."""
    serve = f"import runpy, sys; sys.argv[1:] = ['good']; runpy.run_path({str(SERVER)!r}, None, "
    return StdioServer(command=sys.executable, args=("-c", f"{script}\n{serve}'__main__')"))


def changed(config, **more):
    return config.replace(**more)


@asynccontextmanager
async def running_hub(path, config=GOOD):
    """A hub with one server `a` that is up, and a way to change its configuration."""
    settings = Settings(servers={"a": config}, state_dir=path)

    def apply(**servers):
        return str(hub.apply(settings.replace(servers=servers)))

    async with open_hub(settings) as hub:
        with anyio.fail_after(PATIENCE):
            await hub.settled()
        yield hub, apply


async def pid(hub):
    with anyio.fail_after(PATIENCE):
        return (await hub.call("a_pid")).text


async def until(hub, condition):
    with anyio.fail_after(PATIENCE):
        while not condition():
            await hub.changed.wait()


@pytest.mark.parametrize("broken", [MISSING, CRASHING, changed(HANGING, connect_timeout=0.3)])
async def test_a_server_serves_on_while_its_changed_configuration_does_not_come_up(
    tmp_path, broken
):
    async with running_hub(tmp_path) as (hub, apply):
        before = await pid(hub)
        with hub.events.subscribe() as events:
            assert apply(a=broken) == "replace a"
            with anyio.fail_after(PATIENCE):
                await hub.settled()  # though it never will be up
                while not isinstance(told := await anext(events), Warned):
                    continue
        server = hub.snapshot().server("a")

        assert await pid(hub) == before
        assert server.state is LinkState.CONNECTED
        assert server.failure is None
        assert server.pending is not None
        assert told == Warned(
            "a",
            "the changed configuration does not come up: "
            f"{server.pending}; the previous one keeps serving",
        )


async def test_a_changed_server_is_swapped_in_as_soon_as_it_comes_up_after_all(tmp_path):
    program = tmp_path / "program"
    late = StdioServer(command=str(program), args=(str(SERVER), "good"))
    async with running_hub(tmp_path / "state") as (hub, apply):
        before = await pid(hub)
        apply(a=late)
        await until(hub, lambda: hub.snapshot().server("a").pending)
        during = await pid(hub)
        program.symlink_to(sys.executable)
        hub.restart("a")  # a missing program is not looked for again by itself
        with anyio.fail_after(PATIENCE):
            await hub.settled()

        assert before == during != await pid(hub)
        assert hub.links["a"].config == late
        assert hub.snapshot().server("a").pending is None


async def test_a_failing_successor_is_tried_again_without_being_asked(tmp_path):
    flag = tmp_path / "flag"
    late = good_after(f"import os, sys; os.path.exists({str(flag)!r}) or sys.exit(1)")
    async with running_hub(tmp_path / "state") as (hub, apply):
        before = await pid(hub)
        apply(a=late)
        await until(hub, lambda: hub.snapshot().server("a").pending)
        flag.touch()
        await until(hub, lambda: hub.links["a"].config == late)

        assert await pid(hub) != before


async def test_a_change_that_is_taken_back_before_it_is_up_keeps_process_and_session(tmp_path):
    async with running_hub(tmp_path) as (hub, apply):
        before, session = await pid(hub), hub.links["a"].session
        for broken in (changed(GOOD, timeout=20), MISSING, HANGING):
            apply(a=broken)
            assert apply(a=GOOD) == "keep a"
            assert await pid(hub) == before
        apply(a=MISSING)
        await until(hub, lambda: hub.snapshot().server("a").pending)
        apply(a=GOOD)
        with anyio.fail_after(PATIENCE):
            await hub.settled()

        assert await pid(hub) == before
        assert hub.links["a"].session is session
        assert hub.snapshot().server("a").starts == 1
        assert hub.snapshot().server("a").pending is None


async def test_a_second_change_abandons_the_first_successor(tmp_path):
    async with running_hub(tmp_path) as (hub, apply):
        before = await pid(hub)
        assert apply(a=HANGING) == "replace a"
        assert apply(a=changed(GOOD, timeout=20)) == "replace a"
        with anyio.fail_after(PATIENCE):
            await hub.settled()

        assert await pid(hub) != before
        assert hub.links["a"].config.timeout == 20


@pytest.mark.parametrize("first", [MISSING, HANGING])
async def test_removing_and_disabling_do_not_wait_for_a_successor(tmp_path, first):
    async with running_hub(tmp_path) as (hub, apply):
        apply(a=first)
        apply(a=changed(first, enabled=False))
        assert hub.snapshot().server("a").state is LinkState.DISABLED

        apply(a=GOOD)
        with anyio.fail_after(PATIENCE):
            await hub.settled()
        await pid(hub)
        apply(a=first)
        assert apply() == "stop a"
        assert not hub.links
        assert not hub.catalog.tools


async def test_a_lost_server_is_not_brought_back_by_a_configuration_that_was_replaced(tmp_path):
    async with running_hub(tmp_path) as (hub, apply):
        before = int(await pid(hub))
        apply(a=MISSING)
        await until(hub, lambda: hub.snapshot().server("a").pending)
        with hub.events.subscribe() as events:
            os.kill(before, signal.SIGKILL)
            with anyio.fail_after(PATIENCE):
                while not isinstance(told := await anext(events), LinkChanged):
                    continue
        server = hub.snapshot().server("a")

        assert hub.links["a"].config == MISSING
        assert server.state is LinkState.ERROR
        assert server.failure.code is FailureCode.MISSING_PROGRAM
        assert server.pending is None
        assert told == LinkChanged("a", LinkState.ERROR, server.failure)


async def test_calls_wait_for_a_successor_that_starts_where_the_old_server_was_lost(tmp_path):
    late = good_after("import time; time.sleep(1)")
    async with running_hub(tmp_path) as (hub, apply):
        before = int(await pid(hub))
        apply(a=late)
        os.kill(before, signal.SIGKILL)
        await until(hub, lambda: hub.links["a"].config == late)

        assert int(await pid(hub)) != before


async def test_changes_faster_than_tasks_start_do_no_harm(tmp_path):
    async with running_hub(tmp_path) as (hub, apply):
        before = await pid(hub)
        for timeout in range(20, 40):
            apply(a=changed(GOOD, timeout=timeout))
            apply()
            apply(a=changed(GOOD, timeout=timeout), b=MISSING)
        with anyio.fail_after(PATIENCE):
            await hub.settled()

        assert await pid(hub) != before
        assert hub.links.keys() == {"a", "b"}


async def test_a_hub_can_be_left_while_it_gives_up_a_lost_server(tmp_path):
    with anyio.fail_after(PATIENCE):
        async with running_hub(tmp_path) as (hub, _):
            os.kill(int(await pid(hub)), signal.SIGKILL)
            await until(hub, lambda: hub.snapshot().server("a").state is not LinkState.CONNECTED)
