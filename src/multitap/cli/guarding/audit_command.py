"""`multitap audit`: shows who did what and what was decided, and verifies the record."""

import sqlite3
import time
from collections.abc import Callable, Sequence
from heapq import merge
from itertools import islice

import msgspec

from multitap.cli.configuration.chosen_configuration import load_configuration
from multitap.cli.exits import Exit
from multitap.cli.options import CommonOptions
from multitap.cli.terminal.output import complain, say, say_json
from multitap.cli.terminal.tables import table
from multitap.config.durations import seconds
from multitap.config.search import state_directory
from multitap.errors import ConfigError
from multitap.records import dataclass
from multitap.store.audit_file import AuditFile, ChainHead
from multitap.store.audit_records import AuditRecord
from multitap.trust.audit import AuditLine, lines

_HEADER = ("ENTRY", "TIME", "WHO", "WHAT", "DECISION", "OUTCOME", "NOTE")


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The entries to show."""

    verify: bool
    """Whether to verify the log instead."""
    server: str | None
    kind: str | None
    since: str | None
    lines: int
    as_json: bool


def audit(options: CommonOptions, wanted: AuditOptions) -> int:
    """Show the newest entries."""
    if wanted.verify:
        return verify(options, as_json=wanted.as_json)
    since, chosen = _since(wanted.since), _make_filter(wanted)
    logs = [lines(file, chosen, since=since) for file in _files(options)]
    try:
        # read lazily: of a million entries only the newest are fetched
        newest = merge(*logs, key=lambda line: line.record.at, reverse=True)
        found = [*islice(newest, wanted.lines)]
    except sqlite3.Error as exc:
        complain(f"the log cannot be read: {exc}", "`multitap audit --verify` says more")
        return Exit.FAILED
    if wanted.as_json:
        say_json([_plain(line) for line in found])
        return Exit.DONE
    table(_HEADER, [_row(line) for line in found])
    return Exit.DONE


def verify(options: CommonOptions, *, as_json: bool) -> int:
    """Check whether an entry was changed, removed or moved."""
    checked = [(file, *file.verify()) for file in _files(options)]
    if as_json:
        told = [_verdict(*one) for one in checked]
        say_json(told[0] if len(told) == 1 else told)
    for file, problems, last in () if as_json else checked:
        for problem in problems:
            complain(problem)
        if not problems:
            size = f"{last.seq:,}" if last else "no"
            say(f"{file.path}: {size} entries, none changed or removed")
        if last is not None:
            # stored elsewhere, this line later proves that the end was not truncated
            say(f"last entry: {last.seq} {last.hash}")
    return Exit.FAILED if any(problems for _, problems, _ in checked) else Exit.DONE


def _files(options: CommonOptions) -> list[AuditFile]:
    """The log of the configuration, and the user's own if that is another one."""
    places = (load_configuration(options).state_directory, state_directory())
    return [AuditFile(place) for place in dict.fromkeys(places)]


def _verdict(file: AuditFile, problems: Sequence[str], last: ChainHead | None) -> dict[str, object]:
    head = {"entry": last.seq, "hash": last.hash} if last else None
    return {"file": str(file.path), "problems": problems, "head": head}


def _since(text: str | None) -> float:
    if text is None:
        return 0.0
    try:
        return time.time() - seconds(text, bare="s")
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a duration", hint="write `--since 30m`, `2h` or `90s`"
        ) from None


def _make_filter(wanted: AuditOptions) -> Callable[[AuditRecord], bool]:
    def chosen(record: AuditRecord) -> bool:
        is_kind = wanted.kind is None or record.kind.partition(".")[0] == wanted.kind
        return wanted.server in {None, record.server} and (is_kind or record.kind == wanted.kind)

    return chosen


def _row(line: AuditLine) -> tuple[str, ...]:
    record = line.record
    who = " ".join(filter(None, (record.principal, record.client, record.agent)))
    what = " ".join(filter(None, (record.server, record.tool or record.subject)))
    decision = f"{record.decision} {record.rule}".strip()
    return (
        str(line.entry.seq),
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.at)),
        who or "-",
        f"{record.kind}: {what}" if what else record.kind,
        decision or "-",
        record.outcome or "-",
        record.detail,
    )


def _plain(line: AuditLine) -> dict[str, object]:
    told: dict[str, object] = msgspec.json.decode(line.entry.body)
    return {"entry": line.entry.seq, **told, "hash": line.entry.hash}
