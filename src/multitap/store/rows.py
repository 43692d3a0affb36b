"""Inserts many rows with few statements."""

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

Row = tuple[Any, ...]

_AT_ONCE = (512, 64, 8, 1)
"""Rows of one statement, which may have 32,766 values; few sizes, so that SQLite knows them all."""


def insert(connection: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
    """Insert rows, many with each statement.

    The interpreter is let go for every statement, and who has it meanwhile may keep it for long:
    row by row, a busy program would write a few hundred in a second.

    Args:
        connection: Where to.
        statement: `INSERT INTO table (columns)`.
        rows: The values.
    """
    at = 0
    for size in _AT_ONCE:
        row = f"({', '.join('?' * len(rows[0]))})" if rows else ""
        sql = f"{statement} VALUES {', '.join([row] * size)}"
        while len(rows) - at >= size:
            connection.execute(sql, [*chain.from_iterable(rows[at : at + size])])
            at += size
