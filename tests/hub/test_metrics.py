import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.hub.metrics import (
    CALL_FAMILIES,
    OTHER,
    RELATIVE_ERROR,
    Metrics,
    Outcome,
)
from multitap.store import CallRecord
from multitap.telemetry.metrics import write_text
from tests.telemetry.exposition import parsed, value

words = st.text(st.characters(exclude_categories=()), max_size=10)
times = st.floats(1e-6, 3600.0)


def record(metrics, server, tool, seconds, *, outcome, **fields):
    metrics.record(CallRecord(0.0, server, tool, seconds, outcome, **fields))


def exact(values, share):
    return sorted(values)[math.ceil(share * len(values)) - 1]


def recorded(*seconds, **fields):
    metrics = Metrics()
    for duration in seconds:
        record(metrics, "s", "t", duration, outcome=Outcome.OK, **fields)
    return metrics


@given(st.lists(times, min_size=1, max_size=300))
def test_percentiles_are_within_the_stated_error_of_the_exact_ones(values):
    stats = recorded(*values).tools("s")["t"]

    for share, estimate in ((0.5, stats.p50), (0.95, stats.p95), (0.99, stats.p99)):
        truth = exact(values, share)
        assert abs(estimate - truth) <= truth * (RELATIVE_ERROR + 1e-9)


@given(st.lists(st.floats() | times, min_size=1))
def test_any_time_is_counted(values):
    stats = recorded(*values).tools("s")["t"]

    assert stats.calls == len(values)
    assert 0 < stats.p50 <= stats.p95 <= stats.p99 < 3700


@given(st.lists(times))
def test_memory_does_not_grow_with_the_number_of_calls(values):
    metrics = recorded(*values, *[1e-6 * 1.01**step for step in range(2300)])

    metrics.count_up()
    assert len(next(iter(metrics._tools["s"].values())).buckets) <= 442


def test_calls_errors_timeouts_and_bytes_are_counted():
    metrics = Metrics()
    record(metrics, "s", "t", 0.1, outcome=Outcome.OK, bytes_in=10, bytes_out=1)
    record(metrics, "s", "t", 0.1, outcome=Outcome.ERROR, bytes_in=10, bytes_out=1, error="bad")
    record(metrics, "s", "t", 0.2, outcome=Outcome.TIMEOUT, bytes_out=1, error="late")
    record(metrics, "s", "t", 0.2, outcome=Outcome.FAILED, bytes_out=1, error="gone")
    record(metrics, "s", "t", 9.0, outcome=Outcome.CANCELLED)
    record(metrics, "s", "t", 0.0, outcome=Outcome.REFUSED)

    stats = metrics.tools("s")["t"]

    assert (stats.calls, stats.errors, stats.timeouts) == (6, 3, 1)
    assert (stats.bytes_in, stats.bytes_out) == (20, 4)
    assert stats.last_error == "gone"
    assert stats.seconds == pytest.approx(0.6)
    assert stats.p99 == pytest.approx(0.2, rel=RELATIVE_ERROR)


def test_a_server_is_the_sum_of_its_tools():
    metrics = Metrics()
    record(metrics, "s", "a", 0.1, outcome=Outcome.OK, bytes_in=1)
    record(metrics, "s", "b", 0.3, outcome=Outcome.ERROR, bytes_in=2, error="bad")
    record(metrics, "other", "a", 5, outcome=Outcome.OK)

    total = metrics.servers()["s"]

    assert (total.calls, total.errors, total.bytes_in) == (2, 1, 3)
    assert total.p99 == pytest.approx(0.3, rel=RELATIVE_ERROR)
    assert set(metrics.tools("s")) == {"a", "b"}


def test_without_a_timed_call_there_are_no_percentiles():
    metrics = Metrics()
    record(metrics, "s", "t", 1, outcome=Outcome.CANCELLED)

    stats = metrics.servers()["s"]

    assert (stats.p50, stats.p95, stats.p99) == (None, None, None)


def test_a_server_that_was_never_called_has_no_tools():
    assert Metrics().tools("nobody") == {}


def test_tools_beyond_the_limit_are_counted_together():
    metrics = Metrics(max_tools=2)
    for tool in ("a", "b", "c", "d", "c", "a"):
        record(metrics, "s", tool, 0.1, outcome=Outcome.OK)

    assert {tool: stats.calls for tool, stats in metrics.tools("s").items()} == {
        "a": 2,
        "b": 1,
        OTHER: 3,
    }
    assert metrics.servers()["s"].calls == 6


def test_a_forgotten_server_is_gone():
    metrics = recorded(0.1)

    metrics.forget("s")
    metrics.forget("never there")

    assert metrics.servers() == {}
    assert metrics.tools("s") == {}


def test_an_error_is_kept_in_short():
    metrics = Metrics()
    record(metrics, "s", "t", 0.1, outcome=Outcome.ERROR, error="x" * 10_000)

    assert len(metrics.servers()["s"].last_error) == 500


