"""`multitap calls`: lists past calls with caller, outcome and where the time went."""

import json
import time
from collections.abc import Iterator, Mapping

import click
import msgspec

from multitap.cli.configuration import load_configuration
from multitap.cli.options import CommonOptions, config_options, json_option
from multitap.cli.serve.token import token_names
from multitap.cli.terminal import Colour, Exit, advise, complain, note, say, say_json, table
from multitap.printable import printable
from multitap.store.database import Archive
from multitap.store.queries import CallQuery, RecordFilter
from multitap.store.tables import CallRecord, RecordedExchange, indent_json
from multitap.trust.tokens import TokenNames

_HEADER = ("TIME", "SERVER", "TOOL", "STATUS", "TOTAL", "QUEUE", "CONNECT", "CLIENT", "NOTE")
_TIMES = ("TOTAL", "QUEUE", "CONNECT")
_COLOURS: Mapping[str, Colour] = {
    "error": "yellow",
    "failed": "red",
    "timeout": "red",
    "refused": "yellow",
}


@click.command()
@click.argument("terms", nargs=-1, metavar="[FILTER]...")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    metavar="N",
    help="Only the last N calls",
)
@click.option("--show", metavar="ID", help="Print the request and response of a recorded call")
@config_options
@json_option
def calls(
    options: CommonOptions, terms: tuple[str, ...], *, lines: int, show: str | None, as_json: bool
) -> int:
    """List past calls, or those that match FILTER

    FILTER is made of terms such as server:github, tool:list_*, status:error, client:claude*,
    '>500ms', since:10m and words to find. A minus sign excludes: -status:ok.
    """
    archive = Archive(load_configuration(options).state_directory)
    try:
        if show is not None:
            return _show(archive.read_exchange(show), show, as_json=as_json)
        # quoted again: a term may contain spaces
        text = " ".join(json.dumps(term) if " " in term else term for term in terms)
        query = CallQuery(filter=RecordFilter.parse(text), limit=lines)
        page = archive.read(query)
    finally:
        archive.close()
    if as_json:
        # as dictionaries: scripts expect every key, with its default as well
        say_json([msgspec.to_builtins(msgspec.structs.asdict(record)) for record in page.records])
    elif page.records:
        names = token_names()
        table(
            _HEADER,
            # the newest last, next to the prompt
            [_row(record, names) for record in reversed(page.records)],
            right=_TIMES,
            paint={"STATUS": _COLOURS.get},
        )
        _mention(page.records)
    else:
        note("no calls match" if text else "no calls were made yet")
    return Exit.DONE


def _mention(records: tuple[CallRecord, ...]) -> None:
    exchange = next((record.exchange for record in records if record.exchange), None)
    if isinstance(exchange, str):
        advise(f"`multitap calls --show {exchange}` prints the last recorded call")


def _show(exchange: RecordedExchange | None, name: str, *, as_json: bool) -> Exit:
    if exchange is None:
        complain(
            f"no recorded call has the id {name!r}",
            'set `record = "errors"` or `"all"` to keep what calls send and receive',
        )
        return Exit.FAILED
    if as_json:
        say_json(msgspec.to_builtins(exchange))
        return Exit.DONE
    for title, text in (("request", exchange.arguments), ("response", exchange.result)):
        note(title)
        say(printable(indent_json(text)))
    return Exit.DONE


def _row(record: CallRecord, names: TokenNames) -> tuple[str, ...]:
    return (
        time.strftime("%m-%d %H:%M:%S", time.localtime(record.at)),
        record.server,
        record.tool,
        record.outcome.value,
        *_spans(record),
        names(record.client or record.agent or "-"),
        " ".join(filter(None, (record.error, f"[{record.exchange}]" if record.exchange else None))),
    )


def _spans(record: CallRecord) -> Iterator[str]:
    for seconds in (record.seconds, record.queued, record.connecting):
        yield f"{seconds * 1000:,.1f} ms" if seconds else "-"
