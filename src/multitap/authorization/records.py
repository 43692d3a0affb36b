"""Grants at rest, in one file for all processes of a machine."""

import os
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from anyio import to_thread

from multitap.errors import MultitapError
from multitap.files import file_stamp
from multitap.trust.private_file import PrivateFile
from multitap.trust.vault import private_folder

FILE_NAME = "sign-ins.sqlite3"
_BUSY = 5.0  # seconds to wait for another process
_TABLE = """
CREATE TABLE IF NOT EXISTS records (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, expires REAL NOT NULL
) WITHOUT ROWID
"""
_FOREVER = 1e18
_T = TypeVar("_T")


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
    """Values in a SQLite file that only its owner can read; see `SignInRecords`.

    Args:
        folder: The folder of the file; by default, the user's own.
        clock: Seconds since 1970.
    """

    def __init__(
        self, folder: Path | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = (folder or private_folder()) / FILE_NAME
        self._private = PrivateFile(self.path, RecordsUnavailable)
        self._clock = clock

    async def read(self, key: str) -> bytes | None:
        def find(opened: sqlite3.Connection) -> bytes | None:
            return self._find(opened, key)

        return await to_thread.run_sync(self._use, find)

    async def swap(
        self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None
    ) -> bool:
        expires = _FOREVER if ttl is None else self._clock() + ttl

        def replace(opened: sqlite3.Connection) -> bool:
            if self._find(opened, key) != expected:
                return False
            # expired ones go with each write, so that the file does not grow
            opened.execute("DELETE FROM records WHERE expires <= ?", (self._clock(),))
            opened.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (key, value, expires))
            return True

        return await to_thread.run_sync(self._use, replace)

    async def delete(self, key: str) -> bool:
        def remove(opened: sqlite3.Connection) -> bool:
            return opened.execute("DELETE FROM records WHERE key = ?", (key,)).rowcount > 0

        return await to_thread.run_sync(self._use, remove)

    def _find(self, opened: sqlite3.Connection, key: str) -> bytes | None:
        query = "SELECT value FROM records WHERE key = ? AND expires > ?"
        row = opened.execute(query, (key, self._clock())).fetchone()
        return None if row is None else row[0]

    def _use(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            with self._connected() as opened:
                opened.execute("BEGIN IMMEDIATE")
                result = work(opened)
                opened.execute("COMMIT")
                return result
        except sqlite3.Error as exc:
            raise RecordsUnavailable(f"{self.path} cannot be used: {exc}") from None

    @contextmanager
    def _connected(self) -> Generator[sqlite3.Connection]:
        # opened for each use, which is rare, so that any thread and process may use it
        if file_stamp(self.path) is None:
            os.close(self._private.open_lock(self.path))  # creates it, for its owner only
        with closing(sqlite3.connect(self.path, timeout=_BUSY, isolation_level=None)) as opened:
            opened.execute(_TABLE)
            yield opened
