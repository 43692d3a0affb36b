"""Call counts, error counts and latencies per tool, in constant memory."""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate, islice
from math import ceil, log
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
_PER_BUCKET = 1 / math.log(_GROWTH)
_LAST_BUCKET = math.ceil(math.log(_LONGEST / _SHORTEST) * _PER_BUCKET)
_QUANTILES = (0.5, 0.95, 0.99)
# these say nothing about how fast a server is
_UNTIMED = frozenset({Outcome.CANCELLED, Outcome.REFUSED})
_BAD = frozenset({Outcome.ERROR, Outcome.FAILED, Outcome.TIMEOUT})
_REFUSED = Outcome.REFUSED  # read once: enum attributes are slow
_BRIEF = OPERATION_BOUNDS[0]  # nearly all calls end within this bound: no search for the others

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
    last_error: tuple[int, str] | None = None
    """Its number among all errors, and its message."""
    operations: dict[str, Histogram] = {}
    """How long calls took in total, by outcome; failed ones by the reason."""
    exchanges: dict[str, Histogram] = {}
    """How long the server took to answer those that it received."""
    overhead: Histogram = msgspec.field(default_factory=lambda: Histogram.empty(OVERHEAD_BOUNDS))
    """What the gateway added to answered calls."""
    rejections: dict[str, int] = {}
    """Calls that were not made, by reason."""

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
        self._errors = 0
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

    def count_up(self) -> None:  # noqa: C901 - in one loop: a batch costs less than single calls
        """Count the calls recorded since the last time; a batch costs less than single calls."""
        self._counted += len(self._uncounted)
        self._recent.extend(self._uncounted)
        server = tool = row = None
        for call in self._uncounted:
            if row is None or call.tool is not tool or call.server is not server:
                # most calls follow one of the same tool, whose names are the same objects
                server, tool = call.server, call.tool
                try:
                    row = self._tools[server][tool]
                except KeyError:
                    row = self._new_row(server, tool)
            outcome, seconds = call.outcome, call.seconds
            row.outcomes[outcome] = row.outcomes.get(outcome, 0) + 1
            ending = call.failure if outcome is Outcome.FAILED and call.failure else outcome
            histogram = row.operations.get(ending) or _new_histogram(row.operations, ending)
            bound = 0 if seconds <= _BRIEF else bisect_left(OPERATION_BOUNDS, seconds)
            histogram.counts[bound] += 1
            histogram.sum += seconds
            if call.trace is not None:
                histogram.exemplars[bound] = (call.trace, seconds, call.at)
            # a refused call may have waited for its turn, but the server never saw it
            if (answering := call.answering) and outcome is not _REFUSED:
                histogram = row.exchanges.get(ending) or _new_histogram(row.exchanges, ending)
                bound = 0 if answering <= _BRIEF else bisect_left(OPERATION_BOUNDS, answering)
                histogram.counts[bound] += 1
                histogram.sum += answering
            row.bytes_in += call.bytes_in
            row.bytes_out += call.bytes_out
            if outcome not in _UNTIMED:
                bucket = 0  # which holds times up to `_SHORTEST * _GROWTH ** bucket`
                if _SHORTEST < seconds < _LONGEST:
                    bucket = ceil(log(seconds / _SHORTEST) * _PER_BUCKET)
                elif seconds >= _LONGEST:
                    bucket = _LAST_BUCKET
                row.buckets[bucket] = row.buckets.get(bucket, 0) + 1
                row.timed += 1
                row.seconds += seconds
            if call.error is not None:
                self._errors += 1
                row.last_error = (self._errors, call.error[:_LONGEST_ERROR])
        self._uncounted.clear()
        for server, name, added in self._answered:
            tools = self._tools.get(server, {})
            row = tools.get(name) or self._new_row(server, name)
            row.overhead.observe(added, OVERHEAD_BOUNDS)
        self._answered.clear()

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
        tools = self._tools.get(server, {})
        row = tools.get(tool) or self._new_row(server, tool)
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
