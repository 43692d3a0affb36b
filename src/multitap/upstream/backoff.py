"""When a lost server is restarted, and when restarting pauses."""

from collections import deque
from random import Random

# seconds before the first retry, growth, and the most: what is repaired is back within a minute
FIRST, FACTOR, CEILING = 1.0, 2.0, 60.0
PROVED = 60.0
"""Seconds of health after which the past is forgotten."""
BURST, WINDOW = 5, 180.0
"""More starts than this within `WINDOW` seconds open the breaker."""
PAUSE, LONGEST_PAUSE = 60.0, 600.0


class Restarts:
    """The restarts of one server; pure but for its memory and its dice."""

    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random()  # noqa: S311 - jitter, not a secret
        self._starts: deque[float] = deque(maxlen=BURST + 1)
        self._failures = 0
        self._trips = 0

    def started(self, now: float) -> None:
        self._starts.append(now)

    def lost(self, now: float, *, healthy_for: float | None) -> float:
        """Seconds to wait before the next start, after a loss or a failed start.

        The first restart of a server that was up comes at once, then the wait grows, with full
        jitter.

        Args:
            now: The time.
            healthy_for: Seconds it was up; None when it never came up.
        """
        if healthy_for is not None and healthy_for >= PROVED:
            self.forget()
        if self.tripped(now):
            pause = min(PAUSE * 2.0**self._trips, LONGEST_PAUSE)
            self._trips += 1
            self._starts.clear()
            self._starts.extend([now] * BURST)  # half open: one more start is all it gets
            return pause
        self._failures += 1
        if self._failures == 1:
            if healthy_for is not None:
                return 0.0
            self._failures += 1
        ceiling = min(FIRST * FACTOR ** (self._failures - 2), CEILING)
        # full jitter: servers that went down together should not all start together
        return self._random.uniform(0.0, ceiling)

    def tripped(self, now: float) -> bool:
        """Whether it has been started too often recently."""
        # the pauses after a trip are longer than the window, and starts would fall out of it
        horizon = LONGEST_PAUSE + WINDOW if self._trips else WINDOW
        recent = [start for start in self._starts if now - start < horizon]
        return len(recent) > BURST

    def forget(self) -> None:
        """Start from a clean slate: it proved healthy, or a person asked for it."""
        self._starts.clear()
        self._failures = 0
        self._trips = 0
