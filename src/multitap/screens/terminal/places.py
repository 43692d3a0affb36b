"""The seven places of the screen: their columns, keys and rows."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from multitap.control.messages import TaskLine, ToolLine
from multitap.control.overview import AuditRow, PinReview, TokenLine
from multitap.errors import counted
from multitap.gateway.person_questions import OpenQuestion
from multitap.printable import printable
from multitap.screens.live_view import LiveView
from multitap.screens.terminal.row_list import Row
from multitap.screens.view import (
    ClientRow,
    Phases,
    RecentCalls,
    ServerRow,
    Tone,
    bar,
    call_tone,
    duration,
    sparkline,
    task_seconds,
    task_tone,
    token_cost,
)
from multitap.store.queries import RecordFilter
from multitap.store.tables import Activity, CallRecord


class ScreenPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One of the seven places."""

    name: str
    title: str
    header: tuple[str, ...]
    spare: tuple[str, ...] = ()
    """Columns that a narrow terminal leaves out, in this order."""
    verbs: frozenset[str] = frozenset()
    """The verbs of `KEYS` that work in this place."""
    drawn: tuple[str, ...] = ()
    """Columns with bars and sparklines."""
    empty: str = ""
    """The text for an empty list: why it is empty, and what to do."""


SERVERS = ScreenPlace(
    name="servers",
    title="Servers",
    header=(
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
        "LEVEL",
        "NOTE",
    ),
    spare=("ERA", "TOKENS", "RESTARTS", "CALLS", "TREND", "P95", "LEVEL"),
    drawn=("TREND",),
    verbs=frozenset({"add", "import", "restart", "switch", "login", "log", "tools", "trust"}),
    empty="""There are no servers yet.

a  adds one: an address, a package, or a name that `multitap search` finds
i  imports those of Claude, Cursor, VS Code, Codex and other clients""",
)
CALLS = ScreenPlace(
    name="calls",
    title="Calls",
    header=("AT", "SERVER", "TOOL", "STATUS", "TOOK", "WHERE TIME WENT", "CLIENT", "NOTE"),
    spare=("AT", "CLIENT"),
    drawn=("WHERE TIME WENT",),
    verbs=frozenset({"replay", "compare"}),
    empty="""There are no calls yet. They appear here as clients make them.

3  goes to Tools, where c calls one""",
)
TOOLS = ScreenPlace(
    name="tools",
    title="Tools",
    header=("TOOL", "SERVER", "TOKENS", "DESCRIPTION"),
    spare=("SERVER", "TOKENS"),
    verbs=frozenset({"call"}),
    empty="""No server offers a tool.

1  goes to Servers, where a adds one and l shows what one wrote""",
)
CLIENTS = ScreenPlace(
    name="clients",
    title="Clients",
    header=("CLIENT", "VERSION", "ERA", "PROFILE", "TOKEN", "CALLS", "BUSY", "CAN BE ASKED"),
    spare=("VERSION", "TOKEN", "BUSY"),
    verbs=frozenset({"calls"}),
    empty="""No client is connected.

`multitap install CLIENT` gives a client all of your servers""",
)
ACCESS = ScreenPlace(
    name="access",
    title="Access",
    header=("KIND", "NAME", "STATE", "NOTE"),
    verbs=frozenset({"revoke", "new"}),
    empty="""There are no tokens, no questions, and nothing to review.

n  creates a token, which lets a client in from another machine""",
)
LOG = ScreenPlace(
    name="log",
    title="Log",
    header=("TIME", "LEVEL", "SERVER", "WHAT"),
    empty="Nothing has happened yet.",
)
TASKS = ScreenPlace(
    name="tasks",
    title="Tasks",
    header=("BEGUN", "TOOL", "SERVER", "STATUS", "LASTS", "FOR", "NOTE"),
    spare=("BEGUN", "SERVER", "FOR"),
    verbs=frozenset({"cancel"}),
    empty="""There are no tasks: calls that run by themselves. They are kept for an hour.

`multitap call --detach TOOL` starts one""",
)
PLACES = (SERVERS, CALLS, TOOLS, CLIENTS, ACCESS, LOG, TASKS)

KEYS = (
    ("a", "add", "Add"),
    ("i", "import", "Import"),
    ("r", "restart", "Restart"),
    ("r", "replay", "Replay"),
    ("e", "switch", "On/off"),
    ("o", "login", "Log in"),
    ("l", "log", "Log"),
    ("t", "tools", "Tools"),
    ("T", "trust", "Trust"),
    ("d", "compare", "Compare"),
    ("c", "call", "Call"),
    ("c", "calls", "Its calls"),
    ("x", "revoke", "Revoke"),
    ("x", "cancel", "Cancel"),
    ("n", "new", "New token"),
)
"""Key, verb and label; two verbs share a key if no place has both."""
WITHOUT_ROW = frozenset({"add", "import", "trust", "new"})
"""Verbs that need no row."""


