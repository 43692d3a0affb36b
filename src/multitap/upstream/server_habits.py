"""The observed behaviour of a server during calls."""

from collections.abc import Callable

from multitap.upstream.signals import Bell


class ServerHabits:
    """The observations of all sessions with one server.

    Args:
        asks: Whether it has ever asked without naming the call.
        on_learned: Called when it does so for the first time.
    """

    __slots__ = ("_on_learned", "asks", "changed")

    def __init__(
        self, *, asks: bool = False, on_learned: Callable[[], None] = lambda: None
    ) -> None:
        self.asks = asks
        """Whether the calls of its clients have to be kept apart."""
        self.changed = Bell()
        """Rings when it is seen to ask, and when a call ends."""
        self._on_learned = on_learned

    def learn(self) -> None:
        """Note that it asks without naming the call."""
        if not self.asks:
            self.asks = True
            self.changed.ring()
            self._on_learned()
