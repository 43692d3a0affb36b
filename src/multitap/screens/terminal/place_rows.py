"""The rows of each place."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from multitap.errors import counted
from multitap.gateway.fronts.control_messages import ToolLine
from multitap.printable import printable
from multitap.screens.terminal.row_list import Row
from multitap.screens.time_bars import Phases, bar, duration, sparkline
from multitap.screens.view_model import (
    ClientRow,
    RecentCalls,
    ServerRow,
    Tone,
    call_tone,
    token_cost,
)
from multitap.store.call_records import CallRecord
from multitap.store.log_records import Activity

BAR = 16
"""Cells of the time bar of a call."""
_SPARK = 12
_HELPS = {
    "r": "press r to restart it, l to see what it wrote",
    "o": "press o to log in",
    "e": "press e to enable it",
    "T": "press T to review its project and trust it",
}


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
                row.level,
                row.reason,
            ),
            row.tone,
        )
        for row in rows
    ]


def server_words(row: ServerRow) -> str:
    """What is wrong with a server, the key that helps, and values that the list may leave out."""
    facts = (
        f"{row.tools} tools" if row.tools else "",
        f"{row.tokens:,} tokens" if row.tokens else "",
        f"{row.calls:,} calls" if row.calls else "",
        f"p95 {duration(row.p95)}" if row.p95 else "",
        f"restarted {counted(row.restarts, 'time')}" if row.restarts else "",
        f"health check {duration(row.latency)}" if row.latency else "",
        f"{row.era} era" if row.era else "",
        row.transport,
        f"confinement {row.level}: {row.confinement}" if row.level else "",
    )
    lines = (row.reason, row.fix, _HELPS.get(row.key), ", ".join(filter(None, facts)))
    return "\n".join(filter(None, lines))


def of_calls(records: Iterable[CallRecord], passes: Callable[[CallRecord], bool]) -> list[Row]:
    """Calls, newest first, without duplicates."""
    shown = {call_key(record): record for record in records if passes(record)}
    longest = max((record.seconds for record in shown.values()), default=0.0)
    return [
        Row(
            key,
            (
                _clock(record.at),
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
        for key, record in shown.items()
    ]


def call_key(record: CallRecord) -> str:
    # calls have no id; two of one tool do not end in the same microsecond
    return f"{record.at:.6f} {record.server} {record.tool}"


def call_words(record: CallRecord) -> str:
    """Who called what, and where the time went."""
    who = record.client or record.agent
    return "\n".join(
        filter(None, (phases(record).words, f"for {who}" if who else "", record.error))
    )


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


def of_clients(clients: Iterable[ClientRow]) -> list[Row]:
    return [
        Row(
            f"{client.caller} {number}",
            (
                client.name,
                client.version,
                client.era,
                client.profile,
                client.principal,
                _number(client.calls),
                _number(client.requests),
                ", ".join(client.capabilities) or "nothing",
            ),
        )
        for number, client in enumerate(clients)
    ]


def client_words(client: ClientRow) -> str:
    """What a client called last."""
    profile = f"profile {client.profile}, " if client.profile else ""
    last = ", ".join(client.tools[:5]) or "nothing yet"
    return f"{profile}{client.calls:,} calls seen; called last: {last}"


def of_log(activities: Iterable[Activity]) -> list[Row]:
    """Events, newest first."""
    return [
        Row(
            f"{one.at:.6f} {one.text[:40]}",
            (_clock(one.at), one.level, one.server or "", printable(one.text)),
            _tone(one.level),
        )
        for one in activities
    ]


def tool_fields(tool: ToolLine) -> Mapping[str, object]:
    """The fields for a `RecordFilter`."""
    return {"server": tool.server, "tool": tool.name, "kind": "tool", "text": tool.description}


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _tone(level: str) -> Tone:
    if level in {"debug", "info", "notice"}:
        return "quiet"
    return "warning" if level == "warning" else "error"


def _number(value: int) -> str:
    return f"{value:,}" if value else "-"
