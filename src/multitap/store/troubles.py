"""Current and recent problems of the store."""

import time
from collections.abc import Callable

RECENT = 600.0
"""Seconds for which something that is over is still reported, so that somebody can see it."""

Clock = Callable[[], float]


class Troubles:
    """Problems in words; past ones fade.

    Noted in the store's thread and read in the loop's: every step is one operation of a dict.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.lasting: str | None = None
        """What stays wrong for as long as the store is open."""
        self._clock = clock
        self._past: dict[str, tuple[str, float]] = {}
        self._present: dict[str, str] = {}

    def note(self, text: str, *, kind: str | None = None) -> None:
        """Note something that is over, in place of what was noted of the same kind."""
        self._past[kind or text] = (text, self._clock())

    def begin(self, work: str, text: str) -> None:
        """Note why some kind of work cannot be done."""
        self._present[work] = text

    def end(self, work: str) -> None:
        """Note that this kind of work can be done again."""
        self._present.pop(work, None)

    def is_present(self, work: str) -> bool:
        """Whether this kind of work cannot be done now."""
        return work in self._present

    def reasons(self) -> tuple[str, ...]:
        """What to tell somebody who looks now."""
        since = self._clock() - RECENT
        past = [text for text, at in tuple(self._past.values()) if at >= since]
        found = (self.lasting, *past, *tuple(self._present.values()))
        return tuple(dict.fromkeys(text for text in found if text is not None))
