"""What both front ends show: the rows of each place, the action each row needs, durations."""

import shlex
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from multitap.control.messages import ClientFigures, Figures, GatewayState, TaskLine, ToolLine
from multitap.control.overview import Pulse
from multitap.errors import counted
from multitap.events import LinkState, ServerSnapshot, Withheld, pending_words
from multitap.hub.metrics import Stats
from multitap.store.tables import Activity, CallRecord

Tone = Literal["quiet", "normal", "warning", "error"]
"""How much attention a row needs; success is quiet."""
MOST_RECENT = 500
"""Calls that a screen keeps."""
MOST_CLIENTS = 200
"""Clients whose calls a screen counts."""
MOST_TOOLS = 200
"""Tools of one client that it counts."""
MOST_STDERR = 100
"""Lines of a server's standard error that the log shows."""
SPARK = 30
"""Seconds of the past that a sparkline shows."""

_STAMP = len("2026-01-31 12:00:00")
_BAD: Mapping[str, Tone] = {
    "error": "warning",
    "refused": "warning",
    "failed": "error",
    "timeout": "error",
    "cancelled": "quiet",
}


class ServerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One server as a line."""

    name: str
    state: str
    tone: Tone
    reason: str = ""
    """What is wrong with it."""
    fix: str = ""
    """What to do about it, if a key is not enough."""
    key: str = ""
    """The key that may help: `r` restarts, `o` logs in, `e` enables, `T` shows its project."""
    tools: int = 0
    tokens: int = 0
    shaped: str = ""
    """What shaping saved of its results."""
    calls: int = 0
    errors: int = 0
    p95: float | None = None
    latency: float | None = None
    restarts: int = 0
    era: str = ""
    transport: str = ""
    level: str = ""
    """How its program is confined: `off`, `guard`, `strict` or `container`."""
    confinement: str = ""
    """Why."""
    project: str = ""
    """The folder of the project that has to be trusted first."""

    @property
    def fields(self) -> Mapping[str, object]:
        """The fields for a `RecordFilter`."""
        return {"server": self.name, "status": self.state, "kind": "server", "text": self.reason}


def server_rows(
    gateway: GatewayState, figures: Figures | None, tokens: Mapping[str, int]
) -> tuple[ServerRow, ...]:
    """All servers, also those that are not trusted; those that need attention first."""
    withheld = {part.name: part for part in gateway.snapshot.withheld if part.kind == "server"}
    rows = [
        _as_before(_server(server, gateway, figures, tokens), withheld.pop(server.name, None))
        for server in gateway.snapshot.servers
    ]
    rows += map(_untrusted_row, withheld.values())
    return tuple(sorted(rows, key=lambda row: (row.tone != "error", row.tone != "warning")))


def _untrusted_row(part: Withheld) -> ServerRow:
    state = "changed" if part.changed else "not trusted"
    fix = trust_command(part.project)
    return ServerRow(
        name=part.name,
        state=state,
        tone="warning",
        reason=f"it {part.reason}",
        fix=fix,
        key="T",
        project=part.project,
    )


def trust_command(project: str) -> str:
    """What to do about an untrusted project, for a person who may be in another folder."""
    return f"run `multitap trust {shlex.quote(project)}`"


def _as_before(row: ServerRow, part: Withheld | None) -> ServerRow:
    """A server that runs with its trusted configuration, although the file has changed."""
    if part is None:
        return row
    reason = "; ".join(filter(None, (f"it {part.reason}", row.reason)))
    return msgspec.structs.replace(
        row,
        tone="warning",
        reason=reason,
        fix=trust_command(part.project),
        key="T",
        project=part.project,
    )


def _server(
    server: ServerSnapshot,
    gateway: GatewayState,
    figures: Figures | None,
    tokens: Mapping[str, int],
) -> ServerRow:
    state, tone, reason, fix, key = _condition(server, asleep=server.name in gateway.asleep)
    traffic = figures.servers.get(server.name) if figures else None
    return ServerRow(
        name=server.name,
        state=state,
        tone=tone,
        reason=reason,
        fix=fix,
        key=key,
        tools=server.tools,
        tokens=tokens.get(server.name, 0),
        shaped=traffic.shaped.words if traffic else "",
        calls=traffic.total.calls if traffic else 0,
        errors=traffic.total.errors if traffic else 0,
        p95=traffic.total.p95 if traffic else None,
        latency=server.latency,
        restarts=max(0, server.starts - 1),
        era=server.era or "",
        transport=server.transport,
        level=server.sandbox.level if server.sandbox else "",
        confinement=server.sandbox.reason if server.sandbox else "",
    )


def _condition(  # noqa: PLR0911 - one line per state
    server: ServerSnapshot, *, asleep: bool
) -> tuple[str, Tone, str, str, str]:
    """State, tone, reason, what to do, and the key for it."""
    failure = server.failure
    hint = failure.hint or "" if failure else ""
    if "multitap log" in hint:  # a screen has a key for that
        hint = ""
    if asleep:
        return "asleep", "quiet", "it starts on the first call", "", ""
    match server.state:
        case LinkState.CONNECTED if server.pending:
            return "connected", "warning", pending_words(server.pending), "", "r"
        case LinkState.CONNECTED:
            return "connected", "quiet", next(iter(server.warnings), ""), "", ""
        case LinkState.DISABLED:
            return "disabled", "quiet", "", "", "e"
        case LinkState.NEEDS_AUTH:
            return "needs auth", "warning", str(failure or ""), hint, "o"
        # after a failure, the reason stays in sight until a start succeeds
        case LinkState.CONNECTING if failure is None:
            return "connecting", "normal", "", "", ""
        case LinkState.DISCONNECTED if failure is None:
            return "waiting", "normal", "it is waiting for its turn to start", "", ""
        case _:
            return "error", "error", str(failure), hint, "r"


class ClientRow(msgspec.Struct, frozen=True, kw_only=True):
    """One client as a line."""

    caller: str
    """Its name in the records of its calls."""
    name: str
    version: str = ""
    era: str = "stateless"
    profile: str = ""
    principal: str = ""
    capabilities: tuple[str, ...] = ()
    """The kinds of questions that it can answer."""
    requests: int = 0
    """Calls in progress."""
    calls: int = 0
    """Calls made while the screen is open."""
    tools: tuple[str, ...] = ()
    """The tools it called last, the latest first."""
    kind: Literal["client", "agent"] = "client"
    """Its name in the filter language."""

    @property
    def fields(self) -> Mapping[str, object]:
        """The fields for a `RecordFilter`."""
        return {"client": self.caller, "kind": "client", "text": " ".join(self.tools)}


def client_rows(figures: Figures | None, recent: "RecentCalls") -> tuple[ClientRow, ...]:
    """All clients: those with a session, then those that are known only by their calls."""
    connected = [_client(client, recent) for client in (figures.clients if figures else ())]
    callers = {row.caller for row in connected}
    others = (
        ClientRow(
            caller=caller,
            name=caller,
            calls=seen.total(),
            tools=tuple(reversed(seen)),
            kind="agent" if caller in recent.agents else "client",
        )
        for caller, seen in recent.by_client.items()
        if caller not in callers
    )
    return (*connected, *others)


def _client(client: ClientFigures, recent: "RecentCalls") -> ClientRow:
    name = " ".join(filter(None, (client.name, client.version)))
    caller = f"{name} ({client.principal})" if name and client.principal else name
    caller = caller or client.principal
    seen = recent.by_client.get(caller, Counter[str]())
    return ClientRow(
        caller=caller,
        name=client.name or "(unnamed)",
        version=client.version,
        era=client.protocol_version,
        profile=client.profile or "",
        principal=client.label,
        capabilities=client.capabilities,
        requests=client.requests,
        calls=seen.total(),
        tools=tuple(reversed(seen)),
    )


def call_tone(record: CallRecord) -> Tone:
    return _BAD.get(record.outcome.value, "quiet")


def task_tone(status: str) -> Tone:
    tones: Mapping[str, Tone] = {"failed": "error", "input_required": "warning"}
    return tones.get(status, "normal" if status == "working" else "quiet")


def task_seconds(task: TaskLine) -> float:
    """How long a task has run: until now, or until its end."""
    is_open = task.status in {"working", "input_required"}
    return max(0.0, (time.time() if is_open else task.updated) - task.created)


def stderr_lines(server: str, output: str) -> Iterator[Activity]:
    """A server's standard error as log entries; its lines begin with their time."""
    for line in output.splitlines()[-MOST_STDERR:]:
        try:
            at = time.mktime(time.strptime(line[:_STAMP], "%Y-%m-%d %H:%M:%S"))
        except ValueError:
            continue  # the rest of a line that was cut
        text = f"stderr: {line[_STAMP:].strip()}"
        yield Activity(at=at, level="info", kind="server", server=server, text=text)


