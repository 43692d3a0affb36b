"""Shares the turns of the loop among connections with more work than fits in one.

A `Budget` makes one reader fair to everybody else. Two hundred of them, each within its own, would
still take the loop's whole time; together they have one.
"""

from collections import deque
from typing import Protocol

from multitap.pace import SECONDS, Budget, Pace

AT_ONCE = 4 * SECONDS
"""Time that may go into what has just arrived before the rest of it waits for the next turn."""


class TurnTaker(Protocol):
    """A connection with work left."""

    answered: int
    """Requests so far that somebody got an answer to."""

    def go_on(self) -> bool:
        """Do a little of it; whether any is left that can be done now."""
        ...


class FairTurns:
    """Who has work left, and whose turn it is.

    Those that had to wait because of others alternate with those that always have more to do: an
    ordinary request waits for a moment, not for a whole round of floods.
    """

    __slots__ = ("_busy", "_calm", "_calm_first", "_pace", "spent")

    def __init__(self) -> None:
        self._pace = Pace(self._work)
        self._calm: deque[TurnTaker] = deque()
        self._busy: deque[TurnTaker] = deque()
        self._calm_first = False
        self.spent = 0.0
        """Time that went into what arrived, since the last turn; from `AT_ONCE` on, `hold`."""

    def hold(self) -> None:
        """Let the rest of what arrives wait for the next turn."""
        self._pace.hold()

    def join(self, worker: TurnTaker, *, busy: bool) -> None:
        """Wait for a turn.

        Args:
            worker: Who waits.
            busy: Whether it has more to do than others.
        """
        (self._busy if busy else self._calm).append(worker)
        self._pace.hold()

    def stop(self) -> None:
        """Nobody gets another turn."""
        self._pace.stop()
        self._calm.clear()
        self._busy.clear()

    def _work(self) -> bool:
        self.spent = 0.0
        if not self._calm and not self._busy:
            self._pace.useful = True  # nothing was left over: it was only much at once
            return False
        budget = Budget()
        for _ in range(len(self._calm) + len(self._busy)):  # nobody is on twice
            worker = self._next()
            before = worker.answered
            if worker.go_on():
                self._busy.append(worker)
            if worker.answered > before:
                self._pace.useful = True
            if budget.spent():
                break
        return bool(self._calm or self._busy)

    def _next(self) -> TurnTaker:
        self._calm_first = not self._calm_first
        if self._calm and (self._calm_first or not self._busy):
            return self._calm.popleft()
        return self._busy.popleft()
