"""The time by which a call must end."""

import math

import msgspec


class Deadline(msgspec.Struct, eq=False, gc=False):
    """One deadline for a call with all its attempts: a retry gets what is left."""

    timeout: float | None
    """Seconds without progress; None: no limit."""
    hard_timeout: float | None
    """Seconds in total, whatever the progress; None: no limit."""
    latest: float
    """The hard limit, by the loop's clock."""
    at: float
    """The current deadline, by the loop's clock."""

    @classmethod
    def since(cls, now: float, timeout: float | None, hard_timeout: float | None) -> "Deadline":
        """The deadline of a request that begins `now`, by the loop's clock."""
        latest = math.inf if hard_timeout is None else now + hard_timeout
        at = latest if timeout is None else min(now + timeout, latest)
        return cls(timeout, hard_timeout, latest, at)

    def renew(self, now: float) -> None:
        """Start the time again after progress, up to the hard limit."""
        self.at = self.latest if self.timeout is None else min(now + self.timeout, self.latest)

    def words(self, method: str) -> str:
        """The limit that a request has exceeded, in words."""
        if self.timeout is None or (self.at >= self.latest and self.timeout != self.hard_timeout):
            return f"{method!r} did not end within its hard limit of {self.hard_timeout or 0:.3g} s"
        return f"no answer to {method!r} within {self.timeout:.3g} s"
