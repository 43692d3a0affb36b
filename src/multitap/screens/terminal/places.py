"""The six places of the screen: their lists and keys."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from multitap.gateway.fronts.control_messages import ClientFigures, Figures, ToolLine
from multitap.printable import printable
from multitap.records import dataclass
from multitap.screens.terminal.row_list import Row
from multitap.screens.time_bars import Phases, bar, duration, sparkline
from multitap.screens.view_model import RecentCalls, ServerRow, Tone, call_tone, token_cost
from multitap.store.call_records import CallRecord
from multitap.store.log_records import Happening

BAR = 16
"""Cells of the picture of a call's time."""
_SPARK = 12


@dataclass(frozen=True, slots=True)
class Place:
    """One of the six."""

    name: str
    title: str
    header: tuple[str, ...]
    keys: str = ""
    """What its keys do, for the line below it."""


SERVERS = Place(
    "servers",
    "Servers",
    (
        "SERVER",
        "STATE",
        "TOOLS",
        "TOKENS",
        "CALLS",
        "ERR",
        "P95",
        "TREND",
        "RESTARTS",
        "ERA",
        "NOTE",
    ),
    "r restart  e on/off  o log in  l log  t tools",
)
CALLS = Place(
    "calls",
    "Calls",
    (
        "TIME",
        "SERVER",
        "TOOL",
        "STATUS",
        "TOOK",
        "░queue ▒connect █server ▓encode",
        "CLIENT",
        "NOTE",
    ),
    "Enter details  r replay  d compare with the last good one",
)
TOOLS = Place(
    "tools", "Tools", ("TOOL", "SERVER", "TOKENS", "DESCRIPTION"), "Enter schema  c call it"
)
CLIENTS = Place(
    "clients", "Clients", ("CLIENT", "VERSION", "ERA", "PROFILE", "TOKEN", "CAN BE ASKED", "BUSY")
)
ACCESS = Place("access", "Access", ("KIND", "NAME", "STATE", "NOTE"), "Enter review")
LOG = Place("log", "Log", ("TIME", "LEVEL", "SERVER", "WHAT"))
PLACES = (SERVERS, CALLS, TOOLS, CLIENTS, ACCESS, LOG)


def of_servers(rows: Sequence[ServerRow], recent: RecentCalls) -> list[Row]:
    return [
        Row(
            row.name,
            (
                row.name,
                row.state,
                _number(row.tools),
                _number(row.tokens),
                _number(row.calls),
                _number(row.errors),
                duration(row.p95),
                sparkline(recent.speed(row.name), _SPARK),
                _number(row.restarts),
                row.era,
                row.reason,
            ),
            row.tone,
        )
        for row in rows
    ]


def of_calls(records: Iterable[CallRecord], passes: Callable[[CallRecord], bool]) -> list[Row]:
    """Calls, newest first."""
    shown = [record for record in records if passes(record)]
    longest = max((record.seconds for record in shown), default=0.0)
    return [
        Row(
            call_key(record),
            (
                time.strftime("%H:%M:%S", time.localtime(record.at)),
                record.server,
                record.tool,
                record.outcome.value,
                duration(record.seconds),
                bar(phases(record), longest, BAR),
                record.client or record.agent or "",
                record.error or "",
            ),
            call_tone(record),
        )
        for record in reversed(shown)
    ]


def call_key(record: CallRecord) -> str:
    return f"{record.at:.6f} {record.server} {record.tool}"


def phases(record: CallRecord) -> Phases:
    return Phases.of(record.seconds, record.queued, record.connecting, record.encoding)


def of_tools(tools: Iterable[ToolLine]) -> list[Row]:
    return [
        Row(
            tool.name,
            (tool.name, tool.server, _number(token_cost(tool)), tool.description),
        )
        for tool in tools
    ]


def of_clients(clients: Iterable[ClientFigures]) -> list[Row]:
    return [
        Row(
            f"{client.name} {number}",
            (
                client.name or "(unnamed)",
                client.version,
                client.protocol_version or "stateless",
                client.profile or "",
                client.principal,
                ", ".join(client.capabilities),
                _number(client.requests),
            ),
        )
        for number, client in enumerate(clients)
    ]


def of_log(happenings: Iterable[Happening]) -> list[Row]:
    """What happened, newest first."""
    return [
        Row(
            f"{one.at:.6f} {one.text[:40]}",
            (
                time.strftime("%H:%M:%S", time.localtime(one.at)),
                one.level,
                one.server or "",
                printable(one.text),
            ),
            _tone(one.level),
        )
        for one in happenings
    ]


def _tone(level: str) -> Tone:
    if level in {"debug", "info", "notice"}:
        return "quiet"
    return "warning" if level == "warning" else "error"


def _number(value: int) -> str:
    return f"{value:,}" if value else "-"


def advice(row: ServerRow) -> str:
    """Why a server is not as it should be, and the key that helps."""
    key = f" (press {row.key})" if row.key else ""
    return f"{row.reason}  {row.fix}{key}".strip()


def fields(tool: ToolLine) -> Mapping[str, object]:
    """What a `RecordFilter` looks at."""
    return {"server": tool.server, "tool": tool.name, "kind": "tool", "text": tool.description}


def summary(figures: Figures | None) -> str:
    """Calls, errors and times of each server."""
    if figures is None or not figures.servers:
        return "no calls yet"
    return "\n".join(
        f"{name}: {server.total.calls:,} calls, {server.total.errors:,} errors, "
        f"p50 {duration(server.total.p50)}, p95 {duration(server.total.p95)}"
        for name, server in sorted(figures.servers.items())
    )
