"""What the replicas of a cluster agree on about the starts of one server."""

from typing import Protocol

from multitap.events import Failure
from multitap.upstream.backoff import RestartHistory, Restarts


class Paused(Exception):
    """No failure of this attempt: all replicas wait after an earlier one.

    Args:
        failure: What went wrong then.
        seconds: How long to wait.
    """

    def __init__(self, failure: Failure, seconds: float) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.seconds = seconds


class Breaker(Protocol):
    """One attempt to reach a server, as one of those that all replicas make."""

    async def admit(self, restarts: Restarts, *, is_first: bool, is_ordered: bool) -> None:
        """Begin with what all replicas know.

        Args:
            restarts: Gets that.
            is_first: Whether this replica just lost a server that was up: it may try once at once.
            is_ordered: Whether a person wants it, whatever happened before.

        Raises:
            Paused: It is not the time, or another replica is trying it.
        """
        ...

    async def came_up(self) -> None:
        """Let the other replicas try as well."""
        ...

    async def on_lost(self, history: RestartHistory, pause: float, failure: Failure) -> float:
        """Count a failure for all, unless another replica has just counted the same.

        Returns:
            Seconds until the next attempt of any replica.
        """
        ...

    async def give_up(self) -> None:
        """Let another replica try: nothing came of the attempt that would concern it."""
        ...
