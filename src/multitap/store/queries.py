"""Queries over past calls and events: the filter language, pages, and sums for plots."""

import base64
import binascii
import operator
import re
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar

import msgspec

from multitap.config import durations
from multitap.config.models import LogLevel
from multitap.config.problems import did_you_mean
from multitap.errors import BadArguments, quoted
from multitap.events import Outcome
from multitap.store.tables import (
    CALL_COLUMNS,
    LEVEL_OF_CALL,
    LEVELS,
    Activity,
    CallRecord,
    Row,
    encodable,
)

LONGEST = 1000
"""Characters of a filter."""
KEYS = ("server", "tool", "status", "client", "agent", "kind", "level", "since", "text", "trace")
HELP = (
    "words to find, `key:value` with `*` as a wildcard, `>500ms` and `<2s` for the duration, "
    "`since:10m`, and `-` before a term to exclude what it matches; "
    f"keys: {', '.join(KEYS)}"
)

_ALIKE: Mapping[str, frozenset[str]] = {
    # `error` means every call without a good answer
    "error": frozenset({"error", "failed", "timeout"}),
    "up": frozenset({"connected"}),
    "down": frozenset({"disconnected", "connecting", "error", "needs_auth"}),
}
_COMPARISON = re.compile(r"(>=|<=|>|<)(.+)")
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}

Fields = Mapping[str, object]
"""The fields of a record: texts by the keys above, `seconds` and `at` as numbers."""
_Test = Callable[[Fields], bool]


class RecordFilter(msgspec.Struct, frozen=True):
    """A parsed filter; a row passes if every term does."""

    text: str
    """The text as typed."""
    _tests: tuple[_Test, ...]

    @classmethod
    def parse(cls, text: str) -> "RecordFilter":
        """Parse a filter.

        Raises:
            BadArguments: A term is invalid; the error names it, and the valid forms.
        """
        if len(text) > LONGEST:
            raise BadArguments(f"a filter has at most {LONGEST} characters", path="", hint=HELP)
        try:
            terms = shlex.split(text)
        except ValueError:
            raise BadArguments(
                f"a quotation mark in {quoted(text)} is not closed", path="", hint=HELP
            ) from None
        return cls(text, tuple(map(_parse_term, terms)))

    def matches(self, fields: Fields) -> bool:
        return all(test(fields) for test in self._tests)


EVERYTHING = RecordFilter("", ())
"""The filter that matches everything."""


def _parse_term(term: str) -> _Test:
    if term.startswith("-") and len(term) > 1:
        excluded = _parse_term(term[1:])
        return lambda fields: not excluded(fields)
    if comparison := _COMPARISON.fullmatch(term):
        compare, limit = _COMPARE[comparison[1]], _seconds(comparison[2])
        return lambda fields: _compared(fields.get("seconds"), compare, limit)
    key, colon, value = term.partition(":")
    if not colon or not key.isalpha():
        return lambda fields: _contains(fields, term.lower())
    if key not in KEYS:
        hint = did_you_mean(key, KEYS) or HELP
        raise BadArguments(f"a filter has no key {quoted(key)}", path="", hint=hint)
    return _key_test(key, value.lower())


def _key_test(key: str, value: str) -> _Test:
    match key:
        case "since":
            start = time.time() - _seconds(value)
            return lambda fields: _compared(fields.get("at"), operator.ge, start)
        case "level":
            if value not in LEVELS:
                raise BadArguments(
                    f"{quoted(value)} is not a level", path="", hint=f"one of {', '.join(LEVELS)}"
                )
            levels = frozenset(LEVELS[LEVELS.index(value) :])
            return lambda fields: fields.get("level") in levels
        case "status" if value in _ALIKE:
            alike = _ALIKE[value]
            return lambda fields: str(fields.get("status") or "").lower() in alike
        case "text":
            return lambda fields: _contains(fields, value)
        case "trace":
            return lambda fields: str(fields.get("trace") or "").startswith(value)
        case _:
            return lambda fields: fnmatchcase(str(fields.get(key) or "").lower(), value)


