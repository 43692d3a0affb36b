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
    """How many requests in how many seconds."""

    requests: int
    seconds: float

    @classmethod
    def parse(cls, text: str) -> "Rate":
        """The rate that a person writes as `100/min`.

        Raises:
            ValueError: It is none; says what was expected.
        """
        found = _RATE.fullmatch(text.strip().lower())
        if found is None or found[2] not in _SECONDS:
            raise ValueError("expected a rate such as 10/s, 100/min or 5000/h")
        return cls(int(found[1]), _SECONDS[found[2]])


class RateLimit:
    """Counts requests against a rate: all of it may be used at once, and then it comes back evenly.

    Args:
        rate: How many, in which time.
    """

    __slots__ = ("_full_at", "_step", "rate")

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._step = rate.seconds / rate.requests
        self._full_at = -math.inf
        """When as many as the rate says may be made at once again."""

    def take(self, now: float) -> float:
        """Count a request; the seconds to wait if it may not be made yet, else 0."""
        # one number instead of a list of times: it costs the same for any rate. No lock, since
        # nothing is awaited.
        full_at = max(self._full_at, now) + self._step
        wait = full_at - now - self.rate.seconds
        # a sum of many steps is a little off, and nobody is to wait for that
        if wait > self._step / 1000:
            return wait
        self._full_at = full_at
        return 0.0
