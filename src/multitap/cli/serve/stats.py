"""`multitap stats`: shows the traffic of a running gateway: how much, how fast, for whom."""

import time
from collections.abc import Iterator
from itertools import starmap

import click
import msgspec

from multitap.cli.configuration import load_configuration
from multitap.cli.options import CommonOptions, gateway_options, json_option
from multitap.cli.serve.token import token_names
from multitap.cli.target import choose_gateway, nobody_serves
from multitap.cli.terminal import Exit, note, say, say_json, table
from multitap.control.messages import ClientFigures, Figures
from multitap.errors import counted
from multitap.hub.metrics import Stats
from multitap.trust.tokens import TokenNames

_TIMES = ("P50", "P95", "P99")


@click.command()
@gateway_options
@json_option
def stats(options: CommonOptions, *, as_json: bool) -> int:
    """Show calls, errors, times and clients of the running gateway"""
    live = choose_gateway(options, load_configuration(options))
    if live is None:
        return nobody_serves()
    figures = live.figures()
    if as_json:
        about = msgspec.to_builtins(live.about)
        say_json({"gateway": about, **msgspec.to_builtins(figures)})
        return Exit.DONE
    note(f"{_count(figures)}; up for {_span(time.time() - live.about.started)}")
    if figures.gap:
        note(figures.gap)
    if figures.servers:
        table(
            ("SERVER", "TOOL", "CALLS", "ERRORS", *_TIMES, "LAST ERROR"),
            [*_rows(figures)],
            right=("CALLS", "ERRORS", *_TIMES),
        )
    if figures.clients:
        if figures.servers:
            say("")
        names = token_names()
        header = ("CLIENT", "VERSION", "PROTOCOL", "TOKEN", "PROFILE")
        table(header, [_client(client, names) for client in figures.clients])
    return Exit.DONE


def _count(figures: Figures) -> str:
    calls = sum(server.total.calls for server in figures.servers.values())
    often = ((calls, "call"), (len(figures.clients), "client"), (figures.sessions, "session"))
    rarely = ((figures.waiting, "waiting call"), (figures.private_links, "private link"))
    counts = (*often, *(pair for pair in rarely if pair[0]))
    return ", ".join(starmap(counted, counts))


def _rows(figures: Figures) -> Iterator[tuple[str, ...]]:
    for name, server in sorted(figures.servers.items()):
        yield _row(name, "(all)", server.total)
        for tool, stats in sorted(server.tools.items()):
            yield _row(name, tool, stats)


def _row(server: str, tool: str, stats: Stats) -> tuple[str, ...]:
    times = (_duration(seconds) for seconds in (stats.p50, stats.p95, stats.p99))
    return (
        server,
        tool,
        f"{stats.calls:,}",
        f"{stats.errors:,}",
        *times,
        stats.last_error or "",
    )


def _client(client: ClientFigures, names: TokenNames) -> tuple[str, ...]:
    token = names(client.principal) or "-"
    return (
        client.name or "-",
        client.version,
        client.protocol_version,
        token,
        client.profile or "-",
    )


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
