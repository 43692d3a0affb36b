"""The building blocks of log queries: conditions, pages, cursors."""

import base64
import binascii
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import msgspec

from multitap.errors import BadArguments
from multitap.records import dataclass
from multitap.store.record_filter import EVERYTHING, RecordFilter
from multitap.store.rows import Row

MAX_LIMIT = 1_000

_Position = TypeVar("_Position", bound=tuple[float | int, ...])
_Record = TypeVar("_Record")


class Page(msgspec.Struct, Generic[_Record], frozen=True):
    """Some records, newest first."""

    records: tuple[_Record, ...]
    cursor: str | None = None
    """The cursor of the next page; None after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordQuery(ABC, Generic[_Record]):
    """A query for records; all conditions must hold."""

    server: str | None = None
    since: float | None = None
    until: float | None = None
    text: str | None = None
    filter: RecordFilter = EVERYTHING
    """A parsed filter; checked after the conditions above."""
    limit: int = 100
    cursor: str | None = None

    @abstractmethod
    def select(self) -> tuple[str, list[Any]]:
        """The statement and its values; it returns one row more than `count` if there are more.

        Raises:
            BadArguments: The cursor is not one of ours.
        """

    @abstractmethod
    def record(self, row: Row) -> Any:
        """The record of a row."""

    @abstractmethod
    def cursor_after(self, row: Row) -> str:
        """The cursor of the records after a row."""

    @property
    def count(self) -> int:
        """The size of a page, within the limits."""
        return min(max(self.limit, 1), MAX_LIMIT)

    def page(self, rows: list[Row]) -> Page[_Record]:
        """The page of these rows."""
        shown = rows[: self.count]
        more = len(rows) > self.count
        return Page(tuple(map(self.record, shown)), self.cursor_after(shown[-1]) if more else None)

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


def encodable(text: str) -> str:
    """`text` without lone surrogates, which cannot be stored."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _like(text: str) -> str:
    # the escape first, or it would escape the others
    for special in "\\%_":
        text = text.replace(special, f"\\{special}")
    return f"%{text}%"
