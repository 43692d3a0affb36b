"""A lease on a server, valid as long as it is provably ours."""

import asyncio
from collections.abc import Callable

from multitap.upstream.signals import Bell

Clock = Callable[[], float]


class OwnerLease:
    """One lease that this replica holds, or held.

    It is valid until a moment of our own monotonic clock, counted from before the renewal was sent:
    the coordinator counts from a later moment, so it cannot give the lease away before that.

    Args:
        name: Its name at the coordinator.
        token: The fencing token.
        clock: Our own clock, in seconds.
        until: When it ends, by that clock.
    """

    def __init__(self, name: str, token: int, clock: Clock, until: float) -> None:
        self.name = name
        self.token = token
        self.is_lost = False
        """Whether another replica may have it, so that the server here must end."""
        self.is_leaving = False
        """Whether it is about to be released: requests are finished, and none is begun."""
        self.has_successor = True
        """Whether another replica can take it: if not, nothing waits for that."""
        self.changed = Bell()
        self.lost = asyncio.Event()
        self._clock = clock
        self._until = until

    @property
    def is_valid(self) -> bool:
        """Whether no other replica can have it now."""
        return self._clock() < self._until and not self.is_lost and not self.is_leaving

    def extend(self, until: float) -> None:
        # a renewal that was in progress when it was lost must not restore it
        if not self.is_lost:
            self._until = max(self._until, until)
            self.changed.ring()

    def leave(self) -> None:
        """Begin no more requests: it will be released."""
        self.is_leaving = True

    def give_up(self) -> None:
        """No replica is left that could take it."""
        self.has_successor = False
        self.changed.ring()

    def lose(self) -> None:
        """End it for good."""
        # the flag before the events: woken tasks read it
        self.is_lost = True
        self.lost.set()
        self.changed.ring()