def token_costs(tools: Iterable[ToolLine]) -> Mapping[str, int]:
    """The approximate tokens of each server's tool definitions in a model's context."""
    costs: dict[str, int] = defaultdict(int)
    for tool in tools:
        costs[tool.server] += token_cost(tool)
    return costs


def token_cost(tool: ToolLine) -> int:
    """The same for one tool."""
    # it imports the formats of all model providers, and a gateway may never show its page
    from multitap.tools.providers.offers import estimate_tokens  # noqa: PLC0415 - see above

    return estimate_tokens(
        {
            "name": tool.name,
            "description": tool.description,
            "input_schema": tool.input_schema,
        }
    )


class RecentCalls:
    """The calls that a screen knows, and the speed of each server over time."""

    def __init__(self) -> None:
        self.made: int = 0
        """The exact number of calls of the gateway, even if not every one is shown."""
        self.in_flight: int = 0
        self.records: deque[CallRecord] = deque(maxlen=MOST_RECENT)
        self.by_client: dict[str, Counter[str]] = {}
        """How often each client called which tool, as far as this screen has seen it."""
        self.agents: set[str] = set()
        """The callers that are agents of this process, not clients."""
        self._times: dict[str, dict[int, float]] = defaultdict(dict)

    def take(self, pulse: Pulse) -> bool:
        """Add a pulse; returns whether anything is new."""
        if pulse.made < self.made:  # another gateway has replaced it
            self.records.clear()
        is_new = pulse.made != self.made or pulse.in_flight != self.in_flight
        self.made, self.in_flight = pulse.made, pulse.in_flight
        for record in pulse.records:
            self.records.append(record)
            self._count(record)
            by_second = self._times[record.server]
            second = int(record.at)
            by_second[second] = max(by_second.get(second, 0.0), record.seconds)
        self._forget()
        return is_new

    def speed(self, server: str) -> tuple[float | None, ...]:
        """The slowest call of each of the last seconds; None if there was none."""
        by_second, now = self._times.get(server, {}), int(time.time())
        return tuple(by_second.get(second) for second in range(now - SPARK + 1, now + 1))

    def _count(self, record: CallRecord) -> None:
        if (caller := record.client or record.agent) is None:
            return
        if record.client is None and len(self.agents) < MOST_CLIENTS:
            self.agents.add(caller)
        if caller not in self.by_client and len(self.by_client) >= MOST_CLIENTS:
            del self.by_client[next(iter(self.by_client))]  # clients choose their own names
        by_tool = self.by_client.setdefault(caller, Counter())
        tool = f"{record.server} {record.tool}"
        by_tool[tool] = by_tool.pop(tool, 0) + 1  # last, because it is the latest
        if len(by_tool) > MOST_TOOLS:
            del by_tool[next(iter(by_tool))]

    def _forget(self) -> None:
        oldest = int(time.time()) - SPARK
        for by_second in self._times.values():
            for second in [second for second in by_second if second < oldest]:
                del by_second[second]


