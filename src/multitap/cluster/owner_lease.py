"""The right to run a server, for as long as it is proved to be ours."""

import asyncio
from collections.abc import Callable

from multitap.upstream.signals import Bell

Clock = Callable[[], float]


class OwnerLease:
    """One lease that this replica holds, or held.

    It is valid until a moment by our own steady clock, counted from before the renewal was sent:
    the coordinator's own count begins later, so it cannot give the lease away before that.

    Args:
        name: Which lease.
        token: The fencing token.
        clock: Our own clock, in seconds.
        until: When it ends, by that.
    """

    def __init__(self, name: str, token: int, clock: Clock, until: float) -> None:
        self.name = name
        self.token = token
        self.is_lost = False
        """Whether another one may have it: whatever it protects has to end."""
        self.is_leaving = False
        """Whether what is under way is finished, and nothing more is begun."""
        self.has_successor = True
        """Whether another replica can take it: if not, nothing waits for that."""
        self.changed = Bell()
        self.lost = asyncio.Event()
        self._clock = clock
        self._until = until

    @property
    def is_valid(self) -> bool:
        """Whether nobody else can have it at this moment."""
        return self._clock() < self._until and not self.is_lost and not self.is_leaving

    def extend(self, until: float) -> None:
        # a renewal under way when it was lost must not bring it back
        if not self.is_lost:
            self._until = max(self._until, until)
            self.changed.ring()

    def leave(self) -> None:
        """Begin nothing more: it will be given back."""
        self.is_leaving = True

    def give_up(self) -> None:
        """No replica is left that could take it."""
        self.has_successor = False
        self.changed.ring()

    def lose(self) -> None:
        """End it for good."""
        # the flag before the events: what wakes up reads it
        self.is_lost = True
        self.lost.set()
        self.changed.ring()
