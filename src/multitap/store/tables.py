"""The tables of the state database, and the records in them."""

import json
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import chain, compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, assert_never, get_args

import msgspec

from multitap.config.models import HttpServer, LocalServer, LogLevel, ServerConfig, StdioServer
from multitap.config.secrets import in_call, mask_members
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
from multitap.principal import Person, Principal
from multitap.redaction import MARK, Redactor
from multitap.store.task_records import TASKS_TABLE

if TYPE_CHECKING:
    import sqlite3

Row = tuple[Any, ...]

_AT_ONCE = (512, 64, 8, 1)
"""Rows per statement, which may have 32,766 values; few sizes, so that SQLite caches them all."""
_CACHED_STATEMENTS = 64

MAX_CALLS = 100_000
_LONGEST_ERROR = 500
CALLS_TABLE = """
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
    queued REAL NOT NULL,
    connecting REAL NOT NULL,
    encoding REAL NOT NULL,
    exchange TEXT,
    trace TEXT
)
"""
CALL_COLUMNS = (
    "at, server, tool, seconds, outcome, bytes_in, bytes_out, error, agent, session, client, "
    "queued, connecting, encoding, exchange, trace"
)
CALLS_INDEX = "CREATE INDEX IF NOT EXISTS calls_by_time ON calls (at)"
INSERT_CALLS = f"INSERT INTO calls ({CALL_COLUMNS})"
# Ids increase and are never reused, so the highest one bounds how many rows there are.
TRIM_CALLS = "DELETE FROM calls WHERE id <= (SELECT max(id) FROM calls) - ?"
_OUTCOMES = {outcome: outcome.value for outcome in Outcome}

MAX_EXCHANGES = 2_000
"""How many are kept."""
MAX_EXCHANGE_AGE = 7 * 86_400.0
"""Seconds after which one is deleted."""
LONGEST = 64 * 1024
"""Characters of a request or a response that are kept."""
_MOST_MASKED = 1024 * 1024  # bytes of arguments that are decoded for it
EXCHANGES_TABLE = """
CREATE TABLE IF NOT EXISTS exchanges (
    id TEXT PRIMARY KEY,
    at REAL NOT NULL,
    arguments TEXT NOT NULL,
    result TEXT NOT NULL
)
"""
INSERT_EXCHANGES = "INSERT OR REPLACE INTO exchanges (id, at, arguments, result)"
SELECT_EXCHANGE = "SELECT id, arguments, result FROM exchanges WHERE id = ?"
TRIM_EXCHANGES = """
DELETE FROM exchanges WHERE at < ? OR rowid <= (SELECT max(rowid) FROM exchanges) - ?
"""

MAX_RECORDS = 100_000
_LONGEST_TEXT = 2_000
LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
"""From the least to the worst."""
LOG_TABLE = """
CREATE TABLE IF NOT EXISTS log (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    level TEXT NOT NULL,
    kind TEXT NOT NULL,
    server TEXT,
    text TEXT NOT NULL
)
"""
LOG_INDEX = "CREATE INDEX IF NOT EXISTS log_by_time ON log (at)"
INSERT_LOG = "INSERT INTO log (at, level, kind, server, text)"
TRIM_LOG = "DELETE FROM log WHERE id <= (SELECT max(id) FROM log) - ?"

# a changed configuration counts as another server: old ones are rarely needed
MAX_CATALOGS = 256
CATALOGS_TABLE = """
CREATE TABLE IF NOT EXISTS catalogs (
    server TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    saved_at REAL NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (server, fingerprint)
)
"""
REPLACE_CATALOGS = "REPLACE INTO catalogs (server, fingerprint, saved_at, body) VALUES (?, ?, ?, ?)"
SELECT_CATALOGS = "SELECT server, fingerprint, saved_at, body FROM catalogs"
TRIM_CATALOGS = """
DELETE FROM catalogs WHERE rowid NOT IN
    (SELECT rowid FROM catalogs ORDER BY saved_at DESC LIMIT ?)
"""

