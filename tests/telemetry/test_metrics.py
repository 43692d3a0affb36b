"""Samples of several processes together, and the text that Prometheus reads."""

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.telemetry.metrics import (
    LONGEST_LABEL,
    OPERATION_BOUNDS,
    Family,
    Histogram,
    add_up,
    label_value,
    write_text,
)
from tests.telemetry.exposition import parsed, value

TIMES = Family(name="t_seconds", kind="histogram", help="Times.", labels=("a",), bounds=(0.5, 1.0))
CALLS = Family(name="c_total", kind="counter", help="Calls.", labels=("a", "b"))
UP = Family(name="up", kind="gauge", help="Up.", is_common=True)
FAMILIES = (TIMES, CALLS, UP)


def histogram(*values):
    made = Histogram.empty(TIMES.bounds)
    for seconds in values:
        made.observe(seconds, TIMES.bounds)
    return made


@given(st.lists(st.floats(0, 1e6)))
def test_a_value_is_counted_up_to_its_bound(values):
    made = Histogram.empty(OPERATION_BOUNDS)
    for seconds in values:
        made.observe(seconds, OPERATION_BOUNDS)

    upto = 0
    for bound, count in zip(OPERATION_BOUNDS, made.counts, strict=False):
        upto += count
        assert upto == sum(seconds <= bound for seconds in values)
    assert sum(made.counts) == len(values)


def test_processes_are_added_up_but_what_is_common_is_not():
    first = {"t_seconds": [(("x",), histogram(0.5))], "c_total": [(("x", ""), 1)], "up": [((), 1)]}
    second = {"t_seconds": [(("x",), histogram(2.0))], "c_total": [(("y", ""), 2)], "up": [((), 1)]}

    samples = parsed(write_text(FAMILIES, add_up(FAMILIES, [first, second])))

    assert value(samples, "t_seconds_bucket", a="x", le="0.5") == 1
    assert value(samples, "t_seconds_bucket", a="x", le="1.0") == 1
    assert value(samples, "t_seconds_bucket", a="x", le="+Inf") == 2
    assert value(samples, "t_seconds_sum", a="x") == 2.5
    assert value(samples, "c_total", a="x") == 1
    assert value(samples, "c_total", a="y") == 2
    assert value(samples, "up") == 1


def test_open_metrics_names_a_counter_without_its_suffix_and_has_an_end():
    text = write_text(FAMILIES, {"c_total": [(("x", "y"), 3)]}, is_open=True)

    assert text.splitlines() == [
        "# HELP c Calls.",
        "# TYPE c counter",
        'c_total{a="x",b="y"} 3',
        "# EOF",
    ]


def test_labels_are_escaped():
    assert label_value('a"b\\c\nd') == r"a\"b\\c\nd"


@given(st.text(st.characters(exclude_categories=()), max_size=300))
def test_any_name_becomes_a_short_label(text):
    label = label_value(text)

    label.encode()  # no surrogates are left
    assert len(label) <= 2 * LONGEST_LABEL  # if every character is escaped
    assert "\n" not in label


def test_long_names_that_differ_at_their_end_stay_different():
    first, second = (label_value("x" * 1000 + end) for end in "ab")

    assert first != second
    assert len(first) == LONGEST_LABEL


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Prometheus' promtool")
def test_promtool_finds_nothing_to_improve():
    samples = {
        "t_seconds": [(("x",), histogram(0.1, 3)), (("",), histogram())],
        "c_total": [(('"\\', "é"), 1.5)],
        "up": [((), 1)],
    }

    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=write_text(FAMILIES, samples),
        capture_output=True,
        text=True,
        check=False,
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
