"""When a lost server is restarted, and when restarting pauses."""

from dataclasses import replace
from random import Random

from multitap.records import dataclass

# seconds before the first retry, growth, and the most: what is repaired is back within a minute
FIRST, FACTOR, CEILING = 1.0, 2.0, 60.0
PROVED = 60.0
"""Seconds of health after which the past is forgotten."""
BURST, WINDOW = 5, 180.0
"""More starts than this within `WINDOW` seconds open the breaker."""
PAUSE, LONGEST_PAUSE = 60.0, 600.0


@dataclass(frozen=True, slots=True)
class RestartHistory:
    """What is remembered of a server's starts."""

    starts: tuple[float, ...] = ()
    """When the last ones were; no more than count."""
    failures: int = 0
    """Losses and failed starts in a row."""
    trips: int = 0
    """How often restarting has paused."""

    def shift(self, seconds: float) -> "RestartHistory":
        """The same by a clock that is this much ahead."""
        return replace(self, starts=tuple(start + seconds for start in self.starts))


class Restarts:
    """The restarts of one server; pure but for its memory and its dice."""

    def __init__(self, random: Random | None = None) -> None:
        self.history: RestartHistory = RestartHistory()
        """Replaced as a whole: replicas of a cluster go on with each other's."""
        self._random = random or Random()  # noqa: S311 - jitter, not a secret

    def on_started(self, now: float) -> None:
        starts = (*self.history.starts, now)[-BURST - 1 :]
        self.history = replace(self.history, starts=starts)

    def on_lost(self, now: float, *, healthy_for: float | None) -> float:
        """Seconds to wait before the next start, after a loss or a failed start.

        The first restart of a server that was up comes at once, then the wait grows, with full
        jitter.

        Args:
            now: The time.
            healthy_for: Seconds it was up; None when it never came up.
        """
        if healthy_for is not None and healthy_for >= PROVED:
            self.forget()
        history = self.history
        if self.tripped(now):
            # half open: one more start is all it gets
            self.history = replace(history, starts=(now,) * BURST, trips=history.trips + 1)
            return min(PAUSE * 2.0**history.trips, LONGEST_PAUSE)
        failures = history.failures + 1
        if failures == 1 and healthy_for is None:
            failures += 1
        self.history = replace(history, failures=failures)
        if failures == 1:
            return 0.0
        ceiling = min(FIRST * FACTOR ** (failures - 2), CEILING)
        # full jitter: servers that went down together should not all start together
        return self._random.uniform(0.0, ceiling)

    def tripped(self, now: float) -> bool:
        """Whether it has been started too often recently."""
        # the pauses after a trip are longer than the window, and starts would fall out of it
        horizon = LONGEST_PAUSE + WINDOW if self.history.trips else WINDOW
        recent = [start for start in self.history.starts if now - start < horizon]
        return len(recent) > BURST

    def forget(self) -> None:
        """Start from a clean slate: it proved healthy, or a person asked for it."""
        self.history = RestartHistory()