def place_named(name: str) -> ScreenPlace:
    return next(place for place in PLACES if place.name == name)


BAR = 16
"""Cells of the time bar of a call."""
_SPARK = 12
_HELPS = {
    "r": "press r to restart it, l to see what it wrote",
    "o": "press o to log in",
    "e": "press e to enable it",
    "T": "press T to review its project and trust it",
}


def server_lines(rows: Sequence[ServerRow], recent: RecentCalls) -> list[Row]:
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
        counted(row.tools, "tool") if row.tools else "",
        counted(row.tokens, "token") if row.tokens else "",
        row.shaped,
        counted(row.calls, "call") if row.calls else "",
        f"p95 {duration(row.p95)}" if row.p95 else "",
        f"restarted {counted(row.restarts, 'time')}" if row.restarts else "",
        f"health check {duration(row.latency)}" if row.latency else "",
        f"{row.era} era" if row.era else "",
        row.transport,
        f"confinement {row.level}: {row.confinement}" if row.level else "",
    )
    lines = (row.reason, row.fix, _HELPS.get(row.key), ", ".join(filter(None, facts)))
    return "\n".join(filter(None, lines))


MOST_SHOWN = 12
"""Tools and calls of one server beside the list of a wide terminal."""


def server_story(row: ServerRow, tools: Iterable[ToolLine], calls: Iterable[CallRecord]) -> str:
    """The tools and the latest calls of a server, for a wide terminal."""
    own = [
        f"{tool.tool}  {_first_line(tool.description)}" for tool in tools if tool.server == row.name
    ]
    latest = [
        f"{_clock(call.at)}  {call.tool}  {call.outcome.value}  {duration(call.seconds)}"
        # by key, because a call may be a recent and a stored one
        for call in {call_key(call): call for call in calls if call.server == row.name}.values()
    ]
    parts = [("TOOLS", own), ("LATEST CALLS", latest)]
    return "".join(
        "\n".join(("\n", title, *lines[:MOST_SHOWN], *_rest(lines)))
        for title, lines in parts
        if lines
    )


def _rest(lines: Sequence[str]) -> Iterator[str]:
    if len(lines) > MOST_SHOWN:
        yield f"and {len(lines) - MOST_SHOWN:,} more"


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")


def tool_story(tool: ToolLine) -> str:
    """What a tool does and takes."""
    schema = json.dumps(tool.input_schema, indent=2, ensure_ascii=False)
    return f"{tool.description}\n\n{schema}"


def call_lines(records: Iterable[CallRecord], passes: Callable[[CallRecord], bool]) -> list[Row]:
    """Calls, newest first, without duplicates."""
    by_key = {call_key(record): record for record in records if passes(record)}
    # one scale for all bars, so that they can be compared
    longest = max((record.seconds for record in by_key.values()), default=0.0)
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
        for key, record in by_key.items()
    ]


def call_key(record: CallRecord) -> str:
    # calls have no id; two of one tool do not end in the same microsecond
    return f"{record.at:.6f} {record.server} {record.tool}"


def call_words(record: CallRecord) -> str:
    """Who called what, and where the time went."""
    who = record.client or record.agent
    return "\n".join(
        filter(
            None,
            (
                phases(record).words,
                f"for {who}" if who else "",
                f"trace {record.trace}" if record.trace else "",
                record.error,
            ),
        )
    )


def phases(record: CallRecord) -> Phases:
    return Phases.of(record.seconds, record.queued, record.connecting, record.encoding)


def tool_lines(tools: Iterable[ToolLine]) -> list[Row]:
    return [
        Row(
            tool.name,
            (tool.name, tool.server, _number(token_cost(tool)), tool.description),
        )
        for tool in tools
    ]


