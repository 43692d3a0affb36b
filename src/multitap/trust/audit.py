"""Audit entries: who did what, when, the outcome, and what decided it.

Calls come in their thousands and are written some at a time, by the hub's store. Everything else
that trust is about (secrets, logins, tokens, pins, trusted projects) is written at once, by
`record`.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from multitap.config.models import Audit
from multitap.config.search import state_directory
from multitap.later import Later
from multitap.records import dataclass
from multitap.store.audit_records import AuditRecord, system_user

if TYPE_CHECKING:
    import sqlite3

    from multitap.store import audit_file
    from multitap.store.audit_file import AuditEntry, AuditFile
else:
    # most commands decide nothing, and so write nothing
    sqlite3 = Later("sqlite3")
    audit_file = Later("multitap.store.audit_file")

logger = logging.getLogger(__name__)

_parse = msgspec.json.Decoder(AuditRecord).decode


class AuditWriter(Protocol):
    """Writes one entry; see `record`."""

    def __call__(
        self,
        kind: str,
        *,
        subject: str = "",
        server: str = "",
        outcome: str = "",
        decision: str = "",
        detail: str = "",
    ) -> None: ...


def record(
    kind: str,
    *,
    subject: str = "",
    server: str = "",
    outcome: str = "",
    decision: str = "",
    detail: str = "",
    state_dir: Path | None = None,
    keep: int = Audit().keep,
) -> None:
    """Record what a command, or the program itself, did.

    If that is not possible, the log of the program says why, and what was done stays done.

    Args:
        kind: What was done: `secret.set`, `trust.given`, `token.revoked`, …
        subject: To what: a name, never a value.
        server: To which server, if to one.
        outcome: How it ended, if that is not plain.
        decision: `allow` or `deny`, if a person decided.
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
        decision=decision,
        detail=detail,
    )
    # Opened for one entry: commands are short, and a gateway may be writing to the same file.
    file = audit_file.AuditFile(state_directory(state_dir))
    try:
        file.append([entry.body()], keep=keep)
    except (OSError, sqlite3.Error) as exc:
        logger.warning("the audit log %s cannot be written: %s", file.path, exc)
    finally:
        file.close()


def recorder(folder: Path | None) -> AuditWriter:
    """Who records changes of what is kept in a folder: the user's log, if it is the user's place.

    Args:
        folder: Where it is kept, if not in the user's own place; the log is in the same folder.
    """
    return record if folder is None else partial(record, state_dir=folder)


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One entry of the log, read again."""

    entry: "AuditEntry"
    record: AuditRecord


def lines(
    file: "AuditFile", wanted: Callable[[AuditRecord], bool], *, since: float = 0.0
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
