"""The interface by which replicas coordinate attempts to reach one server."""

from typing import Protocol

from multitap.events import Failure
from multitap.upstream.backoff import RestartHistory, Restarts


class Paused(Exception):
    """Not a failure of this attempt: all replicas wait after an earlier one.

    Args:
        failure: The earlier failure.
        seconds: How long to wait.
    """

    def __init__(self, failure: Failure, seconds: float) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.seconds = seconds


class Breaker(Protocol):
    """Coordinates one attempt to reach a server with those of other replicas."""

    async def admit(self, restarts: Restarts, *, is_first: bool, is_ordered: bool) -> None:
        """Admit an attempt, with the shared history.

        Args:
            restarts: Receives the shared history.
            is_first: Whether this replica has just lost the server, and so may try once at once.
            is_ordered: Whether a person requested it.

        Raises:
            Paused: It is too early, or another replica is trying.
        """
        ...

    async def came_up(self) -> None:
        """Report success, so that other replicas connect as well."""
        ...

    async def on_lost(self, history: RestartHistory, pause: float, failure: Failure) -> float:
        """Count a failure for all, unless another replica has just counted the same.

        Returns:
            Seconds until the next attempt of any replica.
        """
        ...

    async def give_up(self) -> None:
        """End an attempt without an outcome, so that another replica may try."""
        ...
