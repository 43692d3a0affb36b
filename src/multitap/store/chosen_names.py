"""Remembers the names that were chosen when two servers wanted the same one."""

import sqlite3
from collections.abc import Collection, Mapping
from itertools import chain

from multitap.store.rows import insert

MAX_CHOICES = 50_000

TABLE = """
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
TRIM = "DELETE FROM choices WHERE id NOT IN (SELECT id FROM choices ORDER BY id DESC LIMIT ?)"
_SELECT = "SELECT kind, server, raw, name FROM choices ORDER BY id"
_REPLACE = "REPLACE INTO choices (kind, server, raw, name)"

Pair = tuple[str, str]
Choices = dict[str, dict[Pair, str]]
"""The name by server and the server's own name, for each kind of thing."""


def read(connection: sqlite3.Connection) -> Choices:
    """All chosen names, oldest first."""
    found: Choices = {}
    for kind, server, raw, name in connection.execute(_SELECT).fetchall():
        found.setdefault(kind, {})[server, raw] = name
    return found


def add(
    connection: sqlite3.Connection,
    choices: Mapping[str, Mapping[Pair, str]],
    servers: Collection[str],
) -> bool:
    """Store choices; False if another process has stored a different one first.

    Args:
        connection: In a transaction.
        choices: The chosen names.
        servers: The configured servers; names of others may be reused.
    """
    stored = read(connection)
    rows: list[tuple[str, str, str, str]] = []
    agreed = True
    for kind, chosen in choices.items():
        known = stored.get(kind, {})
        holders = {name: pair for pair, name in known.items()}
        for pair, name in chosen.items():
            if known.get(pair) == name or not _can_be_stored(*pair, name):
                continue
            holder = holders.get(name)
            # another process was first, and two gateways should show one name
            if pair in known or (holder is not None and holder[0] in servers):
                agreed = False
            else:
                rows.append((kind, *pair, name))
    insert(connection, _REPLACE, rows)
    return agreed


def _can_be_stored(*texts: str) -> bool:
    # a lone surrogate cannot be encoded; such names are chosen again in each run
    return not any("\ud800" <= char <= "\udfff" for char in chain.from_iterable(texts))