def _contains(fields: Fields, text: str) -> bool:
    return any(text in value.lower() for value in fields.values() if isinstance(value, str))


def _compared(value: object, compare: Callable[[float, float], bool], limit: float) -> bool:
    return isinstance(value, int | float) and compare(value, limit)


def _seconds(text: str) -> float:
    try:
        return durations.seconds(text)
    except ValueError:
        raise BadArguments(
            f"{quoted(text)} is not a duration", path="", hint=f"write {durations.EXAMPLES}"
        ) from None


MAX_LIMIT = 1_000

_Position = TypeVar("_Position", bound=tuple[float | int, ...])
_Record = TypeVar("_Record")


class Page(msgspec.Struct, Generic[_Record], frozen=True):
    """Some records, newest first."""

    records: tuple[_Record, ...]
    cursor: str | None = None
    """The cursor of the next page; None after the last."""


class RecordQuery(msgspec.Struct, Generic[_Record], frozen=True, kw_only=True):
    """A query for records; all conditions must hold."""

    server: str | None = None
    since: float | None = None
    until: float | None = None
    text: str | None = None
    filter: RecordFilter = EVERYTHING
    """A parsed filter; checked after the conditions above."""
    limit: int = 100
    cursor: str | None = None

    def select(self) -> tuple[str, list[Any]]:
        """The statement and its values; it returns one row more than `count` if there are more.

        Raises:
            BadArguments: The cursor is not one of ours.
        """
        raise NotImplementedError

    def record(self, row: Row) -> Any:
        """The record of a row."""
        raise NotImplementedError

    def cursor_after(self, row: Row) -> str:
        """The cursor of the records after a row."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """The size of a page, within the limits."""
        return min(max(self.limit, 1), MAX_LIMIT)

    def page(self, rows: list[Row]) -> Page[_Record]:
        """The page of these rows."""
        first = rows[: self.count]
        more = len(rows) > self.count
        return Page(tuple(map(self.record, first)), self.cursor_after(first[-1]) if more else None)

    def passes(self, row: Row) -> bool:
        """Whether a row of `select` passes the filter."""
        return self.filter.matches(self.record(row).fields)


class Conditions:
    """The conditions of a `WHERE` clause, and their values."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._parts: list[str] = []

    def add(self, sql: str, *values: Any) -> None:
        self._parts.append(sql)
        self.values.extend(values)

    def within(self, since: float | None, until: float | None) -> None:
        """From one moment, included, to another, excluded."""
        if since is not None:
            self.add("at >= ?", since)
        if until is not None:
            self.add("at < ?", until)

    def one_of(self, column: str, values: tuple[str, ...]) -> None:
        self.add(f"{column} IN ({', '.join('?' * len(values))})", *values)

    def has(self, text: str, *columns: str) -> None:
        """One of the columns contains the text, in any case."""
        pattern = _like(encodable(text))
        named = " OR ".join(f"{column} LIKE ? ESCAPE '\\'" for column in columns)
        self.add(f"({named})", *(pattern for _ in columns))

    @property
    def where(self) -> str:
        return f"WHERE {' AND '.join(self._parts)}" if self._parts else ""


