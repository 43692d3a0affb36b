"""How many may work at the same time, how many may wait."""

import asyncio
from collections import deque

from multitap.shares import GENEROSITY, Shares


class Full(Exception):
    """Nobody else may even wait; says why."""


class Slots:
    """A counter with a bounded queue; taking a free slot costs no switch of tasks.

    Rivals have a fair share of both, and are called up in turn: one that takes all it can get does
    not keep the others waiting. Who has no rivals, None, may have everything.

    Args:
        working: How many may work.
        waiting: How many may wait.
    """

    def __init__(self, working: int, waiting: int) -> None:
        self.working = 0
        self._limit = working
        self._queue_limit = waiting
        self._waiting = 0
        self._held: dict[object, int] = {}
        self._rivals = 0  # slots that rivals have, all together
        self._waiting_shares = Shares(waiting, "waiting calls")
        self._queues: dict[object, deque[asyncio.Future[None]]] = {}

    def take(self, rival: object = None) -> bool:
        """Take a slot if one is free."""
        if self.working >= self._limit:
            return False
        if rival is not None:  # as `Shares` has it, which every call would have to ask twice
            held = self._held.get(rival, 0) + 1
            if held > GENEROSITY * (self._limit - self._rivals):
                return False
            self._held[rival] = held
            self._rivals += 1
        self.working += 1
        return True

    async def wait(self, rival: object = None) -> None:
        """Wait for a slot, and take it.

        Raises:
            Full: The queue is full.
        """
        if self._waiting >= self._queue_limit:
            raise Full(f"{self._queue_limit} calls already wait for it")
        if rival is not None and not self._waiting_shares.take(rival):
            raise Full(self._waiting_shares.refusal(rival))
        turn = asyncio.get_running_loop().create_future()
        self._waiting += 1
        self._queues.setdefault(rival, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(rival)  # it was ours already
            raise
        finally:
            self._waiting -= 1
            if rival is not None:
                self._waiting_shares.give(rival)

    def give(self, rival: object = None) -> None:
        """Give a slot back, to the one who waits longest of the rival whose turn it is."""
        self.working -= 1
        if rival is not None:
            self._rivals -= 1
            if left := self._held[rival] - 1:
                self._held[rival] = left
            else:
                del self._held[rival]
        if not self._queues:
            return
        for other in tuple(self._queues):
            if self._call_up(other):
                break

    def _call_up(self, rival: object) -> bool:
        """Give one of a rival's waiting calls a slot; the rival is the last in line then."""
        queue = self._queues[rival]
        while queue and queue[0].done():
            queue.popleft()
        if not queue:
            del self._queues[rival]
            return False
        if not self.take(rival):
            return False
        queue.popleft().set_result(None)
        if self._queues.pop(rival):
            self._queues[rival] = queue
        return True