def test_prometheus_text_says_what_was_counted():
    metrics = recorded(0.1, 0.1, bytes_in=42, bytes_out=7, answering=0.04, queued=0.0599)
    metrics.on_answered(("s", "t", 0.0002))
    metrics.on_answered(("s", "t", 0.0002))
    record(metrics, "s", "t", 0.3, outcome=Outcome.TIMEOUT)

    samples = parsed(metrics.prometheus())

    call = {"mcp_method_name": "tools/call", "gen_ai_tool_name": "t", "server": "s"}
    operation, exchange = (
        f"mcp_{side}_operation_duration_seconds" for side in ("server", "client")
    )
    assert value(samples, f"{operation}_count", **call) == 2
    assert value(samples, f"{operation}_sum", **call) == pytest.approx(0.2)
    assert value(samples, f"{operation}_bucket", **call, le="0.05") == 0
    assert value(samples, f"{operation}_bucket", **call, le="0.1") == 2
    assert value(samples, f"{operation}_count", **call, error_type="timeout") == 1
    assert value(samples, f"{exchange}_sum", **call) == pytest.approx(0.08)
    overhead = "multitap_gateway_overhead_seconds"
    assert value(samples, f"{overhead}_bucket", server="s", le="0.0001") == 0
    assert value(samples, f"{overhead}_bucket", server="s", le="0.00025") == 2
    tool = {"gen_ai_tool_name": "t", "server": "s"}
    assert value(samples, "multitap_result_bytes_total", **tool) == 84
    assert value(samples, "multitap_argument_bytes_total", **tool) == 14
    assert value(samples, "multitap_result_tokens_total", server="s") == 20


def test_a_rejected_call_is_no_exchange_with_its_server():
    metrics = Metrics()
    metrics.on_rejected("s", "t", "overloaded")
    record(metrics, "s", "t", 0.1, outcome=Outcome.REFUSED, answering=1e-6, queued=0.09)

    samples = parsed(metrics.prometheus())

    assert value(samples, "multitap_rejected_calls_total", server="s", reason="overloaded") == 1
    assert not [name for name, _ in samples if name.startswith("mcp_client")]


def test_a_slow_call_stays_in_sight_behind_fast_ones():
    metrics = Metrics()
    for trace, seconds in (("a" * 32, 3.0), ("b" * 32, 0.001), ("c" * 32, 0.002)):
        record(metrics, "s", "t", seconds, outcome=Outcome.OK, trace=trace)

    both = Metrics.of(metrics.rows, Metrics().rows)
    text = write_text(CALL_FAMILIES, both.samples(), is_open=True)

    marked = [line for line in text.splitlines() if "trace_id" in line]
    assert ['le="5.0"' in line for line in marked] == [False, True]
    assert [line.partition('trace_id="')[2][0] for line in marked] == ["c", "a"]


@pytest.mark.parametrize("failure", ["-32603", "unavailable", "bad_answer"])
def test_a_failed_call_says_why(failure):
    metrics = Metrics()
    record(metrics, "s", "t", 0.1, answering=0.1, outcome=Outcome.FAILED, failure=failure)

    samples = parsed(metrics.prometheus())

    for side in ("server", "client"):
        counted = f"mcp_{side}_operation_duration_seconds_count"
        assert [
            number
            for (name, labels), number in samples.items()
            if name == counted and dict(labels).get("error_type") == failure
        ] == [1]


def test_counters_of_several_processes_add_up():
    first, second = recorded(0.1, answering=0.1), recorded(0.1, 7.0, answering=0.1)
    second.on_rejected("s", "t", "denied")

    samples = parsed(Metrics.of(first.rows, second.rows).prometheus())

    call = {"mcp_method_name": "tools/call", "gen_ai_tool_name": "t", "server": "s"}
    for side in ("server", "client"):
        assert value(samples, f"mcp_{side}_operation_duration_seconds_count", **call) == 3
    assert value(samples, "multitap_rejected_calls_total", server="s", reason="denied") == 1


def test_prometheus_text_of_nothing_is_valid():
    assert parsed(Metrics().prometheus()) == {}


@given(st.lists(st.tuples(words, words, st.sampled_from(Outcome), times), max_size=10))
def test_prometheus_text_is_valid_whatever_the_names(calls):
    metrics = Metrics()
    for server, tool, outcome, seconds in calls:
        record(metrics, server, tool, seconds, outcome=outcome)

    text = metrics.prometheus()

    text.encode()  # no surrogates are left
    counted = [
        count
        for (name, _), count in parsed(text).items()
        if name == "mcp_server_operation_duration_seconds_count"
    ]
    assert sum(counted) == len(calls)


def test_two_tools_of_one_name_are_one_series():
    metrics = Metrics()
    record(metrics, "s", "old", 0.1, outcome=Outcome.OK)
    record(metrics, "s", "new", 0.1, outcome=Outcome.OK)

    shown = metrics.samples(name=lambda _server, _tool: "same")

    assert [labels for labels, _ in shown["multitap_result_bytes_total"]] == [("same", "s")]
