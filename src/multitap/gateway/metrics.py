"""What monitoring measures of a gateway besides the calls that its hub counts."""

import os
import resource
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from multitap.catalog.catalog import Catalog, Tool
from multitap.errors import MultitapError
from multitap.events import LinkState
from multitap.gateway import client_errors
from multitap.gateway.traces import NO_ERRORS
from multitap.hub.metrics import (
    CALL_FAMILIES,
    MAX_TOOLS,
    OTHER,
    REJECTED,
    SERVER_OPERATION,
    Metrics,
)
from multitap.telemetry.metrics import (
    BYTES_PER_TOKEN,
    OPERATION_BOUNDS,
    Family,
    Histogram,
    Samples,
    add_up,
)
from multitap.upstream.link import Link
from multitap.upstream.spans import TRANSPORTS
from multitap.wire.jsonrpc import RpcError

if TYPE_CHECKING:
    from multitap.gateway.view import View
    from multitap.hub.hub import Hub

_SESSION = Family(
    name="mcp_server_session_duration_seconds",
    kind="histogram",
    help="How long sessions of clients lasted that have ended.",
    labels=("mcp_protocol_version", "network_transport"),
    bounds=OPERATION_BOUNDS,
)
_LINK_SESSION = Family(
    name="mcp_client_session_duration_seconds",
    kind="histogram",
    help="How long sessions with servers lasted that have ended.",
    labels=("server",),
    bounds=OPERATION_BOUNDS,
)
_REQUESTS = Family(
    name="multitap_rejected_requests_total",
    kind="counter",
    help="HTTP requests that were not admitted, by reason.",
    labels=("reason",),
)
_REFRESHES = Family(
    name="multitap_login_refreshes_total",
    kind="counter",
    help="Attempts to renew the login at a server.",
    labels=("server", "outcome"),
)


_SPANS = Family(
    name="multitap_spans_total",
    kind="counter",
    help="Spans of traces for the collector, by what became of them.",
    labels=("outcome",),
)
_UNRECORDED = Family(
    name="multitap_unrecorded_requests_total",
    kind="counter",
    help="Requests that were not traced because too many were at the time.",
)


def _gauge(name: str, text: str, *labels: str, is_common: bool = False) -> Family:
    return Family(name=name, kind="gauge", help=text, labels=labels, is_common=is_common)


_UP = _gauge("multitap_server_up", "Whether a server can be called.", "server", is_common=True)
_INFO = _gauge(
    "multitap_server_info",
    "How a server is connected; always 1.",
    *("server", "network_transport", "mcp_protocol_version"),
    is_common=True,
)
_RESTARTS = Family(
    name="multitap_server_restarts_total",
    kind="counter",
    help="How often a server was started or connected again.",
    labels=("server",),
    is_common=True,
)
_IN_FLIGHT = _gauge("multitap_server_calls_in_flight", "Requests a server works on.", "server")
_QUEUE = _gauge("multitap_server_queue_length", "Requests that wait for a server.", "server")
_TOOLS = _gauge("multitap_server_tools", "Tools of a server.", "server", is_common=True)
_LIST_TOKENS = _gauge(
    "multitap_list_tokens",
    "About how many tokens the tools of a server take in a model's context.",
    "server",
    is_common=True,
)
_SHAPED_LABELS = ("server", "gen_ai_tool_name")
_SHAPED = Family(
    name="multitap_shaped_results_total",
    kind="counter",
    help="Results that were shaped for models.",
    labels=_SHAPED_LABELS,
)
_BEFORE = Family(
    name="multitap_shaped_result_bytes_before_total",
    kind="counter",
    help="Bytes of the texts of shaped results, before.",
    labels=_SHAPED_LABELS,
)
_AFTER = Family(
    name="multitap_shaped_result_bytes_after_total",
    kind="counter",
    help="Bytes of the texts of shaped results, after.",
    labels=_SHAPED_LABELS,
)
_SESSIONS = _gauge("multitap_sessions", "Open sessions of clients.")
_WAITING = _gauge("multitap_waiting_calls", "Calls that wait for their client to return.")
_PRIVATE = _gauge("multitap_private_links", "Connections to servers for single clients.")
_MISSING = _gauge("multitap_missing_workers", "Workers that are missing from these figures.")
_APPROVALS = _gauge("multitap_approvals_waiting", "Calls that wait for a person's approval.")
_CPU = Family(
    name="process_cpu_seconds_total", kind="counter", help="CPU time of the gateway's processes."
)
_MEMORY = _gauge("process_resident_memory_bytes", "Memory of the gateway's processes.")
_FILES = _gauge("process_open_fds", "Files that the gateway's processes have open.")
_MOST_FILES = _gauge("process_max_fds", "Files that each process may open.", is_common=True)
_STARTED = _gauge("process_start_time_seconds", "When the gateway started.", is_common=True)
FAMILIES = (
    *CALL_FAMILIES,
    *(_SESSION, _LINK_SESSION, _UP, _INFO, _RESTARTS, _IN_FLIGHT, _QUEUE, _TOOLS, _LIST_TOKENS),
    *(_SHAPED, _BEFORE, _AFTER),
    *(_SESSIONS, _WAITING, _PRIVATE, _MISSING, _APPROVALS, _REQUESTS, _REFRESHES),
    *(_SPANS, _UNRECORDED),
    *(_CPU, _MEMORY, _FILES, _MOST_FILES, _STARTED),
)
"""Everything that `/metrics` shows."""

