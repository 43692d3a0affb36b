"""How many may work at the same time, how many may wait."""

import asyncio
from collections import deque


class Full(Exception):
    """Nobody else may even wait."""


class Slots:
    """A counter with a bounded queue; taking a free slot costs no switch of tasks."""

    def __init__(self, working: int, waiting: int) -> None:
        self.working = 0
        self._limit = working
        self._queue_limit = waiting
        self._queue: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a slot if one is free."""
        if self.working >= self._limit:
            return False
        self.working += 1
        return True

    async def wait(self) -> None:
        """Wait for a slot, and take it.

        Raises:
            Full: The queue is full.
        """
        if len(self._queue) >= self._queue_limit:
            raise Full
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()  # it was ours already
            raise

    def give(self) -> None:
        """Give a slot back, to the one who waits longest."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.working -= 1
