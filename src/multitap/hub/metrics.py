"""Call counts, error counts and latencies per tool, in constant memory."""

import math
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, islice
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from multitap.events import Outcome
from multitap.telemetry.metrics import (
    BYTES_PER_TOKEN,
    OPERATION_BOUNDS,
    OVERHEAD_BOUNDS,
    Family,
    Histogram,
    Samples,
    add_up,
    write_text,
)

if TYPE_CHECKING:
    from multitap.store import CallRecord

__all__ = ["OTHER", "RELATIVE_ERROR", "Metrics", "MetricsRow", "Outcome", "Stats"]

RELATIVE_ERROR = 0.025
"""The relative error of percentiles, for times between a microsecond and an hour."""
OTHER = "(other)"
"""The name under which tools beyond the limit are counted together."""
# Servers choose their tool names, and may choose new ones each time; a tool has histograms of its
# own, and Prometheus keeps about 35 series for each.
MAX_TOOLS = 1000
_LONGEST_ERROR = 500
RECENT = 500
"""How many past calls are kept in memory."""

_SHORTEST = 1e-6
_LONGEST = 3600.0
# the width for which the middle of a bucket is off by RELATIVE_ERROR at most
_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_BUCKETS = [
    _SHORTEST * _GROWTH**bucket
    for bucket in range(math.ceil(math.log(_LONGEST / _SHORTEST) / math.log(_GROWTH)))
]
"""The longest time of each bucket; longer ones than all fall into one more."""
_QUANTILES = (0.5, 0.95, 0.99)
# these say nothing about how fast a server is
_UNTIMED = frozenset({Outcome.CANCELLED, Outcome.REFUSED})
_BAD = frozenset({Outcome.ERROR, Outcome.FAILED, Outcome.TIMEOUT})
_REFUSED = Outcome.REFUSED  # read once: enum attributes are slow
_KIND = attrgetter("server", "tool", "outcome", "failure")
_SECONDS, _ANSWERING = attrgetter("seconds"), attrgetter("answering")
_BYTES_IN, _BYTES_OUT = attrgetter("bytes_in"), attrgetter("bytes_out")
_TRACE, _ERROR = attrgetter("trace"), attrgetter("error")

_CALL_LABELS = ("mcp_method_name", "gen_ai_tool_name", "server", "error_type")
SERVER_OPERATION = Family(
    name="mcp_server_operation_duration_seconds",
    kind="histogram",
    help="How long requests of clients took, from the request to the answer.",
    labels=_CALL_LABELS,
    bounds=OPERATION_BOUNDS,
)
REJECTED = Family(
    name="multitap_rejected_calls_total",
    kind="counter",
    help="Calls that were not made, by reason.",
    labels=("server", "reason"),
)
CALL_FAMILIES = (
    SERVER_OPERATION,
    Family(
        name="mcp_client_operation_duration_seconds",
        kind="histogram",
        help="How long servers took to answer requests of the gateway.",
        labels=_CALL_LABELS,
        bounds=OPERATION_BOUNDS,
    ),
    Family(
        name="multitap_gateway_overhead_seconds",
        kind="histogram",
        help="What the gateway added to calls, from their last byte to that of the answer.",
        labels=("server",),
        bounds=OVERHEAD_BOUNDS,
    ),
    Family(
        name="multitap_argument_bytes_total",
        kind="counter",
        help="Bytes of the arguments of calls.",
        labels=("gen_ai_tool_name", "server"),
    ),
    Family(
        name="multitap_result_bytes_total",
        kind="counter",
        help="Bytes of the results of calls.",
        labels=("gen_ai_tool_name", "server"),
    ),
    Family(
        name="multitap_result_tokens_total",
        kind="counter",
        help="About how many tokens the results of calls took in models' contexts.",
        labels=("server",),
    ),
    REJECTED,
)
"""What is measured of calls; the names of tools are those that clients use."""
ERROR_TYPES: Mapping[str, str] = {
    Outcome.OK: "",
    Outcome.ERROR: "tool_error",
    Outcome.FAILED: "_OTHER",
    Outcome.TIMEOUT: "timeout",
    Outcome.CANCELLED: "cancelled",
    Outcome.REFUSED: "rejected",
}
"""The `error.type` of the MCP conventions of OpenTelemetry, for each outcome; a failed call has
a reason of its own."""


class Stats(msgspec.Struct, frozen=True):
    """The calls of one tool, or of one server's tools together."""

    calls: int
    errors: int
    """Calls that failed or timed out, without cancelled and refused ones."""
    timeouts: int
    bytes_in: int
    """Bytes of answers."""
    bytes_out: int
    """Bytes of arguments."""
    seconds: float
    """The total time of all calls."""
    p50: float | None
    """Seconds; None before the first call that shows the server's speed."""
    p95: float | None
    p99: float | None
    last_error: str | None