MAX_OUTCOMES = 1024
"""Servers whose last start is remembered, so that good ones start first."""
STARTS_TABLE = """
CREATE TABLE IF NOT EXISTS outcomes (
    server TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    saved_at REAL NOT NULL,
    is_up INTEGER NOT NULL,
    PRIMARY KEY (server, fingerprint)
)
"""
REPLACE_STARTS = "REPLACE INTO outcomes (server, fingerprint, saved_at, is_up) VALUES (?, ?, ?, ?)"
SELECT_STARTS = "SELECT server, fingerprint, is_up FROM outcomes"
TRIM_STARTS = """
DELETE FROM outcomes WHERE rowid NOT IN
    (SELECT rowid FROM outcomes ORDER BY saved_at DESC LIMIT ?)
"""

MAX_ASKING = 1024
"""Servers that are known to ask questions without naming the call they belong to."""
ASKING_TABLE = """
CREATE TABLE IF NOT EXISTS asking (
    server TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    saved_at REAL NOT NULL,
    PRIMARY KEY (server, fingerprint)
)
"""
REPLACE_ASKING = "REPLACE INTO asking (server, fingerprint, saved_at) VALUES (?, ?, ?)"
SELECT_ASKING = "SELECT server, fingerprint FROM asking"
TRIM_ASKING = """
DELETE FROM asking WHERE rowid NOT IN
    (SELECT rowid FROM asking ORDER BY saved_at DESC LIMIT ?)
"""

MAX_CHOICES = 50_000
"""Names that were chosen when two servers wanted the same one."""
CHOICES_TABLE = """
CREATE TABLE IF NOT EXISTS choices (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    server TEXT NOT NULL,
    raw TEXT NOT NULL,
    name TEXT NOT NULL,
    UNIQUE (kind, server, raw),
    UNIQUE (kind, name)
)
"""
REPLACE_CHOICES = "REPLACE INTO choices (kind, server, raw, name)"
SELECT_CHOICES = "SELECT kind, server, raw, name FROM choices ORDER BY id"
TRIM_CHOICES = """
DELETE FROM choices WHERE id NOT IN (SELECT id FROM choices ORDER BY id DESC LIMIT ?)
"""

CREATE_ALL = (
    *(CALLS_TABLE, CALLS_INDEX, LOG_TABLE, LOG_INDEX, EXCHANGES_TABLE),
    *(CATALOGS_TABLE, STARTS_TABLE, ASKING_TABLE, CHOICES_TABLE, TASKS_TABLE),
)

UPGRADES: Mapping[int, tuple[str, ...]] = {3: ("ALTER TABLE calls ADD COLUMN trace TEXT",)}
"""What makes a database of the next version from one of an earlier one."""

LogKind = Literal["call", "server", "state", "warning", "configuration"]
"""A call, a server's log message, a change of state, a warning, or a reload."""
Definition = dict[str, Any]
CatalogKey = tuple[str, str]
"""A server's name and its fingerprint."""
Outcomes = dict[CatalogKey, bool]
"""Whether the last start succeeded, by server."""
Asking = set[CatalogKey]
"""Servers that ask without naming the call."""
Pair = tuple[str, str]
Choices = dict[str, dict[Pair, str]]
"""The name by server and the server's own name, for each kind of thing."""


def insert(connection: "sqlite3.Connection", statement: str, rows: Sequence[Row]) -> None:
    """Insert rows, many with each statement, such as `INSERT INTO table (columns)`.

    SQLite releases the GIL for each statement, and another thread may hold it for long: row by row,
    a busy program would write only a few hundred per second.
    """
    if not rows:
        return
    columns = [*zip(*rows, strict=True)]
    # Written as NULL, not bound: for each None, Python searches for an adapter.
    filled = tuple(column[0] is not None or column.count(None) < len(rows) for column in columns)
    if not all(filled):
        rows = [*zip(*compress(columns, filled), strict=True)] or [()] * len(rows)
    at = 0
    for size in _AT_ONCE:
        while len(rows) - at >= size:
            sql = _statement_for(statement, filled, size)
            connection.execute(sql, [*chain.from_iterable(rows[at : at + size])])
            at += size