_SPARKS = "▁▂▃▄▅▆▇█"
_PHASES = (("queue", "░"), ("connect", "▒"), ("server", "█"), ("encode", "▓"))


class Phases(msgspec.Struct, frozen=True):
    """Where the time of a call went, in seconds."""

    queue: float
    connect: float
    server: float
    encode: float

    @classmethod
    def of(cls, total: float, queue: float, connect: float, encode: float) -> "Phases":
        """The phases of a call; what is left of the total is the server's."""
        return cls(queue, connect, max(0.0, total - queue - connect - encode), encode)

    @property
    def words(self) -> str:
        """The duration of each phase with its bar character; phases without time are left out."""
        durations = ((f"{block} {name}", getattr(self, name)) for name, block in _PHASES)
        return " | ".join(f"{name} {duration(seconds)}" for name, seconds in durations if seconds)


def bar(phases: Phases, longest: float, width: int) -> str:
    """The phases side by side, on a scale on which `longest` fills the width."""
    if longest <= 0:
        return ""
    drawn, upto, text = 0.0, 0, ""
    for name, block in _PHASES:
        # the sum is rounded, not each phase, so that the bar has its whole length
        drawn += getattr(phases, name)
        end = min(width, round(drawn / longest * width))
        text += block * (end - upto)
        upto = max(upto, end)
    # shorter than a cell, but not nothing
    return text or "▏"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """A sparkline of the last values, scaled to the largest; a gap for missing ones."""
    latest = values[-width:]
    numbers = [value for value in latest if value is not None]
    if not numbers:
        return ""
    top = max(numbers) or 1.0
    return "".join(
        # a little less than 8, so that the largest value gets the last of the eight steps
        " " if value is None else _SPARKS[min(7, int(value / top * 7.999))]
        for value in latest
    )


def duration(seconds: float | None) -> str:
    """A duration with about three digits."""
    if seconds is None:
        return "-"
    # what would be rounded to a thousand is one of the next unit
    if seconds < 0.0009995:  # noqa: PLR2004
        return f"{seconds * 1_000_000:.0f} µs"
    if seconds < 0.9995:  # noqa: PLR2004
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 60 else f"{seconds / 60:.0f} min"  # noqa: PLR2004


def stats_words(servers: Mapping[str, Stats]) -> str:
    """Calls, errors and times of each server, a line each."""
    return "\n".join(
        f"{name}: {counted(stats.calls, 'call')}, {counted(stats.errors, 'error')}, "
        f"p50 {duration(stats.p50)}, p95 {duration(stats.p95)}, p99 {duration(stats.p99)}"
        for name, stats in sorted(servers.items())
    )
