"""What has been observed of a server's behaviour during calls."""

from collections.abc import Callable

from multitap.upstream.signals import Bell


class ServerHabits:
    """What all sessions with one server have taught us.

    Args:
        asks: Whether it was ever seen to ask, or to log, without saying for which call.
        on_learned: Called when it is seen for the first time.
    """

    __slots__ = ("_on_learned", "asks", "changed")

    def __init__(
        self, *, asks: bool = False, on_learned: Callable[[], None] = lambda: None
    ) -> None:
        self.asks = asks
        """Whether the calls of its clients have to be kept apart."""
        self.changed = Bell()
        """Rings when it is seen to ask, and when a call ends that somebody may wait for."""
        self._on_learned = on_learned

    def learn(self) -> None:
        """It asks without saying for which call."""
        if not self.asks:
            self.asks = True
            self.changed.ring()
            self._on_learned()
