"""Audit entries: who did what, when, the outcome, and what decided it.

Calls come in their thousands and are written some at a time, by the hub's store. Everything else
that trust is about (secrets, logins, tokens, pins, trusted projects) is written at once, by
`record`.
"""

import getpass
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from multitap.config.models import Audit
from multitap.config.search import state_directory
from multitap.records import dataclass
from multitap.store.audit_file import AuditEntry, AuditFile
from multitap.store.audit_records import AuditRecord

_parse = msgspec.json.Decoder(AuditRecord).decode


def record(
    kind: str,
    *,
    subject: str = "",
    server: str = "",
    outcome: str = "",
    detail: str = "",
    state_dir: Path | None = None,
    keep: int = Audit().keep,
) -> str | None:
    """Write down what a command, or the program itself, did; why not, if that is not possible.

    Args:
        kind: What was done: `secret.set`, `trust.given`, `token.revoked`, …
        subject: To what: a name, never a value.
        server: To which server, if to one.
        outcome: How it ended, if that is not plain.
        detail: More about it, without secrets.
        state_dir: Where the log is; the user's state directory if not given.
        keep: How many entries are kept.
    """
    entry = AuditRecord(
        kind,
        time.time(),
        principal=system_user(),
        pid=os.getpid(),
        server=server,
        subject=subject,
        outcome=outcome,
        detail=detail,
    )
    file = AuditFile(state_directory(state_dir))
    try:
        file.append([entry.body()], keep=keep)
    except (OSError, sqlite3.Error) as exc:
        return f"the audit log {file.path} cannot be written: {exc}"
    finally:
        file.close()
    return None


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One entry of the log, read again."""

    entry: AuditEntry
    record: AuditRecord


def lines(
    file: AuditFile, wanted: Callable[[AuditRecord], bool], *, since: float = 0.0
) -> Iterator[AuditLine]:
    """The entries that are wanted, newest first.

    Args:
        file: The log.
        wanted: Whether one is.
        since: Older ones are not looked at, in seconds since the epoch.

    Raises:
        sqlite3.Error: The file cannot be read.
    """
    for entry in file.entries():
        try:
            found = _parse(entry.body)
        except msgspec.DecodeError:
            found = AuditRecord("unreadable", 0.0)  # `verify` says more
        else:
            if found.at < since:
                return
        if wanted(found):
            yield AuditLine(entry, found)


def system_user() -> str:
    """Who runs this program."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return str(os.getuid())
