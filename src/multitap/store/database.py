"""The database file: opened, replaced if it is damaged, read and written from one thread."""

import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from multitap.principal import system_user
from multitap.store import tables, task_records
from multitap.store.audit_log import (
    AuditBatch,
    AuditFile,
    AuditRecord,
    Author,
    bodies_of,
)
from multitap.store.queries import (
    EVERYTHING,
    MAX_LIMIT,
    CallHistories,
    CallHistory,
    Page,
    RecordQuery,
)
from multitap.store.tables import (
    Asking,
    CallRecord,
    CatalogKey,
    Choices,
    LogRecord,
    Outcomes,
    Pair,
    RecordedExchange,
    Row,
    StoredCatalog,
    encodable,
    insert,
)
from multitap.store.task_records import TaskRecord

FILE_NAME = "multitap.sqlite3"
VERSION = 4
"""The version of the tables; a file of an older one is upgraded, or moved aside."""
RECENT = 600.0
"""Seconds for which a past problem is still reported."""

Clock = Callable[[], float]
_APPLICATION = 0x6D746170  # "mtap"
_BUSY = 2.0
# Bounds the loop if two processes keep replacing a damaged file; `_PAUSE` times this is less than
# `_BUSY`.
_ATTEMPTS = 50
_PAUSE = 0.02
_UNREADABLE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
# SQLite would replay the log of a damaged file into the new one.
_COMPANIONS = ("", "-wal", "-shm")

_T = TypeVar("_T")
_Record = TypeVar("_Record")


