"""Past calls, newest first."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from multitap.events import Outcome
from multitap.records import dataclass
from multitap.store.exchanges import RecordedExchange
from multitap.store.log_query import (
    Conditions,
    RecordQuery,
    cursor_at,
    encodable,
    position_of,
)
from multitap.store.rows import Row

MAX_CALLS = 100_000
_LONGEST_ERROR = 500

TABLE = """
CREATE TABLE IF NOT EXISTS calls (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    seconds REAL NOT NULL,
    outcome TEXT NOT NULL,
    bytes_in INTEGER NOT NULL,
    bytes_out INTEGER NOT NULL,
    error TEXT,
    agent TEXT,
    session TEXT,
    client TEXT,
    queued REAL NOT NULL DEFAULT 0,
    connecting REAL NOT NULL DEFAULT 0,
    encoding REAL NOT NULL DEFAULT 0,
    exchange TEXT
)
"""
ADDED = (
    "session TEXT",
    "client TEXT",
    "queued REAL NOT NULL DEFAULT 0",
    "connecting REAL NOT NULL DEFAULT 0",
    "encoding REAL NOT NULL DEFAULT 0",
    "exchange TEXT",
)
"""Columns that a file of an earlier version may lack."""
_NAMES = (
    "at, server, tool, seconds, outcome, bytes_in, bytes_out, error, agent, session, client, "
    "queued, connecting, encoding, exchange"
)
_LATER: tuple[Any, ...] = (None, None, 0.0, 0.0, 0.0, None)
_WORDS = {outcome: outcome.value for outcome in Outcome}
INDEX = "CREATE INDEX IF NOT EXISTS calls_by_time ON calls (at)"
INSERT = f"INSERT INTO calls ({_NAMES})"
# Ids increase and are never reused, so the highest one bounds how many rows there are.
TRIM = "DELETE FROM calls WHERE id <= (SELECT max(id) FROM calls) - ?"
_SELECT = f"SELECT id, {_NAMES} FROM calls"  # noqa: S608 - all of it is ours


class CallRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One call and its outcome."""

    at: float
    """When it ended, in seconds since the epoch."""
    server: str
    tool: str
    """The server's own name for it."""
    seconds: float
    outcome: Outcome
    bytes_in: int = 0
    """Size of the answer."""
    bytes_out: int = 0
    """Size of the arguments."""
    error: str | None = None
    """What went wrong; the first 500 characters are kept."""
    agent: str | None = None
    """The agent that called."""
    session: str | None = None
    """The caller's session."""
    client: str | None = None
    """The label of the gateway's client."""
    queued: float = 0.0
    """Seconds of it spent waiting for its turn."""
    connecting: float = 0.0
    """Seconds of it spent waiting for the server to come up."""
    encoding: float = 0.0
    """Seconds of it spent on the answer after it arrived."""
    exchange: RecordedExchange | str | None = None
    """Arguments and result, if recorded; for a past call, the id of its exchange."""
    principal: str | None = None
    """The name in the client's credentials, for the audit log; None for calls of the host."""
    ruled: tuple[str, str] | None = None
    """The policy's decision and its rule, for the audit log."""
    shown: msgspec.Raw | None = None
    """The arguments without secrets, if the audit log keeps them."""

    @property
    def fields(self) -> Mapping[str, object]:
        """The fields for a `RecordFilter`."""
        return {
            "server": self.server,
            "tool": self.tool,
            "status": self.outcome.value,
            "client": self.client,
            "agent": self.agent,
            "kind": "call",
            "text": self.error,
            "seconds": self.seconds,
            "at": self.at,
        }

    def row(self) -> tuple[Any, ...]:
        """The values for `INSERT`."""
        return (
            self.at,
            encodable(self.server),
            encodable(self.tool),
            self.seconds,
            _WORDS[self.outcome],
            self.bytes_in,
            self.bytes_out,
            None if self.error is None else encodable(self.error[:_LONGEST_ERROR]),
            None if self.agent is None else encodable(self.agent),
            None if self.session is None else encodable(self.session),
            None if self.client is None else encodable(self.client),
            self.queued,
            self.connecting,
            self.encoding,
            self.exchange.id if isinstance(self.exchange, RecordedExchange) else self.exchange,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallQuery(RecordQuery[CallRecord]):
    """A query for calls."""

    tool: str | None = None
    outcomes: Collection[Outcome] | None = None

    def select(self) -> tuple[str, list[Any]]:
        """See `RecordQuery.select`."""
        wanted = Conditions()
        if self.server is not None:
            wanted.add("server = ?", encodable(self.server))
        if self.tool is not None:
            wanted.add("tool = ?", encodable(self.tool))
        wanted.within(self.since, self.until)
        if self.outcomes is not None:
            wanted.one_of("outcome", tuple(outcome.value for outcome in self.outcomes))
        if self.text is not None:
            wanted.has(self.text, "error", "tool", "server")
        if self.cursor is not None:
            # by position, not by offset: pages stay complete while new calls are added
            wanted.add("(at, id) < (?, ?)", *position_of(self.cursor, tuple[float, int]))
        newest = "ORDER BY at DESC, id DESC LIMIT ?"
        return f"{_SELECT} {wanted.where} {newest}", [*wanted.values, self.count + 1]

    def record(self, row: Row) -> CallRecord:
        """See `RecordQuery.record`."""
        _, at, server, tool, seconds, outcome, *rest = row
        return CallRecord(at, server, tool, seconds, Outcome(outcome), *rest)

    def cursor_after(self, row: Row) -> str:
        """See `RecordQuery.cursor_after`."""
        number, at, *_ = row
        return cursor_at((at, number))


def complete_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row of an earlier version, extended with defaults."""
    # columns were only ever added at the end
    missing = _NAMES.count(",") + 1 - len(row)
    return (*row, *_LATER[len(_LATER) - missing :])
