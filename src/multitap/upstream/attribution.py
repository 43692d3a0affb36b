"""Decides whether a server's question or log message surely belongs to one call."""

from multitap.upstream.server_habits import ServerHabits
from multitap.upstream.session import Session

_MIXING = frozenset({"stdio", "sse"})
"""Wires on which a server cannot say for which call it asks or logs."""


class Attribution:
    """Owns what one link has seen of the server in the middle of its calls.

    Args:
        habits: What all links to the server have seen.
        mixes: Whether its wire is of a kind on which it cannot say what it asks for.
    """

    def __init__(self, habits: ServerHabits, *, mixes: bool) -> None:
        self.habits = habits
        self.logs = False
        """Whether it says that it logs."""
        self.is_tried = False
        """Whether it works on what it was never asked for, so that log messages may be its own."""
        self._mixes = mixes
        self._quiet: set[str] = set()

    def connected(self, session: Session) -> None:
        """Take over what a new session says about itself."""
        self._mixes = session.wire.kind in _MIXING
        self.logs = session.capabilities.logging is not None

    def may_mix(self, subject: str) -> bool:
        """Whether a request may bring questions or log messages that do not say whose they are.

        Args:
            subject: What is asked for: a tool's own name, or a method.
        """
        mixes = self._mixes and (self.is_tried or subject not in self._quiet)
        return self.habits.asks or mixes

    def is_quiet(self, subject: str) -> bool:
        """Whether it has answered that before without asking or logging."""
        return subject in self._quiet

    def was_quiet(self, subject: str) -> None:
        """Note what it answered without asking or logging, unless it has done so before."""
        if not self.habits.asks:
            self._quiet.add(subject)