class MetricsRow(msgspec.Struct, array_like=True):
    """Counters of one tool; times fall into buckets that grow by a fixed factor."""

    outcomes: dict[Outcome, int] = {}
    buckets: dict[int, int] = {}
    timed: int = 0
    seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    last_error: tuple[float, str] | None = None
    """When it happened, and its message."""
    operations: dict[str, Histogram] = {}
    """How long calls took in total, by outcome; failed ones by the reason."""
    exchanges: dict[str, Histogram] = {}
    """How long the server took to answer those that it received."""
    overhead: Histogram = msgspec.field(default_factory=lambda: Histogram.empty(OVERHEAD_BOUNDS))
    """What the gateway added to answered calls."""
    rejections: dict[str, int] = {}
    """Calls that were not made, by reason."""

    def add(self, calls: "Sequence[CallRecord]", outcome: Outcome, failure: str | None) -> None:
        """Count calls that ended alike."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + len(calls)
        ending = failure if outcome is Outcome.FAILED and failure else outcome
        seconds = [*map(_SECONDS, calls)]
        operations = self.operations.get(ending) or _new_histogram(self.operations, ending)
        operations.observe_all(seconds, OPERATION_BOUNDS)
        for call in filter(_TRACE, calls):
            if call.trace is not None:
                bound = bisect_left(OPERATION_BOUNDS, call.seconds)
                operations.exemplars[bound] = (call.trace, call.seconds, call.at)
        # a refused call may have waited for its turn, but the server never saw it
        if outcome is not _REFUSED and (answering := [*filter(None, map(_ANSWERING, calls))]):
            exchanges = self.exchanges.get(ending) or _new_histogram(self.exchanges, ending)
            exchanges.observe_all(answering, OPERATION_BOUNDS)
        self.bytes_in += sum(map(_BYTES_IN, calls))
        self.bytes_out += sum(map(_BYTES_OUT, calls))
        if outcome not in _UNTIMED:
            for bucket, times in Counter(map(partial(bisect_left, _BUCKETS), seconds)).items():
                self.buckets[bucket] = self.buckets.get(bucket, 0) + times
            self.timed += len(calls)
            self.seconds += sum(seconds)
        for call in filter(_ERROR, calls):
            self.last_error = call.at, (call.error or "")[:_LONGEST_ERROR]

    def percentiles(self) -> tuple[float | None, ...]:
        buckets = sorted(self.buckets)
        upto = list(accumulate(self.buckets[bucket] for bucket in buckets))
        ranks = (math.ceil(share * self.timed) for share in _QUANTILES)
        return tuple(_middle(buckets[bisect_left(upto, r)]) if buckets else None for r in ranks)

    def stats(self) -> Stats:
        p50, p95, p99 = self.percentiles()
        return Stats(
            calls=sum(self.outcomes.values()),
            errors=sum(self.outcomes.get(outcome, 0) for outcome in _BAD),
            timeouts=self.outcomes.get(Outcome.TIMEOUT, 0),
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            seconds=self.seconds,
            p50=p50,
            p95=p95,
            p99=p99,
            last_error=self.last_error and self.last_error[1],
        )


def _total(rows: Iterable[MetricsRow]) -> MetricsRow:
    """The sum of rows, computed on demand: calls are more frequent than queries."""
    total = MetricsRow()
    for row in rows:
        for outcome, calls in row.outcomes.items():
            total.outcomes[outcome] = total.outcomes.get(outcome, 0) + calls
        for bucket, calls in row.buckets.items():
            total.buckets[bucket] = total.buckets.get(bucket, 0) + calls
        total.timed += row.timed
        total.seconds += row.seconds
        total.bytes_in += row.bytes_in
        total.bytes_out += row.bytes_out
        total.last_error = max(filter(None, (total.last_error, row.last_error)), default=None)
        _add(total.operations, row.operations)
        _add(total.exchanges, row.exchanges)
        total.overhead = total.overhead.plus(row.overhead)
        for reason, calls in row.rejections.items():
            total.rejections[reason] = total.rejections.get(reason, 0) + calls
    return total


def _add(total: dict[str, Histogram], part: Mapping[str, Histogram]) -> None:
    for ending, histogram in part.items():
        before = total.get(ending)
        total[ending] = histogram if before is None else before.plus(histogram)


def _middle(bucket: int) -> float:
    """The representative time of a bucket, off by at most `RELATIVE_ERROR`."""
    return _SHORTEST * _GROWTH**bucket * (1 - RELATIVE_ERROR)


class Metrics:
    """Counters of every server and tool since the start."""

    def __init__(self, *, max_tools: int = MAX_TOOLS) -> None:
        self._max_tools = max_tools
        self._tools: dict[str, dict[str, MetricsRow]] = {}
        self._counted = 0
        self._recent: deque[CallRecord] = deque(maxlen=RECENT)
        self._uncounted: list[CallRecord] = []
        self.record = self._uncounted.append
        """Records one call, which is counted later, in a batch."""
        self._answered: list[tuple[str, str, float]] = []
        self.on_answered = self._answered.append
        """Records what a gateway added to a call: server, tool and seconds."""

    @classmethod
    def of(cls, *parts: Mapping[str, Mapping[str, MetricsRow]]) -> "Metrics":
        """The counters of several processes together."""
        merged = cls()
        for server in {name: None for part in parts for name in part}:
            tools = {tool: None for part in parts for tool in part.get(server, {})}
            merged._tools[server] = {
                tool: _total(part[server][tool] for part in parts if tool in part.get(server, {}))
                for tool in tools
            }
        return merged

    @property
    def made(self) -> int:
        """How many calls were recorded."""
        return self._counted + len(self._uncounted)

    def latest(self, most: int = RECENT) -> list["CallRecord"]:
        """The last calls, oldest first.

        It does not count them: screens ask many times a second, and small batches cost more.
        """
        new = self._uncounted[-most:] if most > 0 else []
        older = islice(reversed(self._recent), most - len(new)) if len(new) < most else ()
        return [*older][::-1] + new

    @property
    def rows(self) -> dict[str, dict[str, MetricsRow]]:
        """The counters by server and tool."""
        self.count_up()
        return self._tools

    def count_up(self) -> None:
        """Count the calls recorded since the last time.

        Alike ones together, by functions written in C: one by one, they took a tenth of a call.
        """
        self._counted += len(self._uncounted)
        self._recent.extend(self._uncounted)
        alike: dict[tuple[str, str, Outcome, str | None], list[CallRecord]] = defaultdict(list)
        for kind, call in zip(map(_KIND, self._uncounted), self._uncounted, strict=True):
            alike[kind].append(call)
        self._uncounted.clear()
        for (server, tool, outcome, failure), calls in alike.items():
            self._row(server, tool).add(calls, outcome, failure)
        added: dict[tuple[str, str], list[float]] = defaultdict(list)
        for server, tool, seconds in self._answered:
            added[server, tool].append(seconds)
        self._answered.clear()
        for (server, tool), times in added.items():
            self._row(server, tool).overhead.observe_all(times, OVERHEAD_BOUNDS)

    def _row(self, server: str, tool: str) -> MetricsRow:
        return self._tools.get(server, {}).get(tool) or self._new_row(server, tool)

    def _new_row(self, server: str, tool: str) -> MetricsRow:
        tools = self._tools.setdefault(server, {})
        # servers choose the names: there may be a new one for every call
        name = tool if len(tools) < self._max_tools else OTHER
        return tools.setdefault(name, MetricsRow())

    def forget(self, server: str) -> None:
        """Drop the counters of a server that is no longer configured."""
        self.count_up()
        self._tools.pop(server, None)

    def servers(self) -> dict[str, Stats]:
        """All tools of each server together."""
        self.count_up()
        return {server: _total(tools.values()).stats() for server, tools in self._tools.items()}

    def tools(self, server: str) -> dict[str, Stats]:
        """Each tool of the server that was called."""
        self.count_up()
        return {tool: row.stats() for tool, row in self._tools.get(server, {}).items()}

    def on_rejected(self, server: str, tool: str, reason: str) -> None:
        """Count why a call was not made; its record is counted as any other."""
        row = self._row(server, tool)
        row.rejections[reason] = row.rejections.get(reason, 0) + 1

    def samples(
        self,
        shows: Callable[[str, str], bool] = lambda _server, _tool: True,
        name: Callable[[str, str], str] = lambda _server, tool: tool,
    ) -> Samples:
        """The counters as samples of `CALL_FAMILIES`.

        Args:
            shows: Whether the reader may see a tool, by its server and the server's own name.
            name: The name by which clients know a tool, by the same.
        """
        self.count_up()
        samples: Samples = {family.name: [] for family in CALL_FAMILIES}
        operations, exchanges, overhead, arguments, results, tokens, rejections = samples.values()
        for server, tools in self._tools.items():
            rows = {tool: row for tool, row in tools.items() if shows(server, tool)}
            for tool, row in rows.items():
                client_name = name(server, tool)
                for ending, histogram in row.operations.items():
                    error = ERROR_TYPES.get(ending, ending)
                    operations.append((("tools/call", client_name, server, error), histogram))
                for ending, histogram in row.exchanges.items():
                    error = ERROR_TYPES.get(ending, ending)
                    # counted by the server's own name there: it is the server that was asked
                    exchanges.append((("tools/call", tool, server, error), histogram))
                arguments.append(((client_name, server), row.bytes_out))
                results.append(((client_name, server), row.bytes_in))
            if rows:
                total = _total(rows.values())
                overhead.append(((server,), total.overhead))
                tokens.append(((server,), round(total.bytes_in / BYTES_PER_TOKEN)))
                for reason, calls in total.rejections.items():
                    rejections.append(((server, reason), calls))
        # two tools may have had the same name, one after the other
        return add_up(CALL_FAMILIES, [samples])

    def prometheus(self) -> str:
        """The counters in Prometheus' text format, version 0.0.4."""
        return write_text(CALL_FAMILIES, self.samples())


def _new_histogram(histograms: dict[str, Histogram], ending: str) -> Histogram:
    histogram = histograms[ending] = Histogram.empty(OPERATION_BOUNDS)
    return histogram
