"""The audit log: who did what, when, and who decided; a hash chain that reveals every change.

Each row has the number of its entry and a hash over this number, its text and the hash before it.
The last number and hash are kept in a second file, so that a truncated log is noticed. Entries that
arrive in large numbers are written in blocks: many lines, one row, one hash, and the number of the
last of them. Several processes append to one log: the writer holds SQLite's lock from reading the
last entry to adding the next.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import msgspec

from multitap.files import file_stamp
from multitap.principal import Principal
from multitap.store.tables import CallRecord, Row, encodable, insert

if TYPE_CHECKING:
    # imported where a file is opened: most commands write no entries
    import sqlite3

FILE_NAME = "audit.sqlite3"
HEAD_NAME = "audit.head"
ROTATED, LOST = "audit.rotated", "audit.lost"
"""Kinds of entries that the log writes itself: old entries were dropped, or some are missing."""

_GENESIS = "0" * 64
# Several gateways append to the same file; a transaction takes milliseconds.
_BUSY = 2.0
_PAUSE = 0.001
_APPLICATION = 0x6D746175  # "mtau"
_SLACK = 10
"""The fraction (1/10) by which the limit may be exceeded, so that dropping is rare."""
_MOST_PROBLEMS = 100
_BLOCK = 128
"""Entries per row at most: a row and a hash cost more than an entry."""
_TABLE = """
CREATE TABLE IF NOT EXISTS audit (seq INTEGER PRIMARY KEY, body TEXT NOT NULL, hash TEXT NOT NULL)
"""
# Against accidents and simple tampering. Anyone who can write the file can drop them; the chain of
# hashes is for that.
_TRIGGERS = {
    f"audit_refuses_{action.lower()}": f"""
    CREATE TRIGGER IF NOT EXISTS audit_refuses_{action.lower()} BEFORE {action} ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
    """
    for action in ("UPDATE", "DELETE")
}
_LAST = "SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1"
_FIRST = "SELECT seq FROM audit ORDER BY seq LIMIT 1"
_UP_TO = "SELECT seq, hash FROM audit WHERE seq <= ? ORDER BY seq DESC LIMIT 1"
_INSERT = "INSERT INTO audit (seq, body, hash)"
_BATCHES = "CREATE TABLE IF NOT EXISTS batches (seq INTEGER PRIMARY KEY, id TEXT UNIQUE)"
_NOTE_BATCH = "INSERT OR IGNORE INTO batches (id) VALUES (?)"
_FORGET_BATCHES = "DELETE FROM batches WHERE seq <= (SELECT max(seq) FROM batches) - ?"
_BATCHES_KEPT = 10_000
"""Batches whose ids are kept; a repeated one arrives within seconds."""


_encoder = msgspec.json.Encoder()
_encode = _encoder.encode


@final
class AuditRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry; the fields are written in this order."""

    kind: str
    """`call`, `question`, or another action such as `secret.set`."""
    at: float
    """Seconds since the epoch."""
    principal: str = ""
    """The name in the caller's credentials; for commands, the system user."""
    client: str = ""
    """The label of the gateway's client."""
    agent: str = ""
    session: str = ""
    pid: int = 0
    """The id of the process."""
    server: str = ""
    tool: str = ""
    """The server's own name for it."""
    subject: str = ""
    """The object of another action."""
    outcome: str = ""
    decision: str = ""
    """`allow`, `ask` or `deny`; empty where no rule applied."""
    rule: str = ""
    """The place of the rule in its file."""
    detail: str = ""
    arguments: Any = None
    """The arguments without secrets, if the settings keep them."""
    issuer: str = ""
    """Who vouches for the principal: an identity provider, or our own tokens; empty for the local
    user."""
    user: str = ""
    """The subject of the issuer."""
    client_id: str = ""
    """The OAuth client that the principal's token was issued to."""
    access: str = ""
    """The access rules that admitted the principal, separated by commas."""
    credential: str = ""
    """The person whose account at the server was used; empty for the gateway's own."""

    def body(self) -> str:
        """The entry as JSON."""
        try:
            return _encode(self).decode()
        except UnicodeEncodeError:  # a lone surrogate from a server's answer
            texts = {name: getattr(self, name) for name in self.__struct_fields__}
            sound = {name: encodable(text) for name, text in texts.items() if isinstance(text, str)}
            return _encode(msgspec.structs.replace(self, **sound)).decode()