@lru_cache(_CACHED_STATEMENTS)
def _statement_for(statement: str, filled: tuple[bool, ...], rows: int) -> str:
    row = f"({', '.join('?' if is_filled else 'NULL' for is_filled in filled)})"
    return f"{statement} VALUES {', '.join([row] * rows)}"


def encodable(text: str) -> str:
    """`text` without lone surrogates, which cannot be stored."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


class RecordedExchange(msgspec.Struct, frozen=True):
    """The arguments and the result of one call, as JSON, without secrets; kept on request."""

    id: str
    arguments: str
    result: str

    def row(self, at: float) -> Row:
        """The values for `INSERT_EXCHANGES`."""
        return (self.id, at, encodable(self.arguments), encodable(self.result))


def keep_exchange(arguments: bytes, result: bytes, redact: Redactor) -> RecordedExchange:
    """The exchange of a call that has just ended."""
    values = {*in_call(arguments)}
    room = LONGEST + max([redact.reach, *map(len, values)])
    hide = redact.with_values(values)  # servers repeat what they were given
    return RecordedExchange(
        secrets.token_hex(8), _bound(_mask(arguments), hide, room), _bound(result, hide, room)
    )


def _mask(arguments: bytes) -> bytes:
    """Arguments without the values of telling names, however short they are."""
    if len(arguments) > _MOST_MASKED:
        return arguments  # of these, only the beginning is kept
    try:
        return msgspec.json.encode(mask_members(msgspec.json.decode(arguments), MARK))
    except (ValueError, RecursionError):
        return arguments


def _bound(data: bytes, redact: Callable[[str], str], room: int) -> str:
    # redacted with a margin, so that a secret across the cut is found as a whole
    # a character takes up to four bytes
    text = bytes(memoryview(data)[: 4 * room]).decode("utf-8", "replace")
    clean = redact(text[:room])
    return clean if len(clean) <= LONGEST else f"{clean[:LONGEST]}…"


def indent_json(text: str) -> str:
    """JSON with indentation; any other text unchanged."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:  # it was cut
        return text


# without `gc`: it holds no cycles, and thousands of them wait to be written
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
    principal: Principal | None = None
    """Who asked, for the audit log; None for calls of the host."""
    ruled: tuple[str, str] | None = None
    """The policy's decision and its rule, for the audit log."""
    shown: msgspec.Raw | None = None
    """The arguments without secrets, if the audit log keeps them."""
    answering: float = 0.0
    """Seconds of it spent waiting for the server's answer; not kept."""
    trace: str | None = None
    """The id of its trace, if that is recorded."""
    failure: str | None = None
    """Why there was no answer, as metrics name it; not kept."""
    account: Person | None = None
    """Whose account at the server was used, for the audit log; None for the gateway's own."""

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
            "trace": self.trace,
            "seconds": self.seconds,
            "at": self.at,
        }

    def row(self) -> Row:
        """Its values for `INSERT_CALLS`."""
        return (
            self.at,
            encodable(self.server),
            encodable(self.tool),
            self.seconds,
            _OUTCOMES[self.outcome],
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
            self.trace,
        )


_CALL_VALUES = attrgetter(
    *("at", "server", "tool", "seconds", "outcome._value_", "bytes_in", "bytes_out"),
    *("error", "agent", "session", "client", "queued", "connecting", "encoding"),
    *("exchange", "trace"),
)
_CALL_TEXTS = attrgetter("server", "tool", "agent", "session", "client")
_CALL_ERROR, _CALL_EXCHANGE = attrgetter("error"), attrgetter("exchange")


def call_rows(records: Collection[CallRecord]) -> list[Row]:
    """The values for `INSERT_CALLS`."""
    texts: set[str | None] = {*chain.from_iterable(map(_CALL_TEXTS, records))}
    is_long = any(map(_CALL_ERROR, records)) or any(map(_CALL_EXCHANGE, records))
    if is_long or not all(text is None or text.isascii() for text in texts):
        return [record.row() for record in records]
    return [*map(_CALL_VALUES, records)]  # in C: row by row, this takes ten times as long


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
        entry = _entry_of(event)
        if entry is None:
            return None
        level, kind, server, text = entry
        return cls(at=at, level=level, kind=kind, server=server, text=text)

    def row(self) -> Row:
        """The values for `INSERT_LOG`."""
        return (
            self.at,
            self.level,
            self.kind,
            None if self.server is None else encodable(self.server),
            encodable(self.text[:_LONGEST_TEXT]),
        )


