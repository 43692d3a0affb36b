"""`multitap audit`: shows who did what and what was decided, and verifies the record."""

import sqlite3
import time
from collections.abc import Callable, Sequence
from heapq import merge
from itertools import islice
from typing import Any

import click
import msgspec

from multitap.cli.completion import complete_server
from multitap.cli.configuration import load_configuration
from multitap.cli.options import CommonOptions, config_options, json_option
from multitap.cli.serve.token import token_names
from multitap.cli.terminal import Exit, complain, say, say_json, table
from multitap.config.durations import seconds
from multitap.config.sources import state_directory
from multitap.errors import ConfigError
from multitap.store.audit_log import AuditFile, AuditRecord, ChainHead
from multitap.trust.audit import AuditLine, lines
from multitap.trust.tokens import TokenNames

_HEADER = ("ENTRY", "TIME", "WHO", "WHAT", "DECISION", "OUTCOME", "NOTE")


class AuditOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The entries to show."""

    verify: bool
    """Whether to verify the log instead."""
    server: str | None
    kind: str | None
    since: str | None
    lines: int
    as_json: bool


@click.command()
@click.option("--verify", is_flag=True, help="Check that no entry was changed or removed")
@click.option(
    "-s", "--server", shell_complete=complete_server, help="Only entries about this server"
)
@click.option("--kind", metavar="KIND", help="Only entries of this kind: call, question, secret, …")
@click.option("--since", metavar="SPAN", help="Only entries from the last 2h, 30m, …")
@click.option(
    "-n", "--lines", type=click.IntRange(min=1), default=50, metavar="N", help="At most N entries"
)
@config_options
@json_option
def audit(options: CommonOptions, **typed: Any) -> int:
    """Show who called what and what was decided, newest first

    With --verify, exits with code 1 if an entry was changed or removed.
    """
    filters = AuditOptions(**typed)
    if filters.verify:
        return verify(options, as_json=filters.as_json)
    since, matches = _since(filters.since), _make_filter(filters)
    logs = [lines(file, matches, since=since) for file in _files(options)]
    try:
        # read lazily: of a million entries only the newest are fetched
        newest = merge(*logs, key=lambda line: line.record.at, reverse=True)
        entries = [*islice(newest, filters.lines)]
    except sqlite3.Error as exc:
        complain(f"the log cannot be read: {exc}", "`multitap audit --verify` says more")
        return Exit.FAILED
    if filters.as_json:
        say_json([_plain(line) for line in entries])
        return Exit.DONE
    names = token_names()
    table(_HEADER, [_row(line, names) for line in entries])
    return Exit.DONE


def verify(options: CommonOptions, *, as_json: bool) -> int:
    """Check whether an entry was changed, removed or moved."""
    checked = [(file, *file.verify()) for file in _files(options)]
    if as_json:
        verdicts = [_verdict(*check) for check in checked]
        say_json(verdicts[0] if len(verdicts) == 1 else verdicts)
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


def _make_filter(filters: AuditOptions) -> Callable[[AuditRecord], bool]:
    def chosen(record: AuditRecord) -> bool:
        is_kind = filters.kind is None or record.kind.partition(".")[0] == filters.kind
        return filters.server in {None, record.server} and (is_kind or record.kind == filters.kind)

    return chosen


def _row(line: AuditLine, names: TokenNames) -> tuple[str, ...]:
    record = line.record
    who = names(" ".join(filter(None, (record.principal, record.client, record.agent))))
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
    fields: dict[str, object] = msgspec.json.decode(line.entry.body)
    return {"entry": line.entry.seq, **fields, "hash": line.entry.hash}
