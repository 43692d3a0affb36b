"""Decides whether a server's question or log message surely belongs to one call."""

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
        self.logs = False
        """Whether it has the logging capability."""
        self.is_tried = False
        """Whether a trial runs, to whose call log messages may belong."""
        self.is_mixing = mixes
        """Whether messages on its wire do not name their call."""
        self.quiet_subjects: set[str] = set()
        """Subjects that it has answered without asking or logging."""

    def on_connected(self, session: Session) -> None:
        """Apply the capabilities of a new session."""
        self.is_mixing = session.wire.kind in _MIXING
        self.logs = session.capabilities.logging is not None

    def may_mix(self, subject: str) -> bool:
        """Whether a request may cause questions or log messages that do not name their call.

        Args:
            subject: A tool's own name, or a method.
        """
        mixes = self.is_mixing and (self.is_tried or subject not in self.quiet_subjects)
        return self.habits.asks or mixes

    def is_quiet(self, subject: str) -> bool:
        """Whether it has answered this subject before without asking or logging."""
        return subject in self.quiet_subjects

    def was_quiet(self, subject: str) -> None:
        """Remember that it answered a subject without asking or logging."""
        if not self.habits.asks:
            self.quiet_subjects.add(subject)