def cursor_at(position: tuple[float | int, ...]) -> str:
    """The cursor with which a caller continues after a row."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode()


def position_of(cursor: str, kind: type[_Position]) -> _Position:
    """The position in a cursor.

    Raises:
        BadArguments: The cursor is not one of ours.
    """
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=kind)
    except (binascii.Error, ValueError):
        raise BadArguments(
            "not a cursor of this log", path="/cursor", hint="leave it out to start over"
        ) from None


def _like(text: str) -> str:
    # the escape first, or it would escape the others
    for special in "\\%_":
        text = text.replace(special, f"\\{special}")
    return f"%{text}%"


_SELECT_CALLS = f"SELECT id, {CALL_COLUMNS} FROM calls"  # noqa: S608 - all of it is ours


class CallQuery(RecordQuery[CallRecord], frozen=True, kw_only=True):
    """A query for calls."""

    tool: str | None = None
    outcomes: Collection[Outcome] | None = None

    def select(self) -> tuple[str, list[Any]]:
        conditions = Conditions()
        if self.server is not None:
            conditions.add("server = ?", encodable(self.server))
        if self.tool is not None:
            conditions.add("tool = ?", encodable(self.tool))
        conditions.within(self.since, self.until)
        if self.outcomes is not None:
            conditions.one_of("outcome", tuple(outcome.value for outcome in self.outcomes))
        if self.text is not None:
            conditions.has(self.text, "error", "tool", "server")
        if self.cursor is not None:
            # by position, not by offset: pages stay complete while new calls are added
            conditions.add("(at, id) < (?, ?)", *position_of(self.cursor, tuple[float, int]))
        newest = "ORDER BY at DESC, id DESC LIMIT ?"
        return f"{_SELECT_CALLS} {conditions.where} {newest}", [*conditions.values, self.count + 1]

    def record(self, row: Row) -> CallRecord:
        _, at, server, tool, seconds, outcome, *rest, trace = row
        record = CallRecord(at, server, tool, seconds, Outcome(outcome), *rest)
        return record if trace is None else msgspec.structs.replace(record, trace=trace)

    def cursor_after(self, row: Row) -> str:
        number, at, *_ = row
        return cursor_at((at, number))


_CASES = " ".join(f"WHEN '{outcome}' THEN '{level}'" for outcome, level in LEVEL_OF_CALL.items())
_CALLS = f"""
SELECT id, 1 AS source, at, CASE outcome {_CASES} END AS level, 'call' AS kind, server,
    tool || ': ' || coalesce(error, outcome) AS text, tool, agent, session, seconds, outcome
FROM calls
"""  # noqa: S608 - made of our own words only
_LOG = """
SELECT id, 0 AS source, at, level, kind, server, text,
    NULL AS tool, NULL AS agent, NULL AS session, NULL AS seconds, NULL AS outcome FROM log
"""


class ActivityQuery(RecordQuery[Activity], frozen=True, kw_only=True):
    """A query for events, calls included."""

    level: LogLevel = "debug"
    """The lowest level."""

    def select(self) -> tuple[str, list[Any]]:
        conditions = Conditions()
        if self.level != LEVELS[0]:
            conditions.one_of("level", LEVELS[LEVELS.index(self.level) :])
        conditions.within(self.since, self.until)
        if self.server is not None:
            conditions.add("server = ?", encodable(self.server))
        if self.text is not None:
            conditions.has(self.text, "text", "server")
        if self.cursor is not None:
            position = position_of(self.cursor, tuple[float, int, int])
            # for the index; the next condition orders events of the same moment
            conditions.add("at <= ?", position[0])
            conditions.add("(at, source, id) < (?, ?, ?)", *position)
        where, values = conditions.where, conditions.values
        newest = "ORDER BY at DESC, source DESC, id DESC LIMIT ?"
        # Each table returns its newest by its own index; one order over both would read all rows.
        parts = (f"SELECT * FROM ({table} {where} {newest})" for table in (_CALLS, _LOG))  # noqa: S608 - all values are bound
        count = self.count + 1
        return f"{' UNION ALL '.join(parts)} {newest}", [*values, count, *values, count, count]

    def record(self, row: Row) -> Activity:
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
        number, source, at, *_ = row
        return cursor_at((at, source, number))


POINTS = 60
"""Steps in a history."""
LONGEST_SPAN = 7 * 86_400.0
MOST_ROWS = 20_000
"""Rows that are read; further ones are ignored."""
MOST_SPANS = 8
"""Time spans whose steps are cached."""

_BAD = frozenset({"error", "failed", "timeout"})
_UNTIMED = frozenset({"cancelled", "refused"})
_NEWEST = "SELECT coalesce(max(id), 0) FROM calls"
# `+at`: by id, which keeps new calls together, not by the index of times
_SELECT_STEPS = """
SELECT server, tool, CAST(at / ? AS INTEGER) AS step, outcome, count(*), sum(seconds), max(seconds)
FROM calls WHERE id > ? AND id <= ? AND +at >= ? GROUP BY server, tool, step, outcome
ORDER BY step LIMIT ?
"""


class HistoryStep(msgspec.Struct, frozen=True, array_like=True):
    """One tool's calls within one step of time."""

    step: int
    """From 0, the oldest, to `POINTS` - 1."""
    calls: int
    errors: int
    mean: float
    """Seconds."""
    slowest: float


