"""Decides which servers start now, and which wait until the machine has room."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from enum import IntEnum

from multitap.wire.process import cpu_usage

WINDOW = 0.2
"""Seconds over which the CPU usage of a starting server is measured.

One that hangs keeps its place that long, and delays those that wait for it.
"""
REST = 2.0
"""The same for idle ones, of which there may be hundreds."""
SHARE = 0.1
"""The share of one CPU below which a program counts as idle."""
LONGEST = 10.0
"""Seconds of CPU time after which a start no longer occupies a place.

An import-heavy server takes one or two. A server that spins would otherwise keep its place until
its connect timeout, and a few of them would block all others.
"""
_LOOK = 0.05


class Rank(IntEnum):
    """The priority of a start; within a rank, first come, first served."""

    UP_BEFORE = 0
    UNKNOWN = 1
    FAILED_BEFORE = 2

    @classmethod
    def after(cls, was_up: bool | None) -> "Rank":  # noqa: FBT001 - None if unknown
        """The rank by whether the last start succeeded."""
        if was_up is None:
            return cls.UNKNOWN
        return cls.UP_BEFORE if was_up else cls.FAILED_BEFORE


class StartSlot:
    """One starting server, and whether it uses the CPU."""

    def __init__(self, queue: "StartQueue", time: float) -> None:
        self.is_working = True  # it just began
        self._queue = queue
        self._since = time
        self._seconds = 0.0
        self._spawned = False
        self._pid: int | None = None

    def on_spawned(self, pid: int | None) -> None:
        """Set its process id; None if it cannot be observed."""
        self._spawned, self._pid = True, pid

    def over(self) -> None:
        """Free the place: the server is up or has failed; may be repeated."""
        self._queue.remove(self)

    def look(self, time: float) -> None:
        """At the end of each window, decide again whether it uses the CPU."""
        if not self._spawned or time - self._since < (WINDOW if self.is_working else REST):
            return
        used = cpu_usage(self._pid) if self._pid is not None else None
        if used is None:  # it ended, or cannot be observed
            self.is_working, self._since = False, time
            return
        share = (used.seconds - self._seconds) / (time - self._since)
        # one that is runnable but got no CPU time is starved by others: more starts would not help
        is_working = used.runnable or share >= SHARE
        self.is_working = is_working and used.seconds < self._queue.longest
        self._since, self._seconds = time, used.seconds


class StartQueue:
    """Lets at most `limit` servers start that really use the CPU.

    Starts cost CPU time, so that is what is measured. A server that hangs, or waits for a download,
    does not count; if it becomes active, it counts again. Output is not a sign of work: some
    servers never stop writing. A start no longer counts after `longest` seconds of CPU
    time.
    """

    def __init__(self, limit: int, *, longest: float = LONGEST) -> None:
        self.limit = limit
        self.longest = longest
        self._starting: set[StartSlot] = set()
        self._waiting: list[tuple[Rank, int, asyncio.Future[StartSlot]]] = []
        self._numbers = itertools.count()
        self._loop = asyncio.get_running_loop()
        self._next_look: asyncio.Handle | None = None

    @asynccontextmanager
    async def turn(self, rank: Rank) -> AsyncGenerator[StartSlot]:
        """Wait for a place, by rank; `StartSlot.over` or the end of the block frees it."""
        start = await self._wait(rank)
        try:
            yield start
        finally:
            start.over()

    def remove(self, start: StartSlot) -> None:
        if start in self._starting:
            self._starting.remove(start)
            self._decide_soon()

    async def _wait(self, rank: Rank) -> StartSlot:
        turn: asyncio.Future[StartSlot] = self._loop.create_future()
        heapq.heappush(self._waiting, (rank, next(self._numbers), turn))
        self._decide_soon()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.remove(turn.result())  # the place was ours already
            raise

    def _decide_soon(self) -> None:
        """Decide in the loop's next turn: servers that come at once are ranked before that."""
        if self._next_look is not None:
            self._next_look.cancel()
        self._next_look = self._loop.call_soon(self._decide)

    def _decide(self) -> None:
        self._next_look = None
        if not self._waiting:
            return
        time = self._loop.time()
        for start in self._starting:
            start.look(time)
        free = self.limit - sum(start.is_working for start in self._starting)
        while self._waiting and free > 0:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():  # else the waiter was cancelled
                start = StartSlot(self, time)
                self._starting.add(start)
                turn.set_result(start)
                free -= 1
        if self._waiting:  # servers are starting: measured only while others wait
            self._next_look = self._loop.call_later(_LOOK, self._decide)
