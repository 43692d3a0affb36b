"""Calls as they come in, many in one row: most make room for others before anybody looks."""

import sqlite3
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from multitap.store import calls
from multitap.store.calls import CallRecord
from multitap.store.rows import Row, insert

MOST_BATCHES = 1000
"""Rows of the table, after which it is cleared into that of the calls, looked at or not."""

TABLE = """
CREATE TABLE IF NOT EXISTS fresh_calls (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    size INTEGER NOT NULL,
    body BLOB NOT NULL
)
"""
_INSERT = "INSERT INTO fresh_calls (size, body) VALUES (?, ?)"
_SELECT = "SELECT body FROM fresh_calls ORDER BY id"
_COUNT = "SELECT count(*) FROM fresh_calls"
_CLEAR = "DELETE FROM fresh_calls"
_TRIM = """
DELETE FROM fresh_calls WHERE id IN (
    SELECT id FROM (SELECT id, sum(size) OVER (ORDER BY id DESC) - size AS newer FROM fresh_calls)
    WHERE newer >= ?
)
"""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Row]).decode


def add(connection: sqlite3.Connection, records: Iterable[CallRecord]) -> None:
    """Write calls, the cheapest way."""
    rows = [record.row() for record in records]
    connection.execute(_INSERT, (len(rows), _encode(rows)))
    connection.execute(_TRIM, (calls.MAX_CALLS,))
    (batches,) = connection.execute(_COUNT).fetchone()
    if batches > MOST_BATCHES:
        sort_in(connection, found(connection))


def found(connection: sqlite3.Connection) -> list[Row]:
    """The calls that are still here, oldest first."""
    rows: list[Row] = []
    for (body,) in connection.execute(_SELECT):
        with suppress(msgspec.DecodeError):  # somebody else's; they are lost
            rows += map(_whole, _decode(body))
    return rows


def _whole(row: Row) -> Row:
    """A row of an earlier version, which had fewer columns, as one of now."""
    return (*row, *(None,) * (calls.COLUMNS - len(row)))


def sort_in(connection: sqlite3.Connection, rows: list[Row]) -> None:
    """Put calls where they can be searched."""
    insert(connection, calls.INSERT, rows[-calls.MAX_CALLS :])
    connection.execute(_CLEAR)
    connection.execute(calls.TRIM, (calls.MAX_CALLS,))
