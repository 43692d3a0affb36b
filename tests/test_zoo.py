"""Every fault of the zoo beside a healthy neighbour: promises P1-P18."""

import gc
import os
import resource
import time
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from multitap import Settings, StdioServer, open_hub
from multitap.errors import (
    BadAnswer,
    CallTimeout,
    ServerError,
    Unavailable,
    UnknownName,
)
from multitap.events import LinkState
from tests.processes import time_in_queue
from tests.waiting import PATIENCE, until
from tests.zoo.ledger import Ledger
from tests.zoo.modes import MODES, Group, Outcome, command

CALL = 2.0
"""Seconds for a call: too short for what never answers, long enough for the others."""
LOST = 15.0
"""Seconds after which a server that does not work again never will."""
STALL = 0.25
"""Seconds of our own work that may stand between a neighbour's call and its answer."""
WAIT = 1.5
"""Seconds that it may wait in all, without those in which the machine is busy with other things."""
GROWTH = 128 * 1024 * 1024
"""Bytes that one bad server may cost us at most."""


@pytest.fixture(scope="module", autouse=True)
def _others_garbage():
    """What other tests of this process left to the collector is no work of a hub."""
    gc.collect()
    gc.freeze()


def server(mode, *options, folder=None, **settings):
    program, *args = command(mode, *options)
    env = Ledger(folder).env if folder else {}
    env["ZOO_SECRET"] = "hunter2-hunter2"
    return StdioServer(command=program, args=tuple(args), env=env, **settings)


def _is_much(mode):
    """Whether it takes its time, and nothing else is wrong with it."""
    heals = mode.restarts or mode.found_by_health or Outcome.TIMEOUT in mode.outcomes
    return mode.group in {Group.FLOOD, Group.SIZE} and not heals


@asynccontextmanager
async def hub_with(mode, tmp_path, **settings):
    folder = tmp_path / "zoo"
    folder.mkdir()
    call = PATIENCE if _is_much(MODES[mode]) else CALL
    limits = {"timeout": call, "hard_timeout": call + 1, "connect_timeout": 4}
    bad = {**limits, "health_interval": 1, **settings}
    wanted = Settings(
        servers={
            "neighbour": server("good_legacy"),
            "bad": server(mode, folder=folder, **bad),
        },
        state_dir=tmp_path / "state",
    )
    async with open_hub(wanted) as hub:
        await until(lambda: hub.links["neighbour"].state is LinkState.CONNECTED)
        yield hub


class Neighbour:
    """Calls a healthy server all the time and notes how long it has to wait."""

    def __init__(self, hub):
        self._hub = hub
        self.longest_stall = 0.0
        self.longest_wait = 0.0
        self.calls = 0
        self._before = memory()
        self.growth = 0

    async def run(self):
        while True:
            asked, worked, queued = time.perf_counter(), time.thread_time(), self._queued()
            result = await self._hub.call("neighbour_echo", {"text": "hi"})
            wait = time.perf_counter() - asked - (self._queued() - queued)
            self.longest_wait = max(self.longest_wait, wait)
            self.longest_stall = max(self.longest_stall, time.thread_time() - worked)
            self.calls += 1
            self.growth = max(self.growth, memory() - self._before)
            assert result.text == "hi"
            await anyio.sleep(0.05)  # its pace

    def _queued(self):
        """Seconds for which we and the neighbour were ready to run, and others ran."""
        server = self._hub.links["neighbour"].pid
        return time_in_queue(os.getpid()) + time_in_queue(server)


def memory():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def outcome(hub, name):
    try:
        result = await hub.call(name)
    except CallTimeout:
        return Outcome.TIMEOUT
    except BadAnswer:
        return Outcome.BAD_ANSWER
    except Unavailable:
        return Outcome.UNAVAILABLE
    except ServerError:
        return Outcome.SERVER_ERROR
    except UnknownName:
        return Outcome.UNKNOWN
    if result.code is not None:
        return Outcome.SERVER_ERROR
    return Outcome.OK if result.success else Outcome.TOOL_ERROR


def failed(hub, code):
    failure = hub.snapshot().server("bad").failure
    return failure is not None and code in {None, failure.code}


async def survived(hub, patience=PATIENCE):
    """Whether `echo` works again, perhaps after a restart."""
    with anyio.move_on_after(patience):
        while True:
            if await outcome(hub, "bad_pid") is Outcome.OK:
                return True
            await anyio.sleep(0.05)  # it is starting again, or never will
    return False


@pytest.mark.parametrize("mode", MODES)
async def test_a_fault_stays_its_servers_own_problem(mode, tmp_path):
    expected = MODES[mode]
    async with hub_with(mode, tmp_path) as hub, anyio.create_task_group() as tasks:
        neighbour = Neighbour(hub)
        tasks.start_soon(neighbour.run)
        with anyio.fail_after(PATIENCE):
            await hub.settled()
        if expected.connects:
            # some list their tools late, and of some the faulty one is left out
            listed = "bad_pid" if Outcome.UNKNOWN in expected.outcomes else "bad_fault"
            await until(lambda: listed in hub.catalog.tools)
            with anyio.fail_after(PATIENCE + 10):
                result = await outcome(hub, "bad_fault")
            assert result in expected.outcomes, hub.snapshot().server("bad")
            patience = PATIENCE if expected.survives else LOST
            assert await survived(hub, patience) is expected.survives
            await until(lambda: not expected.warns or hub.snapshot().server("bad").warnings)
        else:
            await until(lambda: failed(hub, expected.failure_code))
            assert hub.snapshot().server("bad").failure.hint
        await until(lambda: neighbour.calls >= 2)
        tasks.cancel_scope.cancel()

    assert neighbour.calls
    assert neighbour.longest_stall <= STALL
    assert neighbour.longest_wait <= WAIT
    assert neighbour.growth <= GROWTH
    assert "hunter2" not in repr(hub.snapshot())
