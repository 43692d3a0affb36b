"""Limits how much a server may use models."""

from collections import deque
from collections.abc import Callable
from time import monotonic

MINUTE, HOUR = 60.0, 3600.0
LARGEST_SHARE = 10
"""The part of the hourly budget that one request may take."""


class OverBudget(Exception):
    """A server asked for more than its budget."""


class SamplingBudget:
    """The sampling budget of one server, for all its sessions.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._asked: deque[float] = deque()
        self._spent: deque[tuple[float, int]] = deque()
        self._total = 0

    def take(self, prompt: int, answer: int, *, rate: int, tokens: int) -> int:
        """Count a request before it is made; returns the maximum tokens of the answer.

        Args:
            prompt: Tokens in the request.
            answer: The requested maximum tokens of the answer.
            rate: Requests allowed per minute.
            tokens: Tokens allowed per hour.

        Raises:
            OverBudget: There is nothing left.
        """
        now = self._clock()
        self._forget(now)
        if len(self._asked) >= rate:
            raise OverBudget(f"it may ask a model {rate} times a minute (`sampling.rate`)")
        share = tokens // LARGEST_SHARE
        left = min(share, tokens - self._total) - prompt
        if left < 1:
            raise OverBudget(f"it may use {tokens:,} tokens an hour (`sampling.tokens`)")
        granted = max(1, min(answer, left))
        # Counted before it is made, with all granted tokens: concurrent requests cannot spend
        # the same tokens.
        self._asked.append(now)
        self._spent.append((now, prompt + granted))
        self._total += prompt + granted
        return granted

    def _forget(self, now: float) -> None:
        while self._asked and self._asked[0] <= now - MINUTE:
            self._asked.popleft()
        while self._spent and self._spent[0][0] <= now - HOUR:
            self._total -= self._spent.popleft()[1]
