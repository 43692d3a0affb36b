"""Decides which servers start now, and which wait until the machine has room."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from enum import IntEnum

from multitap.wire.process.cpu_usage import cpu_usage

WINDOW = 0.5
"""Seconds over which a starting server's use of the CPU is looked at."""
REST = 2.0
"""The same for one that was found idle: there may be hundreds of them."""
SHARE = 0.1
"""Of one CPU: a program that uses less than that in a window waits for something else."""
LONGEST = 10.0
"""Seconds of CPU time after which a start keeps nobody else from starting.

An import-heavy server takes one or two. One that never comes to an end would otherwise hold its
place until its time to connect is over, and as many of them as there are places would hold up
everybody.
"""
_LOOK = 0.1


class Rank(IntEnum):
    """Who starts first; within a rank, who came first."""

    UP_BEFORE = 0
    UNKNOWN = 1
    FAILED_BEFORE = 2

    @classmethod
    def after(cls, was_up: bool | None) -> "Rank":  # noqa: FBT001 - None if nobody knows
        """By whether the last start succeeded."""
        if was_up is None:
            return cls.UNKNOWN
        return cls.UP_BEFORE if was_up else cls.FAILED_BEFORE


class StartSlot:
    """One server on its way up, and whether it keeps the machine busy."""

    def __init__(self, queue: "StartQueue", time: float) -> None:
        self.is_working = True  # it just began
        self._queue = queue
        self._since = time
        self._seconds = 0.0
        self._spawned = False
        self._pid: int | None = None

    def on_spawned(self, pid: int | None) -> None:
        """Say which process it is, now that there is one; None for one of which nothing is seen."""
        self._spawned, self._pid = True, pid

    def over(self) -> None:
        """It is up, or it failed; harmless when repeated."""
        self._queue.remove(self)

    def look(self, time: float) -> None:
        """Decide again whether it works, at the end of each window."""
        if not self._spawned or time - self._since < (WINDOW if self.is_working else REST):
            return
        used = cpu_usage(self._pid) if self._pid is not None else None
        if used is None:  # it ended, or cannot be seen
            self.is_working, self._since = False, time
            return
        share = (used.seconds - self._seconds) / (time - self._since)
        # one that is runnable but got no CPU time is starved by others: more starts would not help
        is_working = used.runnable or share >= SHARE
        self.is_working = is_working and used.seconds < self._queue.longest
        self._since, self._seconds = time, used.seconds


class StartQueue:
    """Lets at most `limit` servers start that really use the CPU.

    What starts cost is CPU time, so that is what is counted, not servers and not seconds. A server
    that hangs, or waits for a download, costs nothing and counts as nothing; should it wake up, it
    counts again. Output is not a sign of work: some servers never stop writing.

    Args:
        limit: How many may work at the same time.
        longest: Seconds of CPU time after which one counts no more.
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
        """Wait for a place, by rank; it is given up by `StartSlot.over` or with the block."""
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
        if self._waiting:  # somebody works: looked at only for as long as somebody waits
            self._next_look = self._loop.call_later(_LOOK, self._decide)