def client_lines(clients: Iterable[ClientRow]) -> list[Row]:
    return [
        Row(
            # several clients may have the same name
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
    return f"{profile}{counted(client.calls, 'call')} seen; called last: {last}"


def log_lines(activities: Iterable[Activity]) -> list[Row]:
    """Events, newest first."""
    return [
        Row(
            # events have no id; two of the same moment differ in their texts
            f"{activity.at:.6f} {activity.text[:40]}",
            (_clock(activity.at), activity.level, activity.server or "", printable(activity.text)),
            _tone(activity.level),
        )
        for activity in activities
    ]


def task_lines(tasks: Iterable[TaskLine]) -> list[Row]:
    """Tasks, newest first."""
    return [
        Row(
            task.id,
            (
                _clock(task.created),
                task.name,
                task.server,
                task.status.replace("_", " "),
                duration(task_seconds(task)),
                task.caller,
                task.message or "",
            ),
            task_tone(task.status),
        )
        for task in tasks
    ]


def task_words(task: TaskLine) -> str:
    """Whose task it is, and what it says."""
    return "\n".join(filter(None, (f"task {task.id}, for {task.caller}", task.message)))


def task_fields(task: TaskLine) -> Mapping[str, object]:
    """The fields for a `RecordFilter`."""
    return {
        "server": task.server,
        "tool": task.name,
        "status": task.status,
        "client": task.caller,
        "kind": "task",
        "text": task.message or "",
    }


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


AccessItem = OpenQuestion | PinReview | TokenLine | AuditRow

_KINDS = {"policy": "policy question", "server": "question"}


def access_items(view: LiveView, record_filter: RecordFilter) -> Iterator[tuple[str, AccessItem]]:
    """All items by their keys, those that wait for the person first."""
    items: tuple[AccessItem, ...] = (
        *view.questions,
        *view.access.pins,
        *view.access.tokens,
        *view.audit,
    )
    for item in items:
        if record_filter.matches(_fields(item)):
            yield access_key(item), item


def access_key(item: AccessItem) -> str:
    # the cursor follows the key, so it must not depend on the position in the list
    match item:
        case OpenQuestion():
            return f"question {item.number}"
        case PinReview():
            return f"pins {item.server}"
        case TokenLine():
            return f"token {item.id}"
        case AuditRow():
            return f"audit {item.entry}"


def access_row(key: str, item: AccessItem) -> Row:
    """One item as a row."""
    match item:
        case OpenQuestion():
            cells = (_KINDS[item.kind], item.server, f"asked {_ago(item.asked)}", message_of(item))
            return Row(key, cells, "warning")
        case PinReview():
            changed = ", ".join(f"{tool.tool} ({tool.change})" for tool in item.tools)
            return Row(key, ("changed tools", item.server, "to review", changed), "warning")
        case TokenLine():
            used = f"used {_ago(item.last_use)}" if item.last_use else "never used"
            return Row(key, ("token", item.name, item.state, f"{token_rights(item)}, {used}"))
        case AuditRow():
            record = item.record
            state = " ".join(filter(None, (record.decision, record.outcome)))
            return Row(key, ("audit", _date_and_time(record.at), state, f"{item.what} {item.who}"))


def access_words(item: AccessItem) -> str:
    """The text below the list about one item."""
    match item:
        case OpenQuestion():
            who = f"for {item.client}\n" if item.client else ""
            return f"{who}{message_of(item)}\npress Enter to answer"
        case PinReview():
            return f"{item.server} no longer offers what you relied on\npress Enter to review"
        case TokenLine():
            expires = _date_and_time(item.expires) if item.expires else "never"
            return f"id {item.id}, {token_rights(item)}, expires {expires}; x revokes it"
        case AuditRow():
            return f"entry {item.entry}: {item.record.detail or item.what}"


def review_text(review: PinReview) -> str:
    """Everything that a person needs to see before accepting it."""
    parts = [review.package] if review.package else []
    for tool in review.tools:
        parts += [f"{tool.tool} ({tool.change})", *(f"  {line}" for line in tool.difference)]
        parts += [f"  ! {finding}" for finding in tool.findings]
    return "\n".join(parts)


def message_of(question: OpenQuestion) -> str:
    """The text of a question."""
    params: Mapping[str, object] = msgspec.json.decode(question.params)
    if question.method == "sampling/createMessage":
        return "asks for a model's answer"
    return str(params.get("message") or question.method)


def token_rights(token: TokenLine) -> str:
    """The rights of a token."""
    if token.is_console:
        return "web console"
    rights = f"tools {', '.join(token.allow)}" if token.allow else "all tools"
    profile = f"profile {token.profile}" if token.profile else ""
    return ", ".join(filter(None, (profile, rights, token.rate)))


def _fields(item: AccessItem) -> Mapping[str, object]:
    """The fields for a `RecordFilter`."""
    match item:
        case OpenQuestion():
            return {"kind": "question", "server": item.server, "client": item.client}
        case PinReview():
            return {"kind": "pin", "server": item.server}
        case TokenLine():
            return {"kind": "token", "status": item.state, "text": f"{item.name} {item.id}"}
        case AuditRow():
            record = item.record
            return {
                "kind": record.kind,
                "server": record.server,
                "tool": record.tool,
                "client": record.client,
                "status": record.outcome,
                "text": f"{item.what} {item.who} {record.detail}",
                "at": record.at,
            }


def _date_and_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _ago(at: float) -> str:
    seconds = max(0.0, time.time() - at)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
