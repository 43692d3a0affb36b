"""The open database, replaced by a new one if it is damaged."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from multitap.store.database import Database, is_unreadable, open_database, renew
from multitap.store.rows import Row, insert
from multitap.store.troubles import Troubles

_T = TypeVar("_T")


class LiveDatabase:
    """Runs statements; used from one thread only.

    Args:
        directory: The folder of its file.
        troubles: Receives problems with the file.
        on_renewed: Called when a new file has taken the place of a damaged one.
    """

    def __init__(self, directory: Path, troubles: Troubles, on_renewed: Callable[[], None]) -> None:
        self._troubles = troubles
        self._on_renewed = on_renewed
        self._database = self._report(open_database(directory))

    @property
    def path(self) -> Path | None:
        """The file; None if the database is only in memory."""
        return self._database.path

    def close(self) -> None:
        """Close the file."""
        self._database.connection.close()

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """All rows that a query finds."""
        return self.use(lambda connection: connection.execute(statement, values).fetchall())

    def append(self, statement: str, rows: Sequence[Row], trim: str, *limits: float) -> None:
        """Insert rows, and delete the oldest ones beyond the limits."""

        def write(connection: sqlite3.Connection) -> None:
            insert(connection, statement, rows)
            connection.execute(trim, limits)

        self.write(write)

    def write(self, write: Callable[[sqlite3.Connection], object]) -> None:
        """Run `write` in one transaction."""
        self.use(lambda connection: _atomically(connection, write))

    def use(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `work`; if the file turns out to be damaged, run it again with a new one."""
        try:
            return work(self._database.connection)
        except sqlite3.DatabaseError as exc:
            if not is_unreadable(exc):
                raise
            # Once only: a second failure means that the disk is bad, not the file.
            self._database = self._report(renew(self._database, exc))
            self._on_renewed()
            return work(self._database.connection)

    def _report(self, database: Database) -> Database:
        self._troubles.lasting = database.trouble
        for warning in database.warnings:
            self._troubles.note(warning)
        return database


def _atomically(
    connection: sqlite3.Connection, write: Callable[[sqlite3.Connection], object]
) -> None:
    # takes the lock now: a transaction that reads first fails to upgrade without a wait
    connection.execute("BEGIN IMMEDIATE")
    try:
        write(connection)
        connection.execute("COMMIT")
    except BaseException:
        # after some errors SQLite has rolled back already
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