_OTHER = "_OTHER"
_METHODS = frozenset(
    {
        *("initialize", "ping", "server/discover", "logging/setLevel", "completion/complete"),
        *("tools/list", "prompts/list", "prompts/get", "resources/list", "resources/read"),
        *("resources/templates/list", "resources/subscribe", "resources/unsubscribe"),
        "subscriptions/listen",
    }
)
"""Methods that become labels: clients may invent any others."""
_ERRORS = frozenset(
    {
        *(client_errors.INTERNAL, client_errors.UNAVAILABLE, client_errors.TIMEOUT),
        *(client_errors.CANCELLED, client_errors.OVERLOADED, client_errors.BAD_ANSWER),
    }
)
"""Codes that become labels: servers may invent any others."""
_REASONS: Mapping[int, str] = {
    400: "malformed",
    401: "token",
    403: "forbidden",
    408: "slow",
    413: "too_large",
    421: "host",
    429: "rate",
    431: "too_large",
    503: "overloaded",
}
"""Why requests are not admitted, by the status of the response."""
_STATUS = Path("/proc/self/statm")
_OPEN = "/proc/self/fd"


class GatewayMetrics:
    """Counts what clients request besides calls, and looks at everything else when asked."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self._requests: dict[tuple[str, str], Histogram] = {}
        self._sessions: dict[tuple[str, str], Histogram] = {}
        self.rejections: Mapping[int, int] = {}
        """How many HTTP requests were not admitted, by status; set by the front."""
        self._started = time.time()
        self._shaped: dict[tuple[str, str], list[int]] = {}
        self._rejected: dict[str, int] = {}

    def on_shaped(self, tool: Tool, before: int, after: int) -> None:
        """Count a shaped result, by the bytes of its text."""
        key = (tool.server, tool.raw_name)
        # servers choose the names
        if key not in self._shaped and len(self._shaped) >= MAX_TOOLS:
            key = (tool.server, OTHER)
        counts = self._shaped.setdefault(key, [0, 0, 0])
        for place, amount in enumerate((1, before, after)):
            counts[place] += amount

    def on_rejected(self, reason: str) -> None:
        """Count a call that got no further than to us; the hub counts the others."""
        self._rejected[reason] = self._rejected.get(reason, 0) + 1

    def on_request(self, method: str, seconds: float, exc: BaseException | None) -> None:
        """Count an answered request other than a call."""
        key = (method if method in _METHODS else _OTHER, _error_type(exc))
        _observe(self._requests, key, seconds)

    def on_session(self, version: str, seconds: float) -> None:
        """Count a session over HTTP that has ended."""
        _observe(self._sessions, (version, "tcp"), seconds)

    def samples(self) -> Samples:
        """Everything that this process has measured, except of calls."""
        samples: Samples = {
            SERVER_OPERATION.name: [
                ((method, "", "", error), histogram)
                for (method, error), histogram in self._requests.items()
            ],
            _SESSION.name: [*self._sessions.items()],
            REJECTED.name: [(("", reason), count) for reason, count in self._rejected.items()],
            _APPROVALS.name: [((), self._hub.calls.permissions.waiting)],
            _CPU.name: [((), sum(os.times()[:2]))],
            _STARTED.name: [((), self._started)],
            _REQUESTS.name: [
                ((_REASONS.get(status, "other"),), count)
                for status, count in self.rejections.items()
            ],
        }
        for place, family in enumerate((_SHAPED, _BEFORE, _AFTER)):
            samples[family.name] = [(key, counts[place]) for key, counts in self._shaped.items()]
        if (logins := self._hub.logins) is not None:
            samples[_REFRESHES.name] = [
                ((server, outcome), count) for server, outcome, count in logins.refreshes()
            ]
        if (spans := self._hub.spans) is not None:
            samples[_UNRECORDED.name] = [((), spans.unrecorded)]
            if (sink := spans.sink) is not None:
                samples[_SPANS.name] = [(("sent",), sink.exported), (("lost",), sink.lost)]
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        samples[_MOST_FILES.name] = [((), most)]
        try:
            pages = int(_STATUS.read_text(encoding="ascii").split()[1])
            samples[_MEMORY.name] = [((), pages * resource.getpagesize())]
            samples[_FILES.name] = [((), len(os.listdir(_OPEN)))]  # noqa: PTH208 - only counted
        except OSError:  # not Linux, or no descriptor is left
            pass
        for link in self._hub.links.values():
            if link.state is not LinkState.DISABLED:
                _add_server(samples, link)
        return samples


def shaped_tokens(samples: Samples) -> dict[str, tuple[int, int, int]]:
    """The shaped results of each server: their number, and estimated tokens before and after."""
    sums: dict[str, list[float]] = {}
    for place, family in enumerate((_SHAPED, _BEFORE, _AFTER)):
        for labels, value in samples.get(family.name, ()):
            if not isinstance(value, Histogram):
                sums.setdefault(labels[0], [0.0, 0.0, 0.0])[place] += value
    return {
        server: (round(count), round(before / BYTES_PER_TOKEN), round(after / BYTES_PER_TOKEN))
        for server, (count, before, after) in sums.items()
    }


def _add_server(samples: Samples, link: Link) -> None:
    def add(family: Family, value: float | Histogram, *labels: str) -> None:
        samples.setdefault(family.name, []).append(((link.name, *labels), value))

    is_up = link.state is LinkState.CONNECTED or link.availability.is_asleep
    add(_UP, int(is_up))
    if (session := link.session) is not None:
        add(_INFO, 1, TRANSPORTS.get(session.wire.kind, ""), session.protocol_version)
    add(_RESTARTS, max(link.starts - 1, 0))
    add(_IN_FLIGHT, link.requests.slots.working)
    add(_QUEUE, link.requests.slots.waiting)
    if link.past_sessions is not None:
        add(_LINK_SESSION, link.past_sessions)


def _observe(
    histograms: dict[tuple[str, str], Histogram], key: tuple[str, str], seconds: float
) -> None:
    if (histogram := histograms.get(key)) is None:
        histogram = histograms[key] = Histogram.empty(OPERATION_BOUNDS)
    histogram.observe(seconds, OPERATION_BOUNDS)


def _error_type(exc: BaseException | None) -> str:
    if exc is None:
        return ""
    if not isinstance(exc, Exception):
        return "cancelled"
    if isinstance(exc, MultitapError):
        exc = client_errors.refusal_of(exc)
    if not isinstance(exc, RpcError):
        return _OTHER
    if exc.code in NO_ERRORS:
        return ""
    return str(exc.code) if exc.code in _ERRORS else _OTHER


class Gauges(msgspec.Struct, frozen=True):
    """The clients of a gateway now, of all its workers together."""

    sessions: int
    waiting: int
    private_links: int
    missing_workers: int | None = None
    """None if there is only one process."""

    def samples(self) -> Samples:
        numbers = {
            _SESSIONS: self.sessions,
            _WAITING: self.waiting,
            _PRIVATE: self.private_links,
            # the counters fall while one is missing, which looks like a restart
            _MISSING: self.missing_workers,
        }
        return {
            family.name: [((), number)] for family, number in numbers.items() if number is not None
        }


class ShownMetrics:
    """Chooses what a reader may see of all samples."""

    def __init__(self) -> None:
        self._costs: tuple[Catalog | None, dict[Tool, float]] = None, {}

    def select(self, view: "View", metrics: Metrics, gauges: Gauges, rest: Samples) -> Samples:
        """The samples for a reader; one with a limited token sees only its servers and tools."""
        catalog = view.catalog
        visible = [tool for tool in _all_tools(catalog) if view.shows(tool)]
        names = {(tool.server, tool.raw_name): tool.name for tool in visible}

        def name(server: str, tool: str) -> str:
            return names.get((server, tool), tool)

        # what has no server label counts all clients, which is not for a limited reader
        if view.is_limited:
            calls = metrics.samples(lambda server, tool: (server, tool) in names, name)
            parts = [calls, _of_tools(rest, names.keys())]
        else:
            parts = [metrics.samples(name=name), rest, gauges.samples()]
        return add_up(FAMILIES, [*parts, self._lists(catalog, visible)])

    def _lists(self, catalog: Catalog, visible: Sequence[Tool]) -> Samples:
        """How many tools each server has, and what they cost in a model's context."""
        # once for each catalog: encoding thousands of schemas would take long for every scrape
        if self._costs[0] is not catalog:
            self._costs = catalog, {tool: _cost(tool) for tool in catalog.tools.values()}
        costs = self._costs[1]
        counts: dict[str, int] = {}
        tokens: dict[str, float] = {}
        for tool in visible:
            if tool in costs:
                counts[tool.server] = counts.get(tool.server, 0) + 1
                tokens[tool.server] = tokens.get(tool.server, 0.0) + costs[tool]
        return {
            _TOOLS.name: [((server,), count) for server, count in counts.items()],
            _LIST_TOKENS.name: [((server,), round(count)) for server, count in tokens.items()],
        }


def _all_tools(catalog: Catalog) -> Sequence[Tool]:
    """The tools that can be called, and those that could be before."""
    return (
        *catalog.tools.values(),
        *catalog.absent.values(),
        *(hidden.tool for hidden in catalog.hidden.values()),
        *(withheld.tool for withheld in catalog.withheld.values()),
    )


def _of_tools(samples: Samples, tools: Collection[tuple[str, str]]) -> Samples:
    """What concerns these tools, by server and the server's own name, and their servers."""
    servers = {server for server, _ in tools}
    selected: Samples = {}
    for family in FAMILIES:
        if "server" not in family.labels:
            continue
        place = family.labels.index("server")
        selected[family.name] = [
            (labels, value)
            for labels, value in samples.get(family.name, ())
            if labels[place] in servers and (family.labels != _SHAPED_LABELS or labels in tools)
        ]
    return selected


def _cost(tool: Tool) -> float:
    read = (tool.name, tool.description, tool.input_schema)
    return len(msgspec.json.encode(read)) / BYTES_PER_TOKEN
