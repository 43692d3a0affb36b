"""Current and recent problems of the store."""

import time
from collections.abc import Callable

RECENT = 600.0
"""Seconds for which a past problem is still reported."""

Clock = Callable[[], float]


class Troubles:
    """Problems in words; past ones expire.

    Written in the store's thread and read in the loop's: every step is one atomic dict operation.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.lasting: str | None = None
        """A problem that lasts as long as the store is open."""
        self._clock = clock
        self._past: dict[str, tuple[str, float]] = {}
        self._present: dict[str, str] = {}

    def note(self, text: str, *, kind: str | None = None) -> None:
        """Add a past problem; it replaces an earlier one of the same kind."""
        self._past[kind or text] = (text, self._clock())

    def begin(self, work: str, text: str) -> None:
        """Add the reason why a kind of work cannot be done."""
        self._present[work] = text

    def end(self, work: str) -> None:
        """Remove the reason: this kind of work can be done again."""
        self._present.pop(work, None)

    def is_present(self, work: str) -> bool:
        """Whether this kind of work cannot be done now."""
        return work in self._present

    def reasons(self) -> tuple[str, ...]:
        """All current and recent problems."""
        since = self._clock() - RECENT
        past = [text for text, at in tuple(self._past.values()) if at >= since]
        found = (self.lasting, *past, *tuple(self._present.values()))
        return tuple(dict.fromkeys(text for text in found if text is not None))
