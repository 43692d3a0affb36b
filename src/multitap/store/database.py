"""Opens the database file, and replaces one that cannot be used."""

import os
import sqlite3
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from multitap.records import dataclass
from multitap.store import (
    asking_servers,
    call_records,
    chosen_names,
    exchanges,
    log_records,
    start_outcomes,
    stored_catalogs,
)
from multitap.store.rows import Row, insert

FILE_NAME = "multitap.sqlite3"
VERSION = 2
_APPLICATION = 0x6D746170  # "mtap"
_BUSY = 2.0
# Bounds the loop if two processes keep replacing a damaged file; `_PAUSE` times this is less than
# `_BUSY`.
_ATTEMPTS = 50
_PAUSE = 0.02
_UNREADABLE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
# SQLite would replay the log of a damaged file into the new one.
_COMPANIONS = ("", "-wal", "-shm")
_TABLES = (
    *(call_records.TABLE, call_records.INDEX, log_records.TABLE, log_records.INDEX),
    exchanges.TABLE,
    *(stored_catalogs.TABLE, start_outcomes.TABLE, asking_servers.TABLE, chosen_names.TABLE),
)


@dataclass(frozen=True, slots=True)
class Database:
    """An open database."""

    connection: sqlite3.Connection
    path: Path | None
    """None if it is only in memory."""
    warnings: tuple[str, ...] = ()
    """What was done about unusable files."""
    trouble: str | None = None
    """Why it is only in memory."""


class _ForeignDatabase(Exception):
    def __init__(self) -> None:
        super().__init__("it belongs to another program")


class _NewerDatabase(Exception):
    def __init__(self) -> None:
        super().__init__("it was written by a newer version")


def open_database(directory: Path) -> Database:
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
                return Database(_connect(path), path, tuple(warnings))
            except (_ForeignDatabase, sqlite3.Error) as exc:
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
    return Database(_prepare(memory), None, tuple(warnings), trouble)


def renew(database: Database, problem: BaseException) -> Database:
    """A new database in place of a damaged one."""
    database.connection.close()
    if database.path is None:
        raise problem
    moved = _set_aside(database.path, database.path.stat().st_ino, problem)
    fresh = open_database(database.path.parent)
    return replace(fresh, warnings=(*moved, *fresh.warnings))


def is_unreadable(exc: BaseException) -> bool:
    """Whether the file is damaged or not ours, as opposed to busy, full or read-only."""
    return isinstance(exc, _ForeignDatabase) or _code(exc) in _UNREADABLE


def _code(exc: BaseException) -> int:
    code: int = getattr(exc, "sqlite_errorcode", 0)
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
        for suffix in reversed(_COMPANIONS):
            with suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
        return [f"{path} cannot be used ({problem}); it was moved to {aside}"]
    return []


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
    try:
        _check_owner(connection)
        return _prepare(connection)
    except BaseException:
        connection.close()
        raise


def _check_owner(connection: sqlite3.Connection) -> None:
    """Check that a file is ours before anything is written to it."""
    if not _number(connection, "SELECT count(*) FROM sqlite_master"):
        return
    if _number(connection, "PRAGMA application_id") != _APPLICATION:
        raise _ForeignDatabase
    if _number(connection, "PRAGMA user_version") > VERSION:
        raise _NewerDatabase


def _number(connection: sqlite3.Connection, statement: str) -> int:
    (value,) = connection.execute(statement).fetchone()
    return int(value)


def _prepare(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # a power failure may lose the last calls
    # One transaction: of two processes that start together, neither sees half of the tables.
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    for statement in _TABLES:
        connection.execute(statement)
    present = {name for _, name, *_ in connection.execute("PRAGMA table_info(calls)")}
    for column in call_records.ADDED:
        if column.partition(" ")[0] not in present:
            connection.execute(f"ALTER TABLE calls ADD COLUMN {column}")
    if _number(connection, "SELECT count(*) FROM sqlite_master WHERE name = 'fresh_calls'"):
        _take_over_batches(connection)
    connection.execute(call_records.TRIM, (call_records.MAX_CALLS,))
    connection.execute(log_records.TRIM, (log_records.MAX_RECORDS,))
    connection.execute(exchanges.TRIM, (time.time() - exchanges.MAX_AGE, exchanges.MAX_EXCHANGES))
    connection.execute(stored_catalogs.TRIM, (stored_catalogs.MAX_CATALOGS,))
    connection.execute(start_outcomes.TRIM, (start_outcomes.MAX_OUTCOMES,))
    connection.execute(asking_servers.TRIM, (asking_servers.MAX_ASKING,))
    connection.execute(chosen_names.TRIM, (chosen_names.MAX_CHOICES,))
    connection.execute("COMMIT")
    return connection


def _take_over_batches(connection: sqlite3.Connection) -> None:
    """Move the calls that an earlier version stored in batches.

    The emptied table stays: a gateway of that version may be running, and goes on writing to it.
    """
    for (body,) in connection.execute("SELECT body FROM fresh_calls ORDER BY id").fetchall():
        with suppress(msgspec.DecodeError):  # that batch is lost alone
            batch = msgspec.msgpack.decode(body, type=list[Row])
            insert(connection, call_records.INSERT, [*map(call_records.complete_row, batch)])
    connection.execute("DELETE FROM fresh_calls")
