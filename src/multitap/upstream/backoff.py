"""When a lost server is restarted, and when restarting pauses."""

from random import Random
from typing import Protocol

import msgspec
from msgspec.structs import replace

from multitap.events import Failure

# seconds before the first retry, factor, and maximum: a repaired server is back within a minute
FIRST, FACTOR, CEILING = 1.0, 2.0, 60.0
PROVED = 60.0
"""Seconds of health after which the history is reset."""
BURST, WINDOW = 5, 180.0
"""More starts than this within `WINDOW` seconds open the breaker."""
PAUSE, LONGEST_PAUSE = 60.0, 600.0


class RestartHistory(msgspec.Struct, frozen=True):
    """The history of a server's starts."""

    starts: tuple[float, ...] = ()
    """The times of the last starts, as many as are needed."""
    failures: int = 0
    """Losses and failed starts in a row."""
    trips: int = 0
    """How often the breaker has opened."""

    def shift(self, seconds: float) -> "RestartHistory":
        """The same history by a clock that is `seconds` ahead."""
        return replace(self, starts=tuple(start + seconds for start in self.starts))


class Restarts:
    """Decides when one server is restarted."""

    def __init__(self, random: Random | None = None) -> None:
        self.history: RestartHistory = RestartHistory()
        """Replaced, never changed: replicas of a cluster share it."""
        self._random = random or Random()  # noqa: S311 - jitter, not a secret

    def on_started(self, now: float) -> None:
        starts = (*self.history.starts, now)[-BURST - 1 :]
        self.history = replace(self.history, starts=starts)

    def on_lost(self, now: float, *, healthy_for: float | None) -> float:
        """Seconds to wait before the next start, after a loss or a failed start.

        A server that was up is first restarted at once; then the wait grows, with full jitter.
        `healthy_for` is the seconds it was up; None if it never came up.
        """
        if healthy_for is not None and healthy_for >= PROVED:
            self.forget()
        history = self.history
        if self.tripped(now):
            # half open: it gets one more start
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
        # the pauses after a trip are longer than the window, so starts would expire
        horizon = LONGEST_PAUSE + WINDOW if self.history.trips else WINDOW
        recent = [start for start in self.history.starts if now - start < horizon]
        return len(recent) > BURST

    @property
    def is_repeated(self) -> bool:
        """Whether it was lost more than once in a row, or never came up."""
        return self.history.failures > 1 or self.history.trips > 0

    def forget(self) -> None:
        """Reset the history: the server proved healthy, or a person requested it."""
        self.history = RestartHistory()


class Paused(Exception):
    """Not a failure of this attempt: all replicas wait some seconds after an earlier one."""

    def __init__(self, failure: Failure, seconds: float) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.seconds = seconds


class Breaker(Protocol):
    """Coordinates one attempt to reach a server with those of other replicas."""

    async def admit(self, restarts: Restarts, *, is_first: bool, is_ordered: bool) -> None:
        """Admit an attempt; `restarts` receives the shared history.

        A replica that has just lost the server may try once at once (`is_first`).

        Raises:
            Paused: It is too early, or another replica is trying.
        """
        ...

    async def came_up(self) -> None:
        """Report success, so that other replicas connect as well."""
        ...

    async def on_lost(self, history: RestartHistory, pause: float, failure: Failure) -> float:
        """Count a failure for all, unless another replica has just counted the same.

        Returns the seconds until the next attempt of any replica.
        """
        ...

    async def give_up(self) -> None:
        """End an attempt without an outcome, so that another replica may try."""
        ...