class ToolHistory(msgspec.Struct, frozen=True):
    """One tool's calls over time."""

    server: str
    tool: str
    """By the server's own name."""
    steps: tuple[HistoryStep, ...]
    """The steps with calls."""


class CallHistory(msgspec.Struct, frozen=True):
    """All calls over time."""

    start: float
    """When the first step begins, in seconds since the epoch."""
    step: float
    """Seconds of each."""
    tools: tuple[ToolHistory, ...]


Rows = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Runs a statement with its values."""
_Sums = tuple[int, int, int, float, float]
"""Calls, errors, timed calls, their total seconds, and those of the slowest."""
_Steps = dict[tuple[str, str], dict[int, _Sums]]
"""Sums by server and tool, then by the number of the step since the epoch."""


class CallHistories:
    """Aggregates calls incrementally, each of them once.

    A page asks every few seconds, and there are up to 100,000 calls.
    """

    def __init__(self) -> None:
        self._cached: dict[float, tuple[int, _Steps]] = {}
        """By the length of a step: the id of the last counted call, and the sums."""

    def read(self, span: float, rows: Rows) -> CallHistory:
        """The history of the last `span` seconds; `rows` runs a query."""
        step, now = max(1.0, min(span, LONGEST_SPAN) / POINTS), time.time()
        # counted from the epoch: a step has the same calls at the next look, and so the same sums
        first = int(now / step) - POINTS + 1
        # added again below: the span that was asked for least recently is dropped first
        counted, steps = self._cached.pop(step, (0, {}))
        ((newest,),) = rows(_NEWEST, ())
        if newest < counted:  # all calls were removed, and ids may start again
            counted, steps = 0, {}
        values = (step, counted, newest, first * step, MOST_ROWS)
        for server, tool, at, outcome, calls, seconds, slowest in rows(_SELECT_STEPS, values):
            of_tool = steps.setdefault((server, tool), {})
            sums = _sums(outcome, calls, seconds, slowest)
            of_tool[at] = _add(of_tool.get(at, _NOTHING), sums)
        self._cached[step] = (newest, _within(steps, first))
        if len(self._cached) > MOST_SPANS:
            del self._cached[next(iter(self._cached))]
        tools = (
            ToolHistory(
                *names, tuple(_step(at - first, sums) for at, sums in sorted(of_tool.items()))
            )
            for names, of_tool in self._cached[step][1].items()
        )
        return CallHistory(first * step, step, tuple(tools))


_NOTHING: _Sums = (0, 0, 0, 0.0, 0.0)


def _sums(outcome: str, calls: int, seconds: float, slowest: float) -> _Sums:
    errors = calls if outcome in _BAD else 0
    # the time of a cancelled or refused call does not show the server's speed
    return (
        (calls, errors, 0, 0.0, 0.0)
        if outcome in _UNTIMED
        else (calls, errors, calls, seconds, slowest)
    )


def _add(before: _Sums, more: _Sums) -> _Sums:
    calls, errors, timed, seconds, slowest = more
    return (
        before[0] + calls,
        before[1] + errors,
        before[2] + timed,
        before[3] + seconds,
        max(before[4], slowest),
    )


def _step(step: int, sums: _Sums) -> HistoryStep:
    calls, errors, timed, seconds, slowest = sums
    return HistoryStep(step, calls, errors, seconds / timed if timed else 0.0, slowest)


def _within(steps: _Steps, first: int) -> _Steps:
    """The steps from `first` on."""
    recent = {
        names: {at: sums for at, sums in of_tool.items() if at >= first}
        for names, of_tool in steps.items()
    }
    return {names: of_tool for names, of_tool in recent.items() if of_tool}