_LEVEL_OF_STATE: dict[LinkState, LogLevel] = {
    LinkState.DISABLED: "info",
    LinkState.DISCONNECTED: "info",
    LinkState.CONNECTING: "debug",
    LinkState.CONNECTED: "info",
    LinkState.NEEDS_AUTH: "error",
    LinkState.ERROR: "error",
}


def _entry_of(  # noqa: PLR0911 - one for each kind of event
    event: Event,
) -> tuple[LogLevel, LogKind, str | None, str] | None:
    match event:
        case LinkChanged(server, state, failure):
            was_lost = state is LinkState.DISCONNECTED and failure is not None
            text = state.value if failure is None else f"{state.value}: {failure.message}"
            return ("warning" if was_lost else _LEVEL_OF_STATE[state], "state", server, text)
        case LinkRemoved(server):
            return ("info", "state", server, "removed")
        case ServerLog(server, level, logger, text):
            return (_level(level), "server", server, f"{logger}: {text}" if logger else text)
        case (
            Warned(server, text)
            | ToolsChanged(server, text=text)
            | ToolSuspected(server, text=text)
        ):
            return ("warning", "warning", server, text)
        case Reloaded(plan, problems, _, changes):
            text = "; ".join((f"reloaded: {plan}", *changes, *problems))
            return ("warning" if problems else "info", "configuration", None, text)
        case ReloadFailed(problems):
            return ("error", "configuration", None, "; ".join(("not reloaded", *problems)))
        case _:
            return None


def _level(name: str) -> LogLevel:
    # servers may send any text as a level
    levels: dict[str, LogLevel] = {level: level for level in LEVELS}
    return levels.get(name, "info")


LEVEL_OF_CALL: dict[Outcome, LogLevel] = {
    Outcome.OK: "info",
    Outcome.CANCELLED: "notice",
    Outcome.ERROR: "warning",
    Outcome.REFUSED: "warning",
    Outcome.FAILED: "error",
    Outcome.TIMEOUT: "error",
}


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
            level=LEVEL_OF_CALL[event.outcome],
            kind="call",
            server=event.server,
            text=f"{event.tool}: {event.error or event.outcome}",
            tool=event.tool,
            agent=event.agent,
            session=event.session,
            seconds=event.seconds,
            outcome=event.outcome,
        )


class StoredCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """One server's offers at its last good connection, to list it before it starts."""

    era: str
    """Its protocol era."""
    protocol_version: str | None = None
    tools: list[Definition] = []
    resources: list[Definition] = []
    templates: list[Definition] = []
    prompts: list[Definition] = []
    capabilities: dict[str, Any] = {}
    """Those that MCP does not define."""
    instructions: str | None = None
    title: str | None = None
    saved_at: float = 0.0
    """Seconds since the epoch."""


encode_catalog = msgspec.json.Encoder().encode
decode_catalog = msgspec.json.Decoder(StoredCatalog).decode


def fingerprint(config: ServerConfig) -> str:
    """Identifies a server across runs: a digest of its command or URL and names of variables."""
    canonical = json.dumps(_identity(config), sort_keys=True, separators=(",", ":"))
    return sha256(canonical.encode()).hexdigest()


def _identity(config: ServerConfig) -> dict[str, Any]:
    match config:
        case StdioServer():
            return {
                "transport": config.transport,
                "command": config.command,
                "args": config.args,
                "cwd": None if config.cwd is None else str(config.cwd),
                # names only: with a new token it is the same server, and no secret is hashed
                "env": sorted(config.env),
            }
        case HttpServer():
            return {
                "transport": config.transport,
                "url": config.url,
                # names of headers have no case
                "headers": sorted(name.lower() for name in config.headers),
            }
        case LocalServer():
            return {
                "transport": config.transport,
                "class": type(config.server).__qualname__,
                "name": str(getattr(config.server, "name", "")),
            }
        case _:
            assert_never(config)