class Author(NamedTuple):
    """The author of entries."""

    user: str
    """The user who runs this program, for calls without a client."""
    pid: int


def bodies_of(records: Iterable[AuditRecord | CallRecord], author: Author) -> list[str]:
    """Entries as JSON."""
    user, pid = author
    entries = [
        record if type(record) is AuditRecord else of_call(record, user, pid) for record in records
    ]
    try:
        # in one step: the encoded JSON contains no line breaks
        return _encoder.encode_lines(entries).decode().split("\n")[:-1]
    except UnicodeEncodeError:  # one by one: `body` handles the one that cannot be encoded
        return [entry.body() for entry in entries]


def of_call(call: CallRecord, user: str, pid: int) -> AuditRecord:
    """The entry of a call."""
    decision, rule = call.ruled or ("", "")
    if call.principal is None:
        name, issuer, subject, client_id, access = user, "", "", "", ""
    else:
        name, issuer, subject, client_id, access = _identity(call.principal)
    return AuditRecord(
        "call",
        call.at,
        name,
        call.client or "",
        call.agent or "",
        call.session or "",
        pid,
        call.server,
        call.tool,
        "",
        call.outcome,
        decision,
        rule,
        call.error or "",
        call.shown,
        issuer,
        subject,
        client_id,
        access,
        "" if call.account is None else str(call.account),
    )


@lru_cache(1024)
def _identity(principal: Principal) -> tuple[str, str, str, str, str]:
    """Name, issuer, user, client id and access rules of a principal, for its entries."""
    issuer, subject = (principal.issuer, principal.subject) if principal.key else ("", "")
    return principal.name, issuer, subject, principal.client, ",".join(principal.rules)


class ChainHead(NamedTuple):
    """The number and the hash of an entry."""

    seq: int
    hash: str


class AuditBatch(msgspec.Struct, array_like=True):
    """Entries that are written together."""

    id: str
    """Identifies the batch, so that it is written once."""
    bodies: list[str]
    """JSON objects."""


class AuditEntry(NamedTuple):
    """One stored entry of the log."""

    seq: int
    body: str
    hash: str


class _LogHeader(msgspec.Struct, omit_defaults=True):
    """An entry that the log writes about itself."""

    kind: str
    at: float
    through: int = 0
    hash: str = ""
    words: str = ""


def chain_hash(before: str, seq: int, body: str) -> str:
    """The hash of an entry, from the previous hash, its number and its text."""
    return sha256(f"{before}\n{seq}\n{body}".encode()).hexdigest()


