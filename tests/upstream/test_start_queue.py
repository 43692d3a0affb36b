"""The order of starts, with real processes and a simulated clock."""

import os
import signal
from pathlib import Path

import anyio
import pytest

from multitap.upstream.start_queue import WINDOW, Rank, StartQueue
from multitap.wire.process import cpu_usage
from tests.processes import process
from tests.simulation.clock import run
from tests.waiting import wait_for

BUSY = "while True: pass"
IDLE = "import signal; signal.pause()"
LONG = 100.0
"""Seconds of the turned clock in which everybody who may start has started."""


class Crowd:
    """Servers that wait for their turn, and keep it until they are released."""

    def __init__(self, limit, tasks):
        self.queue = StartQueue(limit)
        self.began = []
        self.started = {}
        self._tasks = tasks

    def add(self, name, rank=Rank.UNKNOWN, pid=None):
        self._tasks.start_soon(self._hold, name, rank, pid)

    async def _hold(self, name, rank, pid):
        async with self.queue.turn(rank) as start:
            self.began.append(name)
            self.started[name] = start
            if pid is not None:
                start.on_spawned(pid)
            await anyio.sleep_forever()


def crowded(limit, scene):
    async def main():
        async with anyio.create_task_group() as tasks:
            await scene(Crowd(limit, tasks))
            tasks.cancel_scope.cancel()

    run(main)


def test_those_that_were_up_start_first_and_those_that_failed_last():
    async def scene(crowd):
        crowd.add("bad", Rank.FAILED_BEFORE)
        crowd.add("new")
        crowd.add("other")
        crowd.add("good", Rank.UP_BEFORE)
        for _ in range(4):
            await anyio.sleep(LONG)
            crowd.started[crowd.began[-1]].over()

        assert crowd.began == ["good", "new", "other", "bad"]

    crowded(1, scene)


def test_no_more_than_the_limit_start_before_one_is_over():
    async def scene(crowd):
        for number in range(5):
            crowd.add(number)
        await anyio.sleep(LONG)
        assert crowd.began == [0, 1]
        crowd.started[0].over()
        crowd.started[0].over()
        await anyio.sleep(LONG)

        assert crowd.began == [0, 1, 2]

    crowded(2, scene)


def test_a_process_that_works_keeps_its_place_however_long_it_takes():
    async def scene(crowd):
        with process(BUSY) as busy:
            crowd.add("busy", pid=busy.pid)
            crowd.add("next")
            await anyio.sleep(LONG)
            assert crowd.began == ["busy"]
            crowd.started["busy"].over()
            await anyio.sleep(LONG)

            assert crowd.began == ["busy", "next"]

    crowded(1, scene)


@pytest.mark.parametrize("child", [BUSY, IDLE], ids=["busy", "idle"])
def test_what_a_launcher_starts_counts_as_its_own(child):
    launcher = f"import os, signal\nif os.fork() == 0:\n    {child}\nos.wait()"

    async def scene(crowd):
        with process(launcher) as launched:
            children = wait_for(lambda: _children(launched.pid))
            if child is IDLE:  # in real seconds: on a busy machine it takes a while to fall asleep
                wait_for(lambda: all(map(_sleeps, [launched.pid, *children])))
            try:
                crowd.add("launcher", pid=launched.pid)
                crowd.add("next")
                await anyio.sleep(LONG)

                assert ("next" in crowd.began) is (child is IDLE)
            finally:
                os.kill(children[0], signal.SIGKILL)

    crowded(1, scene)


def _children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _sleeps(pid):
    return _state(pid) == "S"


def _state(pid):
    """What the kernel says: R, S, T for stopped and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_process_that_hangs_gives_its_place_up_and_takes_it_again_when_it_wakes():
    async def scene(crowd):
        with process(BUSY) as sleeper:
            os.kill(sleeper.pid, signal.SIGSTOP)
            wait_for(lambda: _state(sleeper.pid) == "T")  # in real seconds, as above
            crowd.add("sleeper", pid=sleeper.pid)
            crowd.add("second")
            await anyio.sleep(LONG)
            assert crowd.began == ["sleeper", "second"]
            os.kill(sleeper.pid, signal.SIGCONT)
            crowd.add("third")
            await anyio.sleep(LONG)
            assert crowd.began == ["sleeper", "second"]
            crowd.started["second"].over()
            await anyio.sleep(LONG)

            assert crowd.began == ["sleeper", "second"]

    crowded(1, scene)


def test_one_that_never_comes_to_an_end_keeps_nobody_from_starting():
    async def scene(crowd):
        with process(BUSY) as busy:
            crowd.queue.longest = 0.05
            crowd.add("busy", pid=busy.pid)
            crowd.add("next")
            while (
                cpu_usage(busy.pid).seconds < crowd.queue.longest
            ):  # real seconds, not the clock's
                await anyio.sleep(0)
            await anyio.sleep(LONG)

            assert crowd.began == ["busy", "next"]

    crowded(1, scene)


def test_a_process_that_ended_keeps_nobody_from_starting():
    with process("") as ended:
        ended.wait()

        async def scene(crowd):
            crowd.add("ended", pid=ended.pid)
            crowd.add("next")
            await anyio.sleep(LONG)

            assert crowd.began == ["ended", "next"]

        crowded(1, scene)


def test_one_that_is_not_even_spawned_yet_counts():
    async def scene(crowd):
        crowd.add("first")
        crowd.add("next")
        await anyio.sleep(LONG)
        assert crowd.began == ["first"]
        crowd.started["first"].on_spawned(None)  # nothing is expected of an unseen one
        await anyio.sleep(2 * WINDOW)

        assert crowd.began == ["first", "next"]

    crowded(1, scene)


def test_a_task_that_is_cancelled_while_waiting_takes_no_place():
    async def scene(crowd):
        crowd.add("first")
        await anyio.sleep(LONG)
        async with anyio.create_task_group() as tasks:
            waiting = Crowd(1, tasks)
            waiting.queue = crowd.queue
            waiting.add("cancelled")
            await anyio.sleep(LONG)
            tasks.cancel_scope.cancel()
        crowd.add("last")
        crowd.started["first"].over()
        await anyio.sleep(LONG)

        assert (waiting.began, crowd.began) == ([], ["first", "last"])

    crowded(1, scene)


def test_a_raised_limit_holds_for_those_who_wait():
    async def scene(crowd):
        crowd.add("first")
        crowd.add("second")
        await anyio.sleep(LONG)
        crowd.queue.limit = 2
        await anyio.sleep(LONG)

        assert crowd.began == ["first", "second"]

    crowded(1, scene)
