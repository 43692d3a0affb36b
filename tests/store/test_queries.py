"""Filters over past calls, as a person types them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.errors import BadArguments
from multitap.store.queries import EVERYTHING, RecordFilter

ROW = {
    "server": "GitHub",
    "tool": "list_issues",
    "status": "timeout",
    "client": "claude-code 2.1",
    "level": "error",
    "kind": "call",
    "text": "list_issues: no answer within 30 s",
    "seconds": 0.75,
    "at": time.time() - 60,
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "server:github",
        "server:git* tool:*issues",
        "status:error",
        "status:timeout",
        ">500ms",
        ">=750ms <1s",
        "level:warning",
        "since:1d",
        "ANSWER",
        "'no answer'",
        "-server:gitlab",
        "client:claude* text:within",
        "server:github status:error >500ms issues",
    ],
)
def test_a_row_passes_when_every_term_does(text):
    assert RecordFilter.parse(text).matches(ROW)


@pytest.mark.parametrize(
    "text",
    [
        "server:git",
        "status:ok",
        "status:failed",
        "<500ms",
        "level:critical",
        "since:10s",
        "nothing",
        "-answer",
        "agent:planner",
        "server:github status:ok",
    ],
)
def test_a_row_is_left_out_when_a_term_does_not_fit(text):
    assert not RecordFilter.parse(text).matches(ROW)


def test_a_row_without_a_duration_fits_no_comparison():
    assert not RecordFilter.parse(">0s").matches({"server": "a"})
    assert not RecordFilter.parse("<1h").matches({"server": "a"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("serve:x", "no key 'serve'"),
        (">fast", "'fast' is not a duration"),
        ("level:loud", "'loud' is not a level"),
        ("'open", "is not closed"),
        ("x" * 1001, "at most 1000 characters"),
    ],
)
def test_what_makes_no_sense_is_named(text, words):
    with pytest.raises(BadArguments, match=words) as caught:
        RecordFilter.parse(text)

    assert caught.value.hint


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_an_error_of_ours(text):
    try:
        parsed = RecordFilter.parse(text)
    except BadArguments:
        return
    parsed.matches(ROW)
    assert EVERYTHING.matches(ROW)
