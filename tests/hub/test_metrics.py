import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.hub.metrics import (
    OTHER,
    RELATIVE_ERROR,
    Metrics,
    Outcome,
)
from multitap.store import CallRecord

words = st.text(st.characters(exclude_categories=()), max_size=10)
times = st.floats(1e-6, 3600.0)

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"'
SAMPLE = re.compile(rf"({NAME})\{{({LABEL}(?:,{LABEL})*)\}} (\S+)")
COMMENT = re.compile(rf"# (HELP|TYPE) ({NAME}) (.+)")
TYPES = {"counter", "summary"}


def record(metrics, server, tool, seconds, *, outcome, **fields):
    metrics.record(CallRecord(0.0, server, tool, seconds, outcome, **fields))


def parsed(exposition):
    """Samples by name and labels; fails on whatever the text format 0.0.4 does not allow."""
    assert exposition.endswith("\n")
    samples, types, family = {}, {}, None
    for line in exposition[:-1].split("\n"):
        if comment := COMMENT.fullmatch(line):
            kind, family, rest = comment.groups()
            if kind == "TYPE":
                assert rest in TYPES
                assert family not in types
                types[family] = rest
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, line
        name, labels = sample[1], tuple(re.findall(LABEL, sample[2]))
        base = re.sub("_(sum|count)$", "", name) if types[family] == "summary" else name
        assert base == family
        assert len(dict(labels)) == len(labels)
        assert (name, labels) not in samples
        samples[name, labels] = float(sample[sample.lastindex])
    return samples


def exact(values, share):
    return sorted(values)[math.ceil(share * len(values)) - 1]


def recorded(*seconds, **fields):
    metrics = Metrics()
    for value in seconds:
        record(metrics, "s", "t", value, outcome=Outcome.OK, **fields)
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
    metrics = recorded(0.1, 0.1, bytes_in=5, bytes_out=7)
    record(metrics, "s", "t", 0.1, outcome=Outcome.TIMEOUT)
    who = (("server", "s"), ("tool", "t"))

    samples = parsed(metrics.prometheus())

    assert samples["multitap_calls_total", (*who, ("outcome", "ok"))] == 2
    assert samples["multitap_calls_total", (*who, ("outcome", "timeout"))] == 1
    assert samples["multitap_received_bytes_total", who] == 10
    assert samples["multitap_sent_bytes_total", who] == 14
    assert samples["multitap_call_seconds_count", who] == 3
    assert samples["multitap_call_seconds_sum", who] == pytest.approx(0.3)
    median = samples["multitap_call_seconds", (*who, ("quantile", "0.5"))]
    assert median == pytest.approx(0.1, rel=RELATIVE_ERROR)


def test_prometheus_text_of_nothing_is_valid():
    assert parsed(Metrics().prometheus()) == {}


@given(st.lists(st.tuples(words, words, st.sampled_from(Outcome), times), max_size=10))
def test_prometheus_text_is_valid_whatever_the_names(calls):
    metrics = Metrics()
    for server, tool, outcome, seconds in calls:
        record(metrics, server, tool, seconds, outcome=outcome)

    text = metrics.prometheus()

    assert text.encode()
    counts = [value for (name, _), value in parsed(text).items() if name == "multitap_calls_total"]
    assert sum(counts) == len(calls)


def test_a_label_is_read_back_as_the_name_it_was():
    metrics = Metrics()
    record(metrics, 'a"b\\c\nd', "t", 0.1, outcome=Outcome.OK)

    (labels,) = {labels[0] for _, labels in parsed(metrics.prometheus())}

    assert labels == ("server", r"a\"b\\c\nd")
