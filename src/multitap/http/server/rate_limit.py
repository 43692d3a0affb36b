"""Limits the number of requests of one client over time."""

import math
import re
from typing import NamedTuple

_RATE = re.compile(r"([1-9][0-9]{0,8})\s*/\s*([a-z]+)")
_SECONDS = {
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("m", "min", "minute"), 60.0),
    **dict.fromkeys(("h", "hour"), 3600.0),
    **dict.fromkeys(("d", "day"), 86400.0),
}


class Rate(NamedTuple):
    """A number of requests per time."""

    requests: int
    seconds: float

    @classmethod
    def parse(cls, text: str) -> "Rate":
        """Parse a rate such as `100/min`.

        Raises:
            ValueError: It has another form.
        """
        found = _RATE.fullmatch(text.strip().lower())
        if found is None or found[2] not in _SECONDS:
            raise ValueError("expected a rate such as 10/s, 100/min or 5000/h")
        return cls(int(found[1]), _SECONDS[found[2]])


class RateLimit:
    """Counts requests against a rate, which allows a full burst and then refills evenly.

    Args:
        rate: How many, in which time.
    """

    __slots__ = ("_full_at", "_step", "rate")

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._step = rate.seconds / rate.requests
        self._full_at = -math.inf
        """When the whole burst is available again."""

    def take(self, now: float) -> float:
        """Count a request; the seconds to wait if it may not be made yet, else 0."""
        # one number instead of a list of times: it costs the same for any rate. No lock, since
        # nothing is awaited.
        full_at = max(self._full_at, now) + self._step
        wait = full_at - now - self.rate.seconds
        # tolerates rounding errors
        if wait > self._step / 1000:
            return wait
        self._full_at = full_at
        return 0.0
