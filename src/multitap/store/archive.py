"""All access to the database, from one thread."""

import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from multitap.store import (
    asking_servers,
    call_records,
    chosen_names,
    exchanges,
    log_records,
    start_outcomes,
    stored_catalogs,
)
from multitap.store.asking_servers import Asking
from multitap.store.audit_file import AuditBatch, AuditFile
from multitap.store.audit_records import AuditRecord, Author, bodies_of, system_user
from multitap.store.call_history import CallHistories, CallHistory
from multitap.store.call_records import CallRecord
from multitap.store.chosen_names import Choices, Pair
from multitap.store.exchanges import RecordedExchange
from multitap.store.live_database import LiveDatabase
from multitap.store.log_query import MAX_LIMIT, Page, RecordQuery, encodable
from multitap.store.log_records import LogRecord
from multitap.store.record_filter import EVERYTHING
from multitap.store.rows import Row
from multitap.store.start_outcomes import Outcomes
from multitap.store.stored_catalogs import CatalogKey, StoredCatalog
from multitap.store.troubles import Troubles

_Record = TypeVar("_Record")


class Archive:
    """Reads and writes the database, and replaces it if it is damaged."""

    def __init__(self, directory: Path, troubles: Troubles | None = None) -> None:
        self._digests: dict[CatalogKey, bytes] = {}
        # a new file in place of a damaged one has none of the old catalogs
        self._database = LiveDatabase(directory, troubles or Troubles(), self._forget_digests)
        self._audit = AuditFile(directory)
        self._histories = CallHistories()
        self.author = Author(system_user(), os.getpid())
        self.saved = self._catalogs()
        """The save time and encoded form of each catalog, as of now."""
        self.outcomes = self._outcomes()
        """Whether each server's last start succeeded, as of now."""
        self.asking = self._asking()
        """The servers that ask without naming the call, as of now."""
        self.choices: Choices = self._database.use(chosen_names.read)
        """The chosen names, as last written."""

    @property
    def path(self) -> Path | None:
        return self._database.path

    def close(self) -> None:
        self._audit.close()
        self._database.close()

    def read(self, query: RecordQuery[_Record]) -> Page[_Record]:
        return query.page(self._matching(query))

    def write_calls(self, records: Collection[CallRecord]) -> None:
        self._database.append(
            call_records.INSERT,
            [record.row() for record in records],
            call_records.TRIM,
            call_records.MAX_CALLS,
        )
        said = [
            (exchange, one.at)
            for one in records
            if (exchange := one.exchange) is not None and isinstance(exchange, RecordedExchange)
        ]
        if said:
            rows = [exchange.row(at) for exchange, at in said]
            oldest = time.time() - exchanges.MAX_AGE
            self._database.append(
                exchanges.INSERT, rows, exchanges.TRIM, oldest, exchanges.MAX_EXCHANGES
            )

    def read_history(self, span: float) -> CallHistory:
        return self._histories.read(span, self._database.rows)

    def read_exchange(self, exchange_id: str) -> RecordedExchange | None:
        rows = self._database.rows(exchanges.SELECT, (exchange_id,))
        return RecordedExchange(*rows[0]) if rows else None

    def write_audit(
        self,
        records: Iterable[AuditRecord | CallRecord],
        keep: int,
        batches: Sequence[AuditBatch] = (),
    ) -> None:
        try:
            self._audit.append(bodies_of(records, self.author), keep=keep, batches=batches)
        except (OSError, sqlite3.Error) as exc:
            # on any error, the entries are kept and tried again
            raise sqlite3.OperationalError(f"the audit log {self._audit.path}: {exc}") from exc

    def write_logs(self, records: Iterable[LogRecord]) -> None:
        self._database.append(
            log_records.INSERT,
            [record.row() for record in records],
            log_records.TRIM,
            log_records.MAX_RECORDS,
        )

    def write_catalogs(self, offers: Mapping[CatalogKey, StoredCatalog]) -> None:
        rows: list[tuple[str, str, float, bytes]] = []
        digests: dict[CatalogKey, bytes] = {}
        for (server, fingerprint), catalog in offers.items():
            key = (encodable(server), fingerprint)
            body = stored_catalogs.encode(msgspec.structs.replace(catalog, saved_at=0.0))
            digest = blake2b(body).digest()
            if self._digests.get(key) != digest:  # unchanged ones are not written again
                digests[key] = digest
                rows.append((*key, catalog.saved_at, body))
        if rows:
            self._database.write(
                lambda connection: connection.executemany(stored_catalogs.REPLACE, rows)
            )
        self._digests |= digests

    def write_outcomes(self, seen: Outcomes) -> None:
        at = time.time()
        rows = [(encodable(server), mark, at, is_up) for (server, mark), is_up in seen.items()]
        self._database.write(
            lambda connection: connection.executemany(start_outcomes.REPLACE, rows)
        )

    def write_asking(self, seen: Asking) -> None:
        at = time.time()
        rows = [(encodable(server), mark, at) for server, mark in seen]
        self._database.write(
            lambda connection: connection.executemany(asking_servers.REPLACE, rows)
        )

    def write_choices(
        self, chosen: Mapping[str, Mapping[Pair, str]], servers: Collection[str]
    ) -> bool:
        """Store chosen names; False if another process has stored different ones."""
        agreed: list[bool] = []

        def write(connection: sqlite3.Connection) -> None:
            agreed[:] = [chosen_names.add(connection, chosen, servers)]
            self.choices = chosen_names.read(connection)

        self._database.write(write)
        return agreed[0]

    def _forget_digests(self) -> None:
        self._digests.clear()

    def _catalogs(self) -> dict[CatalogKey, tuple[float, bytes]]:
        rows = self._database.rows(stored_catalogs.SELECT)
        return {(server, mark): (saved_at, body) for server, mark, saved_at, body in rows}

    def _outcomes(self) -> Outcomes:
        rows = self._database.rows(start_outcomes.SELECT)
        return {(server, mark): bool(is_up) for server, mark, is_up in rows}

    def _asking(self) -> Asking:
        return {(server, mark) for server, mark in self._database.rows(asking_servers.SELECT)}

    def _matching(self, query: RecordQuery[Any]) -> list[Row]:
        """The rows of one page and, if there are more, one of the next."""
        if query.filter is EVERYTHING:
            return self._database.rows(*query.select())
        return [*islice(self._filter(query), query.count + 1)]

    def _filter(self, query: RecordQuery[Any]) -> Iterator[Row]:
        # Page by page: a filter that matches little reads all records, but never keeps them all.
        step = replace(query, limit=MAX_LIMIT)
        while True:
            rows = self._database.rows(*step.select())
            yield from filter(step.passes, rows[:MAX_LIMIT])
            if len(rows) <= MAX_LIMIT:
                return
            step = replace(step, cursor=step.cursor_after(rows[MAX_LIMIT - 1]))
