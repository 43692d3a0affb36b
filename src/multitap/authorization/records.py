"""Grants at rest, in one file for all processes of a machine."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from anyio import to_thread

from multitap.errors import MultitapError
from multitap.trust.private_file import PrivateDatabase
from multitap.trust.vault import private_folder

FILE_NAME = "sign-ins.sqlite3"
_TABLE = """
CREATE TABLE IF NOT EXISTS records (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, expires REAL NOT NULL
) WITHOUT ROWID
"""
_FOREVER = 1e18  # seconds since 1970: SQLite compares it like any other moment


class RecordsUnavailable(MultitapError):
    """The file cannot be used."""


class SignInRecords(Protocol):
    """Small values by key; in a cluster, those of its coordinator."""

    async def read(self, key: str) -> bytes | None: ...

    async def swap(
        self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None
    ) -> bool:
        """Replace a value if it equals `expected`, None if missing; returns whether it did."""
        ...

    async def delete(self, key: str) -> bool: ...


class FileRecords:
    """Values in a SQLite file that only its owner can read; see `SignInRecords`."""

    def __init__(
        self, folder: Path | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = (folder or private_folder()) / FILE_NAME
        self._database = PrivateDatabase(self.path, RecordsUnavailable, (_TABLE,))
        self._clock = clock

    async def read(self, key: str) -> bytes | None:
        def find(opened: sqlite3.Connection) -> bytes | None:
            return self._find(opened, key)

        return await to_thread.run_sync(self._database.use, find)

    async def swap(
        self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None
    ) -> bool:
        expires = _FOREVER if ttl is None else self._clock() + ttl

        def replace(opened: sqlite3.Connection) -> bool:
            # within one transaction: other processes use the same file
            if self._find(opened, key) != expected:
                return False
            # expired ones go with each write, so that the file does not grow
            opened.execute("DELETE FROM records WHERE expires <= ?", (self._clock(),))
            opened.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (key, value, expires))
            return True

        return await to_thread.run_sync(self._database.use, replace)

    async def delete(self, key: str) -> bool:
        def remove(opened: sqlite3.Connection) -> bool:
            return opened.execute("DELETE FROM records WHERE key = ?", (key,)).rowcount > 0

        return await to_thread.run_sync(self._database.use, remove)

    def _find(self, opened: sqlite3.Connection, key: str) -> bytes | None:
        query = "SELECT value FROM records WHERE key = ? AND expires > ?"
        row = opened.execute(query, (key, self._clock())).fetchone()
        return None if row is None else row[0]
