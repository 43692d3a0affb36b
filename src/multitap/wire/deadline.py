"""When a call has to be over."""

import math


class Deadline:
    """One for a call and all its attempts: whoever tries again has what is left.

    Args:
        timeout: Seconds without a sign of life; None: none are needed.
        hard_timeout: Seconds after which no sign of life helps; None: there is no such limit.
        now: When the time begins, by the loop's clock.
    """

    __slots__ = ("_latest", "at", "hard_timeout", "timeout")

    def __init__(self, timeout: float | None, hard_timeout: float | None, now: float) -> None:
        self.timeout = timeout
        self.hard_timeout = hard_timeout
        self._latest = math.inf if hard_timeout is None else now + hard_timeout
        self.at = self._latest if timeout is None else min(now + timeout, self._latest)
        """When it is over, by the loop's clock."""

    def renew(self, now: float) -> None:
        """The server is alive and at it: the time starts anew, up to the hard limit."""
        self.at = self._latest if self.timeout is None else min(now + self.timeout, self._latest)

    def words(self, method: str) -> str:
        """Which limit a request has reached."""
        if self.timeout is None or (self.at >= self._latest and self.timeout != self.hard_timeout):
            return f"no end of {method!r} within its hard limit of {self.hard_timeout or 0:.3g} s"
        return f"no answer to {method!r} within {self.timeout:.3g} s"
