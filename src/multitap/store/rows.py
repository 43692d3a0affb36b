"""Inserts many rows with few statements."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, compress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3

Row = tuple[Any, ...]

_AT_ONCE = (512, 64, 8, 1)
"""Rows per statement, which may have 32,766 values; few sizes, so that SQLite caches them all."""
_KNOWN = 64
"""Statements whose text is cached."""


def insert(connection: "sqlite3.Connection", statement: str, rows: Sequence[Row]) -> None:
    """Insert rows, many with each statement.

    SQLite releases the GIL for each statement, and another thread may hold it for long: row by row,
    a busy program would write only a few hundred per second.

    Args:
        connection: The database.
        statement: `INSERT INTO table (columns)`.
        rows: The values.
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
            sql = _for_rows(statement, filled, size)
            connection.execute(sql, [*chain.from_iterable(rows[at : at + size])])
            at += size


@lru_cache(_KNOWN)
def _for_rows(statement: str, filled: tuple[bool, ...], rows: int) -> str:
    row = f"({', '.join('?' if one else 'NULL' for one in filled)})"
    return f"{statement} VALUES {', '.join([row] * rows)}"
