"""Audit entries: who did what, when, the outcome, and what decided it.

The hub's store writes calls, of which there may be thousands, in batches. Decisions about secrets,
logins, tokens, pins and projects are written at once, by `record`.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from multitap.config.models import Audit
from multitap.config.sources import state_directory
from multitap.principal import system_user
from multitap.store.audit_log import AuditEntry, AuditFile, AuditRecord

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
    """Record an action of a command or of the program itself.

    If that fails, the program's log says why, and the action stands.

    Args:
        kind: The action: `secret.set`, `trust.given`, `token.revoked`, …
        subject: Its object: a name, never a value.
        server: The server, if it concerns one.
        outcome: How it ended, if not obvious.
        decision: `allow` or `deny`, if a person decided.
        detail: Details, without secrets.
        state_dir: The folder of the log; by default, the user's state directory.
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
    import sqlite3  # noqa: PLC0415 - most commands write no entries

    # Opened for one entry: commands are short, and a gateway may be writing to the same file.
    file = AuditFile(state_directory(state_dir))
    try:
        file.append([entry.body()], keep=keep)
    except (OSError, sqlite3.Error) as exc:
        logger.warning("the audit log %s cannot be written: %s", file.path, exc)
    finally:
        file.close()


def recorder(folder: Path | None) -> AuditWriter:
    """The recorder for changes in a folder: the user's log if it is the user's own folder.

    Args:
        folder: Another folder than the user's own; it then has its own log.
    """
    return record if folder is None else partial(record, state_dir=folder)


class AuditLine(msgspec.Struct, frozen=True):
    """One entry, read from the log."""

    entry: AuditEntry
    record: AuditRecord


def lines(
    file: AuditFile, accepts: Callable[[AuditRecord], bool], *, since: float = 0.0
) -> Iterator[AuditLine]:
    """The matching entries, newest first.

    Args:
        file: The log.
        accepts: Whether an entry matches.
        since: Older entries are skipped, in seconds since the epoch.

    Raises:
        sqlite3.Error: The file cannot be read.
    """
    for entry in file.entries():
        try:
            parsed = _parse(entry.body)
        except msgspec.DecodeError:
            parsed = AuditRecord("unreadable", 0.0)  # `verify` reports details
        else:
            if parsed.at < since:
                return
        if accepts(parsed):
            yield AuditLine(entry, parsed)
