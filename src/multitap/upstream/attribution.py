"""Decides whether a server's question or log message surely belongs to one call."""

from multitap.upstream.server_habits import ServerHabits
from multitap.upstream.session import Session

_MIXING = frozenset({"stdio", "sse"})
"""Wires on which a server cannot say for which call it asks or logs."""


class Attribution:
    """Owns what one link has observed of the server during calls.

    Args:
        habits: What all links to the server have seen.
        mixes: Whether its wire cannot say which call a question belongs to.
    """

    def __init__(self, habits: ServerHabits, *, mixes: bool) -> None:
        self.habits = habits
        self.logs = False
        """Whether it says that it logs."""
        self.is_tried = False
        """Whether it works on what it was never asked for, so that log messages may be its own."""
        self.is_mixing = mixes
        """Whether its wire does not tell for which call it asks or logs."""
        self.quiet_subjects: set[str] = set()
        """What it has answered without asking or logging."""

    def on_connected(self, session: Session) -> None:
        """Take over what a new session says about itself."""
        self.is_mixing = session.wire.kind in _MIXING
        self.logs = session.capabilities.logging is not None

    def may_mix(self, subject: str) -> bool:
        """Whether a request may bring questions or log messages that do not say whose they are.

        Args:
            subject: What is asked for: a tool's own name, or a method.
        """
        mixes = self.is_mixing and (self.is_tried or subject not in self.quiet_subjects)
        return self.habits.asks or mixes

    def is_quiet(self, subject: str) -> bool:
        """Whether it has answered that before without asking or logging."""
        return subject in self.quiet_subjects

    def was_quiet(self, subject: str) -> None:
        """Note what it answered without asking or logging, unless it has done so before."""
        if not self.habits.asks:
            self.quiet_subjects.add(subject)
