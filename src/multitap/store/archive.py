"""Everything done to the database; used from one thread only."""

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import msgspec

from multitap.store import asking, catalogs, choices, fresh, logs, outcomes
from multitap.store.asking import Asking
from multitap.store.calls import CallQuery, CallRecord, Page
from multitap.store.catalogs import CatalogKey, StoredCatalog
from multitap.store.choices import Choices, Pair
from multitap.store.database import Database, is_unreadable, open_database, renewed
from multitap.store.logs import HappeningQuery, Happenings, LogRecord
from multitap.store.outcomes import Outcomes
from multitap.store.query import encodable
from multitap.store.rows import Row, insert
from multitap.store.troubles import Troubles

_T = TypeVar("_T")


class Archive:
    """Reads and writes the database, and replaces it once it is found to be damaged."""

    def __init__(self, directory: Path, troubles: Troubles | None = None) -> None:
        self._troubles = troubles or Troubles()
        self._database = self._reported(open_database(directory))
        self._digests: dict[CatalogKey, bytes] = {}
        self.saved = self._catalogs()
        """When each catalog was saved, and its encoded form, as of now."""
        self.outcomes = self._outcomes()
        """Whether each server's last start succeeded, as of now."""
        self.asking = self._asking()
        """Which servers ask without saying for which call, as of now."""
        self.choices: Choices = self._try(choices.read)
        """Which names were given, as of when they were last written."""

    @property
    def path(self) -> Path | None:
        return self._database.path

    def close(self) -> None:
        self._database.connection.close()

    def read_calls(self, query: CallQuery) -> Page:
        statement, values = query.select()
        self._sort_in_calls()
        rows = self._try(lambda connection: connection.execute(statement, values).fetchall())
        return query.page(rows)

    def write_calls(self, records: Iterable[CallRecord]) -> None:
        self._try(lambda connection: _atomically(connection, lambda it: fresh.add(it, records)))

    def read_logs(self, query: HappeningQuery) -> Happenings:
        statement, values = query.select()
        self._sort_in_calls()
        rows = self._try(lambda connection: connection.execute(statement, values).fetchall())
        return query.page(rows)

    def write_logs(self, records: Iterable[LogRecord]) -> None:
        rows = [record.row() for record in records]

        def write(connection: sqlite3.Connection) -> None:
            insert(connection, logs.INSERT, rows)
            connection.execute(logs.TRIM, (logs.MAX_RECORDS,))

        self._try(lambda connection: _atomically(connection, write))

    def write_catalogs(self, offers: Mapping[CatalogKey, StoredCatalog]) -> None:
        rows: list[tuple[str, str, float, bytes]] = []
        digests: dict[CatalogKey, bytes] = {}
        for (server, fingerprint), catalog in offers.items():
            key = (encodable(server), fingerprint)
            body = catalogs.encode(msgspec.structs.replace(catalog, saved_at=0.0))
            digest = blake2b(body).digest()
            if self._digests.get(key) != digest:  # a server that comes back offers the same again
                digests[key] = digest
                rows.append((*key, catalog.saved_at, body))
        if rows:
            self._try(
                lambda connection: _atomically(
                    connection, lambda it: it.executemany(catalogs.REPLACE, rows)
                )
            )
        self._digests |= digests

    def write_outcomes(self, seen: Outcomes) -> None:
        at = time.time()
        rows = [(encodable(server), mark, at, is_up) for (server, mark), is_up in seen.items()]
        self._try(
            lambda connection: _atomically(
                connection, lambda it: it.executemany(outcomes.REPLACE, rows)
            )
        )

    def write_asking(self, seen: Asking) -> None:
        at = time.time()
        rows = [(encodable(server), mark, at) for server, mark in seen]
        self._try(
            lambda connection: _atomically(
                connection, lambda it: it.executemany(asking.REPLACE, rows)
            )
        )

    def write_choices(
        self, chosen: Mapping[str, Mapping[Pair, str]], servers: Collection[str]
    ) -> bool:
        """Remember names; False where `choices` says something else."""
        agreed: list[bool] = []

        def write(connection: sqlite3.Connection) -> None:
            agreed[:] = [choices.add(connection, chosen, servers)]
            self.choices = choices.read(connection)

        self._try(lambda connection: _atomically(connection, write))
        return agreed[0]

    def _sort_in_calls(self) -> None:
        kept: list[Row] = []

        def sort_in(connection: sqlite3.Connection) -> None:
            kept[:] = fresh.found(connection) or kept  # a damaged file is replaced by an empty one
            if kept:
                fresh.sort_in(connection, kept)

        self._try(lambda connection: _atomically(connection, sort_in))

    def _catalogs(self) -> dict[CatalogKey, tuple[float, bytes]]:
        rows = self._try(lambda connection: connection.execute(catalogs.SELECT).fetchall())
        return {(server, mark): (saved_at, body) for server, mark, saved_at, body in rows}

    def _outcomes(self) -> Outcomes:
        rows = self._try(lambda connection: connection.execute(outcomes.SELECT).fetchall())
        return {(server, mark): bool(is_up) for server, mark, is_up in rows}

    def _asking(self) -> Asking:
        rows = self._try(lambda connection: connection.execute(asking.SELECT).fetchall())
        return {(server, mark) for server, mark in rows}

    def _try(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            return work(self._database.connection)
        except sqlite3.DatabaseError as exc:
            if not is_unreadable(exc):
                raise
            self._database = self._reported(renewed(self._database, exc))
            self._digests.clear()
            return work(self._database.connection)

    def _reported(self, database: Database) -> Database:
        self._troubles.lasting = database.trouble
        for warning in database.warnings:
            self._troubles.happened(warning)
        return database


def _atomically(
    connection: sqlite3.Connection, write: Callable[[sqlite3.Connection], object]
) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        write(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
