"""Limits how many requests a server works on at once, and who waits."""

import asyncio
from collections import deque

from multitap.errors import counted
from multitap.shares import GENEROSITY, Shares


class QueueFull(Exception):
    """The queue is full; the message says why."""


class CallSlots:
    """A semaphore with a bounded, fair queue; taking a free slot does not switch tasks.

    All holders have a fair share of slots and queue, and are served in turn, so that one does not
    block the others. The holder None stands for a single user, which may have everything.

    Args:
        working: The number of slots.
        waiting: The length of the queue.
    """

    def __init__(self, working: int, waiting: int) -> None:
        self.working = 0
        self.limit = working
        self._queue_limit = waiting
        self._waiting = 0
        self.held: dict[object, int] = {}
        """The slots of each holder other than None."""
        self.shared = 0
        """The sum of these slots."""
        self._waiting_shares = Shares(waiting, "waiting calls")
        self.queues: dict[object, deque[asyncio.Future[None]]] = {}

    def take(self, slot_holder: object = None) -> bool:
        """Take a slot if one is free."""
        if self.working >= self.limit:
            return False
        if slot_holder is not None:  # inlined from `Shares`, to save two calls
            held = self.held.get(slot_holder, 0) + 1
            if held > GENEROSITY * (self.limit - self.shared):
                return False
            self.held[slot_holder] = held
            self.shared += 1
        self.working += 1
        return True

    async def wait(self, slot_holder: object = None) -> None:
        """Wait for a slot, and take it.

        Raises:
            QueueFull: The queue is full.
        """
        if self._waiting >= self._queue_limit:
            raise QueueFull(f"{counted(self._queue_limit, 'call')} already waiting for it")
        if slot_holder is not None and not self._waiting_shares.take(slot_holder):
            raise QueueFull(self._waiting_shares.refusal(slot_holder))
        turn = asyncio.get_running_loop().create_future()
        self._waiting += 1
        self.queues.setdefault(slot_holder, deque()).append(turn)
        # The caller found no slot, but may get here a turn of the loop later: all may be free by
        # now, with no call left that returns one.
        self.call_up_next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(slot_holder)  # it was ours already
            raise
        finally:
            self._waiting -= 1
            if slot_holder is not None:
                self._waiting_shares.give(slot_holder)

    def give(self, slot_holder: object = None) -> None:
        """Return a slot; the next waiting call, in fair order, gets it."""
        self.working -= 1
        if slot_holder is not None:
            self.shared -= 1
            if left := self.held[slot_holder] - 1:
                self.held[slot_holder] = left
            else:
                del self.held[slot_holder]
        if self.queues:
            self.call_up_next()

    def call_up_next(self) -> None:
        """Give a free slot to the next waiting call."""
        for other in tuple(self.queues):
            if self._call_up(other):
                break

    def _call_up(self, slot_holder: object) -> bool:
        """Give a slot to a waiting call of a holder, which then moves to the end of the order."""
        queue = self.queues[slot_holder]
        while queue and queue[0].done():
            queue.popleft()
        if not queue:
            del self.queues[slot_holder]
            return False
        if not self.take(slot_holder):
            return False
        queue.popleft().set_result(None)
        if self.queues.pop(slot_holder):
            self.queues[slot_holder] = queue
        return True
