"""Decides whether a server's question surely belongs to one call."""

from multitap.upstream.server_habits import ServerHabits
from multitap.upstream.session import Session

_MIXING = frozenset({"stdio", "sse"})
"""Wires on which a server's messages do not name their call."""


class Attribution:
    """Owns one link's observations of the server during calls.

    Args:
        habits: The observations of all links to the server.
        mixes: Whether messages on its wire do not name their call.
    """

    def __init__(self, habits: ServerHabits, *, mixes: bool) -> None:
        self.habits = habits
        self.is_mixing = mixes
        """Whether messages on its wire do not name their call."""
        self.quiet_subjects: set[str] = set()
        """Subjects that it has answered without asking."""

    def on_connected(self, session: Session) -> None:
        """Apply what is known of a new session."""
        self.is_mixing = session.wire.kind in _MIXING

    def may_mix(self, subject: str) -> bool:
        """Whether a request may cause questions that do not name their call.

        Args:
            subject: A tool's own name, or a method.
        """
        return self.habits.asks or (self.is_mixing and subject not in self.quiet_subjects)

    def is_quiet(self, subject: str) -> bool:
        """Whether it has answered this subject before without asking."""
        return subject in self.quiet_subjects

    def was_quiet(self, subject: str) -> None:
        """Remember that it answered a subject without asking."""
        if not self.habits.asks:
            self.quiet_subjects.add(subject)