class AuditFile:
    """The log in one folder; opened when it is first written to."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self._head = directory / HEAD_NAME
        self._connection: sqlite3.Connection | None = None
        self._seen = 0, 0
        """The inode and the size of the file that it belongs to."""

    def append(
        self, bodies: Sequence[str] = (), *, keep: int, batches: Sequence[AuditBatch] = ()
    ) -> None:
        """Add entries, which are JSON objects, and drop the oldest if there are more than `keep`.

        Batches that were already written are skipped.

        Raises:
            sqlite3.Error, OSError: They could not be added.
        """
        import sqlite3  # noqa: PLC0415 - see above

        try:
            head = self._append(bodies, batches, keep)
        except sqlite3.DatabaseError as exc:
            if (kind := _kind_of(exc)) == sqlite3.SQLITE_BUSY:
                raise
            # with another connection: this one may know a file that was changed by others
            self.close()
            if kind in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
                self._set_aside()
            head = self._append(bodies, batches, keep)
        # After the commit: a head ahead of the log would report entries as lost.
        self._write_head(head)

    def entries(self) -> Iterator[AuditEntry]:
        """All entries, newest first.

        Raises:
            sqlite3.Error: The file cannot be read.
        """
        if not self.path.exists():
            return
        with closing(_read_only(self.path)) as connection:
            rows = connection.execute("SELECT seq, body, hash FROM audit ORDER BY seq DESC")
            for seq, body, hash_ in rows:
                lines = body.split("\n")
                for back, line in enumerate(reversed(lines)):
                    yield AuditEntry(seq - back, line, hash_)

    def verify(self) -> tuple[list[str], ChainHead | None]:
        """Check the whole log; returns the problems in words, and the last entry."""
        head = self._read_head()
        if not self.path.exists():
            gone = [f"{self.path} is gone; it had {head.seq:,} entries"] if head else []
            return gone, None
        import sqlite3  # noqa: PLC0415 - see above

        try:
            with closing(_read_only(self.path)) as connection:
                return _verify(connection, head)
        except sqlite3.Error as exc:
            return [f"{self.path} cannot be read: {exc}"], None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _append(self, bodies: Sequence[str], batches: Sequence[AuditBatch], keep: int) -> ChainHead:
        connection = self._open()
        # The write lock before the last entry is read: two processes that append after the same
        # entry would fork the chain.
        _lock(connection)
        try:
            bodies = [*bodies, *_fresh(connection, batches)]
            last, more = self._last(connection)
            last = _add_entries(connection, last, [*more, *bodies])
            last = _trim(connection, last, keep)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return last

    def _last(self, connection: sqlite3.Connection) -> tuple[ChainHead, list[str]]:
        """The last entry, and a new entry that reports missing ones, if any."""
        row = connection.execute(_LAST).fetchone()
        last = ChainHead(*row) if row else ChainHead(0, _GENESIS)
        head = self._read_head()
        if head is None or head.seq <= last.seq:
            return last, []
        loss = f"entries {last.seq + 1} to {head.seq} are gone"
        return head, [_own(LOST, through=head.seq, hash=head.hash, words=loss)]

    def _open(self) -> sqlite3.Connection:
        # Others may delete, replace or empty the file, and SQLite would go on with what it knows.
        before, self._seen = self._seen, _inode_and_size(self.path)
        is_same = self._seen[0] == before[0] and self._seen[1] >= before[1]
        if self._connection is not None and is_same:
            return self._connection
        import sqlite3  # noqa: PLC0415 - see above

        self.close()
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        # before it is opened: if it is replaced in between, the next look notices
        self._seen = _inode_and_size(self.path)
        connection = sqlite3.connect(
            self.path, timeout=_BUSY, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # after a power failure, the second file must not be ahead of this one
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(_TABLE)
            for trigger in _TRIGGERS.values():
                connection.execute(trigger)
            connection.execute("PRAGMA busy_timeout = 0")  # from now on `_lock` waits
        except BaseException:
            # kept only when it is complete: on a full disk the next attempt has to create the rest
            connection.close()
            raise
        self._connection = connection
        return connection

    def _set_aside(self) -> None:
        """Move a damaged file aside, and begin a new one."""
        self.close()
        stamp = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{time.monotonic_ns() % 10**6}"
        # the database last: a new one must not find the log of the old one beside it
        for suffix in ("-shm", "-wal", ""):
            with suppress(FileNotFoundError):
                path = self.path.with_name(self.path.name + suffix)
                path.rename(path.with_name(f"{self.path.name}.unusable-{stamp}{suffix}"))

    def _read_head(self) -> ChainHead | None:
        try:
            seq, _, hash_ = self._head.read_text(encoding="ascii").strip().partition(" ")
            return ChainHead(int(seq), hash_)
        except (OSError, ValueError):
            return None

    def _write_head(self, head: ChainHead) -> None:
        stored = self._read_head()
        if stored is not None and stored.seq >= head.seq:
            return  # another process has written more meanwhile
        temporary = self._head.with_name(f"{HEAD_NAME}.{os.getpid()}")
        # harmless: an outdated head only protects fewer entries
        with suppress(OSError):
            self._replace_head(temporary, head)

    def _replace_head(self, temporary: Path, head: ChainHead) -> None:
        with open(os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:  # noqa: PTH123 - private from its creation on
            file.write(f"{head.seq} {head.hash}\n")
        temporary.replace(self._head)


def _inode_and_size(path: Path) -> tuple[int, int]:
    stamp = file_stamp(path)
    return (0, 0) if stamp is None else (stamp[2], stamp[1])


def _kind_of(exc: sqlite3.Error) -> int:
    # the lowest byte is the kind of error, the others only say more about it
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF


def _lock(connection: sqlite3.Connection) -> None:
    """Begin to write; waits for other processes.

    SQLite itself looks ever more rarely, and one of many busy writers might never be the first.
    """
    import sqlite3  # noqa: PLC0415 - see above

    deadline = time.monotonic() + _BUSY
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as exc:
            if _kind_of(exc) != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE)
        else:
            return


def _fresh(connection: sqlite3.Connection, batches: Sequence[AuditBatch]) -> list[str]:
    """The entries of batches that are not written yet; marks these as written."""
    bodies: list[str] = []
    for batch in batches:
        connection.execute(_BATCHES)
        if connection.execute(_NOTE_BATCH, (batch.id,)).rowcount:
            connection.execute(_FORGET_BATCHES, (_BATCHES_KEPT,))
            bodies += batch.bodies
    return bodies


def _add_entries(
    connection: sqlite3.Connection, last: ChainHead, bodies: Sequence[str]
) -> ChainHead:
    seq, hash_ = last
    rows: list[Row] = []
    at = 0
    while at < len(bodies):
        size = _BLOCK if len(bodies) - at >= _BLOCK else 1
        body = "\n".join(bodies[at : at + size])
        at, seq = at + size, seq + size
        hash_ = chain_hash(hash_, seq, body)
        rows.append((seq, body, hash_))
    insert(connection, _INSERT, rows)
    return ChainHead(seq, hash_)


def _trim(connection: sqlite3.Connection, last: ChainHead, keep: int) -> ChainHead:
    (first,) = connection.execute(_FIRST).fetchone()
    if last.seq - first < keep + keep // _SLACK:
        return last
    row = connection.execute(_UP_TO, (last.seq - keep,)).fetchone()
    if row is None:
        return last
    through, hash_ = row
    # the entry that reports it is part of the chain: any other removal is detected
    last = _add_entries(connection, last, [_own(ROTATED, through=through, hash=hash_)])
    connection.execute("DROP TRIGGER audit_refuses_delete")
    connection.execute("DELETE FROM audit WHERE seq <= ?", (through,))
    connection.execute(_TRIGGERS["audit_refuses_delete"])
    return last


def _own(kind: str, **fields: Any) -> str:
    return msgspec.json.encode(_LogHeader(kind, time.time(), **fields)).decode()


def _read_only(path: Path) -> sqlite3.Connection:
    import sqlite3  # noqa: PLC0415 - see above

    return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_BUSY)


def _verify(
    connection: sqlite3.Connection, head: ChainHead | None
) -> tuple[list[str], ChainHead | None]:
    problems: list[str] = []
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if missing := _TRIGGERS.keys() - names:
        problems.append(f"the triggers that refuse changes are gone: {', '.join(sorted(missing))}")
    last = _walk(connection, head, problems.append)
    if head is None and last is not None:
        problems.append(f"{HEAD_NAME}, which knows the last entry, is gone")
    elif head is not None and head.seq > (last.seq if last else 0):
        problems.append(_missing(last.seq + 1 if last else 1, head.seq, " at the end"))
    return problems[:_MOST_PROBLEMS], last


def _walk(
    connection: sqlite3.Connection, head: ChainHead | None, report: Callable[[str], None]
) -> ChainHead | None:
    last: ChainHead | None = None
    for seq, body, hash_ in connection.execute("SELECT seq, body, hash FROM audit ORDER BY seq"):
        first = seq - body.count("\n")
        before = last or _beginning(connection, first)
        which = f"entry {seq}" if first == seq else f"one of the entries {first} to {seq}"
        if before is None or before.seq != first - 1:
            report(_missing((before.seq if before else 0) + 1, first - 1))
        elif chain_hash(before.hash, seq, body) != hash_:
            report(f"{which} was changed, or is not where it was")
        if head is not None and head.seq == seq and head.hash != hash_:
            report(f"entry {seq} is not the one that was written: the log was rewritten")
        if any(_kind(line) == LOST for line in body.split("\n") if LOST in body):
            report(f"entry {seq} says that entries before it were lost")
        last = ChainHead(seq, hash_)
    return last


def _beginning(connection: sqlite3.Connection, first: int) -> ChainHead | None:
    """The entry before the first one: none, or a dropped one that a later entry names."""
    if first == 1:
        return ChainHead(0, _GENESIS)
    bodies = connection.execute("SELECT body FROM audit WHERE body LIKE ?", (f"%{ROTATED}%",))
    for line in (line for (body,) in bodies for line in body.split("\n") if ROTATED in line):
        with suppress(msgspec.DecodeError):
            own = msgspec.json.decode(line, type=_LogHeader)
            if own.kind == ROTATED and own.through == first - 1:
                return ChainHead(own.through, own.hash)
    return None


def _kind(body: str) -> str:
    if LOST not in body:
        return ""
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(body, type=_LogHeader).kind
    return ""


def _missing(first: int, last: int, where: str = "") -> str:
    if first == last:
        return f"entry {first} is missing{where}"
    return f"entries {first} to {last} are missing{where}"
