"""The log: calls, server messages and state changes, newest first."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from multitap.config.models import LogLevel
from multitap.events import (
    CallDone,
    Event,
    LinkChanged,
    LinkRemoved,
    LinkState,
    Outcome,
    Reloaded,
    ReloadFailed,
    ServerLog,
    ToolsChanged,
    ToolSuspected,
    Warned,
)
from multitap.records import dataclass
from multitap.store.log_query import (
    Conditions,
    RecordQuery,
    cursor_at,
    encodable,
    position_of,
)
from multitap.store.rows import Row

MAX_RECORDS = 100_000
_LONGEST_TEXT = 2_000
_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
"""From the least to the worst."""

LogKind = Literal["call", "server", "state", "warning", "configuration"]
"""A call, a server's log message, a change of state, a warning, or a reload."""

TABLE = """
CREATE TABLE IF NOT EXISTS log (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    level TEXT NOT NULL,
    kind TEXT NOT NULL,
    server TEXT,
    text TEXT NOT NULL
)
"""
INDEX = "CREATE INDEX IF NOT EXISTS log_by_time ON log (at)"
INSERT = "INSERT INTO log (at, level, kind, server, text)"
# Ids increase and are never reused, so the highest one bounds how many rows there are.
TRIM = "DELETE FROM log WHERE id <= (SELECT max(id) FROM log) - ?"

_LEVEL_OF_STATE: dict[LinkState, LogLevel] = {
    LinkState.DISABLED: "info",
    LinkState.DISCONNECTED: "info",
    LinkState.CONNECTING: "debug",
    LinkState.CONNECTED: "info",
    LinkState.NEEDS_AUTH: "error",
    LinkState.ERROR: "error",
}
_LEVEL_OF_CALL: dict[Outcome, LogLevel] = {
    Outcome.OK: "info",
    Outcome.CANCELLED: "notice",
    Outcome.ERROR: "warning",
    Outcome.REFUSED: "warning",
    Outcome.FAILED: "error",
    Outcome.TIMEOUT: "error",
}
_CASES = " ".join(f"WHEN '{outcome}' THEN '{level}'" for outcome, level in _LEVEL_OF_CALL.items())
_CALLS = f"""
SELECT id, 1 AS source, at, CASE outcome {_CASES} END AS level, 'call' AS kind, server,
    tool || ': ' || coalesce(error, outcome) AS text, tool, agent, session, seconds, outcome
FROM calls
"""  # noqa: S608 - made of our own words only
_LOG = """
SELECT id, 0 AS source, at, level, kind, server, text,
    NULL AS tool, NULL AS agent, NULL AS session, NULL AS seconds, NULL AS outcome FROM log
"""


class LogRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An event other than a call."""

    at: float
    """Seconds since the epoch."""
    level: LogLevel
    kind: LogKind
    server: str | None = None
    """The server, if it concerns one."""
    text: str
    """The message; the first 2000 characters are kept."""

    @classmethod
    def of(cls, event: Event, *, at: float) -> "LogRecord | None":
        """The record of an event; None for calls, which have a table of their own."""
        told = _words_of(event)
        if told is None:
            return None
        level, kind, server, text = told
        return cls(at=at, level=level, kind=kind, server=server, text=text)

    def row(self) -> tuple[Any, ...]:
        """The values for `INSERT`."""
        return (
            self.at,
            self.level,
            self.kind,
            None if self.server is None else encodable(self.server),
            encodable(self.text[:_LONGEST_TEXT]),
        )


def _words_of(event: Event) -> tuple[LogLevel, LogKind, str | None, str] | None:
    told: tuple[LogLevel, LogKind, str | None, str] | None = None
    match event:
        case LinkChanged(server, state, failure):
            lost = state is LinkState.DISCONNECTED and failure is not None
            text = state.value if failure is None else f"{state.value}: {failure.message}"
            told = ("warning" if lost else _LEVEL_OF_STATE[state], "state", server, text)
        case LinkRemoved(server):
            told = ("info", "state", server, "removed")
        case ServerLog(server, level, logger, text):
            told = (_level(level), "server", server, f"{logger}: {text}" if logger else text)
        case (
            Warned(server, text)
            | ToolsChanged(server, text=text)
            | ToolSuspected(server, text=text)
        ):
            told = ("warning", "warning", server, text)
        case Reloaded(plan, problems, _, changes):
            text = "; ".join((f"reloaded: {plan}", *changes, *problems))
            told = ("warning" if problems else "info", "configuration", None, text)
        case ReloadFailed(problems):
            told = ("error", "configuration", None, "; ".join(("not reloaded", *problems)))
        case _:
            pass
    return told


def _level(name: str) -> LogLevel:
    # servers may send any text as a level
    known: dict[str, LogLevel] = {level: level for level in _LEVELS}
    return known.get(name, "info")


class Activity(LogRecord, frozen=True, kw_only=True):
    """An event, calls included."""

    tool: str | None = None
    """The tool of a call, by the server's own name."""
    agent: str | None = None
    """The agent that called."""
    session: str | None = None
    """The caller's session."""
    seconds: float | None = None
    """How long the call took."""
    outcome: Outcome | None = None
    """How the call ended."""

    @property
    def fields(self) -> Mapping[str, object]:
        """The fields for a `RecordFilter`."""
        return {
            "server": self.server,
            "tool": self.tool,
            "status": self.outcome and self.outcome.value,
            "agent": self.agent,
            "kind": self.kind,
            "level": self.level,
            "text": self.text,
            "seconds": self.seconds,
            "at": self.at,
        }

    @classmethod
    def of_call(cls, event: CallDone, *, at: float) -> "Activity":
        """A call that has just ended."""
        return cls(
            at=at,
            level=_LEVEL_OF_CALL[event.outcome],
            kind="call",
            server=event.server,
            text=f"{event.tool}: {event.error or event.outcome}",
            tool=event.tool,
            agent=event.agent,
            session=event.session,
            seconds=event.seconds,
            outcome=event.outcome,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityQuery(RecordQuery[Activity]):
    """A query for events, calls included."""

    level: LogLevel = "debug"
    """The lowest level."""

    def select(self) -> tuple[str, list[Any]]:
        """See `RecordQuery.select`."""
        wanted = Conditions()
        if self.level != _LEVELS[0]:
            wanted.one_of("level", _LEVELS[_LEVELS.index(self.level) :])
        wanted.within(self.since, self.until)
        if self.server is not None:
            wanted.add("server = ?", encodable(self.server))
        if self.text is not None:
            wanted.has(self.text, "text", "server")
        if self.cursor is not None:
            position = position_of(self.cursor, tuple[float, int, int])
            # for the index; the next condition orders events of the same moment
            wanted.add("at <= ?", position[0])
            wanted.add("(at, source, id) < (?, ?, ?)", *position)
        where, values = wanted.where, wanted.values
        newest = "ORDER BY at DESC, source DESC, id DESC LIMIT ?"
        # Each table returns its newest by its own index; one order over both would read all rows.
        parts = (f"SELECT * FROM ({table} {where} {newest})" for table in (_CALLS, _LOG))  # noqa: S608 - all that was given is in the values
        count = self.count + 1
        return f"{' UNION ALL '.join(parts)} {newest}", [*values, count, *values, count, count]

    def record(self, row: Row) -> Activity:
        """See `RecordQuery.record`."""
        _, _, at, level, kind, server, text, tool, agent, session, seconds, outcome = row
        return Activity(
            at=at,
            level=level,
            kind=kind,
            server=server,
            text=text,
            tool=tool,
            agent=agent,
            session=session,
            seconds=seconds,
            outcome=outcome and Outcome(outcome),
        )

    def cursor_after(self, row: Row) -> str:
        """See `RecordQuery.cursor_after`."""
        number, source, at, *_ = row
        return cursor_at((at, source, number))
