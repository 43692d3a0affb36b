"""Shares the turns of the loop among connections with more work than fits in one.

A `Budget` limits one reader per turn. Two hundred of them, each within its own, would still take
all of the loop's time; together they share one.
"""

from collections import deque
from typing import Protocol

from multitap.pace import SECONDS, Budget, Pace

AT_ONCE = 4 * SECONDS
"""Seconds per turn for newly arrived requests; the rest waits for the next turn."""


class TurnTaker(Protocol):
    """A connection with work left."""

    answered: int
    """Requests answered so far."""

    def go_on(self) -> bool:
        """Do some of the work; returns whether more can be done now."""
        ...


class FairTurns:
    """Gives turns to connections with work left.

    Connections with little work alternate with busy ones: an ordinary request waits for a moment,
    not for a whole round of floods.
    """

    __slots__ = ("_busy", "_calm", "_calm_first", "_pace", "spent")

    def __init__(self) -> None:
        self._pace = Pace(self._work)
        self._calm: deque[TurnTaker] = deque()
        self._busy: deque[TurnTaker] = deque()
        self._calm_first = False
        self.spent = 0.0
        """Seconds spent on newly arrived requests in this turn; above `AT_ONCE`, call `hold`."""

    def hold(self) -> None:
        """Make further requests wait for the next turn."""
        self._pace.hold()

    def join(self, worker: TurnTaker, *, busy: bool) -> None:
        """Queue for a turn.

        Args:
            worker: The connection.
            busy: Whether it has more work than others.
        """
        (self._busy if busy else self._calm).append(worker)
        self._pace.hold()

    def stop(self) -> None:
        """Give no more turns."""
        self._pace.stop()
        self._calm.clear()
        self._busy.clear()

    def _work(self) -> bool:
        self.spent = 0.0
        if not self._calm and not self._busy:
            self._pace.useful = True  # nothing is left: it was only a burst
            return False
        budget = Budget()
        for _ in range(len(self._calm) + len(self._busy)):  # each is queued at most once
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
