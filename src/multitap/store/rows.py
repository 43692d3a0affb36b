"""Inserts many rows with few statements."""

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

Row = tuple[Any, ...]

_AT_ONCE = 500
"""Rows of one statement; it may have 32,766 values."""


def insert(connection: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
    """Insert rows, many with each statement.

    The interpreter is let go for every statement, and who has it meanwhile may keep it for long:
    row by row, a busy program would write a few hundred in a second.

    Args:
        connection: Where to.
        statement: `INSERT INTO table (columns)`.
        rows: The values.
    """
    for some in (rows[at : at + _AT_ONCE] for at in range(0, len(rows), _AT_ONCE)):
        row = f"({', '.join('?' * len(some[0]))})"
        values = ", ".join([row] * len(some))
        connection.execute(f"{statement} VALUES {values}", [*chain.from_iterable(some)])