class Troubles:
    """Problems in words; past ones expire.

    Written in the store's thread and read in the loop's: every step is one atomic dict operation.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.lasting: str | None = None
        """A problem that lasts as long as the store is open."""
        self._clock = clock
        self._past: dict[str, tuple[str, float]] = {}
        self._present: dict[str, str] = {}

    def note(self, text: str, *, kind: str | None = None) -> None:
        """Add a past problem; it replaces an earlier one of the same kind."""
        self._past[kind or text] = (text, self._clock())

    def begin(self, work: str, text: str) -> None:
        """Add the reason why a kind of work cannot be done."""
        self._present[work] = text

    def end(self, work: str) -> None:
        """Remove the reason: this kind of work can be done again."""
        self._present.pop(work, None)

    def is_present(self, work: str) -> bool:
        """Whether this kind of work cannot be done now."""
        return work in self._present

    def reasons(self) -> tuple[str, ...]:
        """All current and recent problems."""
        since = self._clock() - RECENT
        past = [text for text, at in tuple(self._past.values()) if at >= since]
        reasons = (self.lasting, *past, *tuple(self._present.values()))
        return tuple(dict.fromkeys(text for text in reasons if text is not None))


class DatabaseFile(msgspec.Struct, frozen=True):
    """An open database."""

    connection: sqlite3.Connection
    path: Path | None
    """None if it is only in memory."""
    warnings: tuple[str, ...] = ()
    """What was done about unusable files."""
    trouble: str | None = None
    """Why it is only in memory."""


class _UnusableDatabase(Exception):
    """The file is not ours, or of an older version; it is moved aside."""


class _NewerDatabase(Exception):
    """The file is of a newer version, which may be running; it is left alone."""


class Archive:
    """Reads and writes the database, and replaces it if it is damaged; used from one thread."""

    def __init__(self, directory: Path, troubles: Troubles | None = None) -> None:
        self._troubles = troubles or Troubles()
        self._digests: dict[CatalogKey, bytes] = {}
        self._file = self._report(open_database(directory))
        self._directory = directory
        # made when they are first needed
        self._audit: AuditFile | None = None
        self._histories: CallHistories | None = None
        self.saved: dict[CatalogKey, tuple[float, bytes]] = {
            (server, mark): (saved_at, body)
            for server, mark, saved_at, body in self._rows(tables.SELECT_CATALOGS)
        }
        """The save time and encoded form of each catalog, as of now."""
        self.outcomes: Outcomes = {
            (server, mark): bool(is_up) for server, mark, is_up in self._rows(tables.SELECT_STARTS)
        }
        """Whether each server's last start succeeded, as of now."""
        self.asking: Asking = {(server, mark) for server, mark in self._rows(tables.SELECT_ASKING)}
        """The servers that ask without naming the call, as of now."""
        self.choices = self._use(read_choices)
        """The chosen names, as last written."""

    @property
    def path(self) -> Path | None:
        """The file; None if the database is only in memory."""
        return self._file.path

    @cached_property
    def author(self) -> Author:
        """Who writes the audit log."""
        return Author(system_user(), os.getpid())

    def close(self) -> None:
        if self._audit is not None:
            self._audit.close()
        self._file.connection.close()

    def read(self, query: RecordQuery[_Record]) -> Page[_Record]:
        return query.page(self._matching(query))

    def read_history(self, span: float) -> CallHistory:
        self._histories = self._histories or CallHistories()
        return self._histories.read(span, self._rows)

    def read_exchange(self, exchange_id: str) -> RecordedExchange | None:
        rows = self._rows(tables.SELECT_EXCHANGE, (exchange_id,))
        return RecordedExchange(*rows[0]) if rows else None

    def write_calls(self, records: Collection[CallRecord]) -> None:
        rows = tables.call_rows(records)
        exchanges = [
            exchange.row(record.at)
            for record in records
            if isinstance(exchange := record.exchange, RecordedExchange)
        ]

        def write(connection: sqlite3.Connection) -> None:
            insert(connection, tables.INSERT_CALLS, rows)
            connection.execute(tables.TRIM_CALLS, (tables.MAX_CALLS,))
            if exchanges:
                insert(connection, tables.INSERT_EXCHANGES, exchanges)
                _trim_exchanges(connection)

        self._write(write)

    def write_logs(self, records: Iterable[LogRecord]) -> None:
        rows = [record.row() for record in records]

        def write(connection: sqlite3.Connection) -> None:
            insert(connection, tables.INSERT_LOG, rows)
            connection.execute(tables.TRIM_LOG, (tables.MAX_RECORDS,))

        self._write(write)

    def write_task(self, record: TaskRecord) -> None:
        row = (record.id, record.created, record.until, task_records.encode_task(record))

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(task_records.REPLACE_TASK, row)
            connection.execute(task_records.TRIM_TASKS, (time.time(), task_records.MOST_TASKS))

        self._write(write)

    def read_task(self, task_id: str) -> TaskRecord | None:
        rows = self._rows(task_records.SELECT_TASK, (task_id,))
        return task_records.decode_task(rows[0][0]) if rows else None

    def read_tasks(self) -> list[TaskRecord]:
        rows = self._rows(task_records.SELECT_TASKS, (time.time(), task_records.MOST_TASKS))
        return [task_records.decode_task(body) for (body,) in rows]

    def write_audit(
        self,
        records: Iterable[AuditRecord | CallRecord],
        keep: int,
        batches: Sequence[AuditBatch] = (),
    ) -> None:
        audit = self._audit = self._audit or AuditFile(self._directory)
        try:
            audit.append(bodies_of(records, self.author), keep=keep, batches=batches)
        except (OSError, sqlite3.Error) as exc:
            # on any error, the entries are kept and tried again
            raise sqlite3.OperationalError(f"the audit log {audit.path}: {exc}") from exc

    def write_catalogs(self, offers: Mapping[CatalogKey, StoredCatalog]) -> None:
        rows: list[Row] = []
        digests: dict[CatalogKey, bytes] = {}
        for (server, mark), catalog in offers.items():
            key = (encodable(server), mark)
            body = tables.encode_catalog(msgspec.structs.replace(catalog, saved_at=0.0))
            digest = blake2b(body).digest()
            if self._digests.get(key) != digest:  # unchanged ones are not written again
                digests[key] = digest
                rows.append((*key, catalog.saved_at, body))
        self._replace(tables.REPLACE_CATALOGS, rows)
        self._digests |= digests

    def write_outcomes(self, outcomes: Outcomes) -> None:
        now = time.time()
        rows = [(encodable(server), mark, now, is_up) for (server, mark), is_up in outcomes.items()]
        self._replace(tables.REPLACE_STARTS, rows)

    def write_asking(self, servers: Asking) -> None:
        now = time.time()
        rows = [(encodable(server), mark, now) for server, mark in servers]
        self._replace(tables.REPLACE_ASKING, rows)

    def write_choices(
        self, choices: Mapping[str, Mapping[Pair, str]], servers: Collection[str]
    ) -> bool:
        """Store chosen names; False if another process has stored different ones."""
        agreed: list[bool] = []

        def write(connection: sqlite3.Connection) -> None:
            agreed[:] = [_add_choices(connection, choices, servers)]
            self.choices = read_choices(connection)

        self._write(write)
        return agreed[0]

    def _matching(self, query: RecordQuery[Any]) -> list[Row]:
        """The rows of one page and, if there are more, one of the next."""
        if query.filter is EVERYTHING:
            return self._rows(*query.select())
        return [*islice(self._filter(query), query.count + 1)]

    def _filter(self, query: RecordQuery[Any]) -> Iterator[Row]:
        # Page by page: a filter that matches little reads all records, but never keeps them all.
        step = msgspec.structs.replace(query, limit=MAX_LIMIT)
        while True:
            rows = self._rows(*step.select())
            yield from filter(step.passes, rows[:MAX_LIMIT])
            if len(rows) <= MAX_LIMIT:
                return
            cursor = step.cursor_after(rows[MAX_LIMIT - 1])
            step = msgspec.structs.replace(step, cursor=cursor)

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        return self._use(lambda connection: connection.execute(statement, values).fetchall())

    def _replace(self, statement: str, rows: Sequence[Row]) -> None:
        if rows:
            self._write(lambda connection: connection.executemany(statement, rows))

    def _write(self, write: Callable[[sqlite3.Connection], object]) -> None:
        """Run `write` in one transaction."""
        self._use(lambda connection: _atomically(connection, write))

    def _use(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `work`; if the file turns out to be damaged, run it again with a new one."""
        try:
            return work(self._file.connection)
        except sqlite3.DatabaseError as exc:
            if not is_unreadable(exc):
                raise
            # Once only: a second failure means that the disk is bad, not the file.
            self._file = self._report(renew(self._file, exc))
            self._digests.clear()  # the new file has none of the catalogs
            return work(self._file.connection)

    def _report(self, file: DatabaseFile) -> DatabaseFile:
        self._troubles.lasting = file.trouble
        for warning in file.warnings:
            self._troubles.note(warning)
        return file


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


def _trim_exchanges(connection: sqlite3.Connection) -> None:
    oldest = time.time() - tables.MAX_EXCHANGE_AGE
    connection.execute(tables.TRIM_EXCHANGES, (oldest, tables.MAX_EXCHANGES))


def read_choices(connection: sqlite3.Connection) -> Choices:
    """All chosen names, oldest first."""
    choices: Choices = {}
    for kind, server, raw, name in connection.execute(tables.SELECT_CHOICES).fetchall():
        choices.setdefault(kind, {})[server, raw] = name
    return choices


def _add_choices(
    connection: sqlite3.Connection,
    choices: Mapping[str, Mapping[Pair, str]],
    servers: Collection[str],
) -> bool:
    """Store choices; False if another process has stored a different one first.

    `servers` are the configured ones: names of others may be reused.
    """
    stored = read_choices(connection)
    rows: list[Row] = []
    agreed = True
    for kind, names in choices.items():
        earlier = stored.get(kind, {})
        holders = {name: pair for pair, name in earlier.items()}
        for pair, name in names.items():
            if earlier.get(pair) == name or not _can_be_stored(*pair, name):
                continue
            holder = holders.get(name)
            # another process was first, and two gateways should show one name
            if pair in earlier or (holder is not None and holder[0] in servers):
                agreed = False
            else:
                rows.append((kind, *pair, name))
    insert(connection, tables.REPLACE_CHOICES, rows)
    return agreed


def _can_be_stored(*texts: str) -> bool:
    # a lone surrogate cannot be encoded; such names are chosen again in each run
    return not any("\ud800" <= char <= "\udfff" for char in chain.from_iterable(texts))


def open_database(directory: Path) -> DatabaseFile:
    """The database in a folder; if it cannot be opened, one in memory."""
    path = directory / FILE_NAME
    warnings: list[str] = []
    problem: BaseException | None = None
    deadline = time.monotonic() + _BUSY
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(_ATTEMPTS):
            # Before SQLite opens it: it would create the file with the permissions of the umask.
            _make_private(path)
            # Taken before the file is opened: only the one that failed may be moved aside.
            inode = path.stat().st_ino
            try:
                return DatabaseFile(_connect(path), path, tuple(warnings))
            except (_UnusableDatabase, sqlite3.Error) as exc:
                problem = exc
                if is_unreadable(exc):
                    warnings += _set_aside(path, inode, exc)
                elif _code(exc) == sqlite3.SQLITE_BUSY and time.monotonic() < deadline:
                    time.sleep(_PAUSE)  # SQLite does not wait for locks when it turns on WAL mode
                else:
                    raise
    except (OSError, sqlite3.Error, _NewerDatabase) as exc:
        problem = exc
    trouble = f"{path}: {problem}; nothing will be remembered after this run"
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    return DatabaseFile(_prepare(memory), None, tuple(warnings), trouble)


def renew(database: DatabaseFile, problem: BaseException) -> DatabaseFile:
    """A new database in place of a damaged one."""
    database.connection.close()
    if database.path is None:
        raise problem
    moved = _set_aside(database.path, database.path.stat().st_ino, problem)
    fresh = open_database(database.path.parent)
    return msgspec.structs.replace(fresh, warnings=(*moved, *fresh.warnings))


def is_unreadable(exc: BaseException) -> bool:
    """Whether the file is damaged or not ours, as opposed to busy, full or read-only."""
    return isinstance(exc, _UnusableDatabase) or _code(exc) in _UNREADABLE


def _code(exc: BaseException) -> int:
    code: int = getattr(exc, "sqlite_errorcode", 0)
    # the lowest byte is the kind of error, the others only say more about it
    return code & 0xFF


def _make_private(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        path.chmod(0o600)  # closing it here would drop the locks that this process holds on it


def _set_aside(path: Path, inode: int, problem: BaseException) -> list[str]:
    """Move the file out of the way, unless another process was first."""
    with suppress(FileNotFoundError):
        # another process has already replaced it
        if path.stat().st_ino != inode:
            return []
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        aside = path.with_name(f"{path.name}.unusable-{stamp}-{time.monotonic_ns() % 1_000_000}")
        # the database last: a new one must not find the log of the old one beside it
        for suffix in reversed(_COMPANIONS):
            with suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
        return [f"{path} cannot be used ({problem}); it was moved to {aside}"]
    return []


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
    try:
        _check_version(connection)
        return _prepare(connection)
    except BaseException:
        connection.close()
        raise


def _check_version(connection: sqlite3.Connection) -> None:
    """Check that a file is ours, and of this version, before anything is written to it."""
    if not _number(connection, "SELECT count(*) FROM sqlite_master"):
        return
    if _number(connection, "PRAGMA application_id") != _APPLICATION:
        raise _UnusableDatabase("it belongs to another program")
    version = _number(connection, "PRAGMA user_version")
    if version > VERSION:
        raise _NewerDatabase("it was written by a newer version")
    if version < VERSION and version not in tables.UPGRADES:
        raise _UnusableDatabase("it was written by an older version")


def _number(connection: sqlite3.Connection, statement: str) -> int:
    (value,) = connection.execute(statement).fetchone()
    return int(value)


def _prepare(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # a power failure may lose the last calls
    # One transaction: of two processes that start together, neither sees half of the tables.
    connection.execute("BEGIN IMMEDIATE")
    # read again: another process may have upgraded it meanwhile
    before = _number(connection, "PRAGMA user_version") or VERSION  # 0: it is new
    for version in range(before, VERSION):
        for statement in tables.UPGRADES[version]:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    for statement in tables.CREATE_ALL:
        connection.execute(statement)
    for statement, limit in (
        (tables.TRIM_CALLS, tables.MAX_CALLS),
        (tables.TRIM_LOG, tables.MAX_RECORDS),
        (tables.TRIM_CATALOGS, tables.MAX_CATALOGS),
        (tables.TRIM_STARTS, tables.MAX_OUTCOMES),
        (tables.TRIM_ASKING, tables.MAX_ASKING),
        (tables.TRIM_CHOICES, tables.MAX_CHOICES),
    ):
        connection.execute(statement, (limit,))
    _trim_exchanges(connection)
    connection.execute("COMMIT")
    return connection
