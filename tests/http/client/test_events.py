"""Event streams, however they are cut."""

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.http.client.events import Event, EventParser
from multitap.limits import Budget

MIB = 1024 * 1024


def fed(stream: EventParser, chunk: bytes) -> list[Event]:
    """The events that `chunk` completes, however many turns they take."""
    events: list[Event] = []
    stream.feed(chunk)
    while not stream.drained:
        while (event := stream.take(Budget())) is not None:
            events.append(event)
    return events


def parse(*chunks: bytes, limit: int = MIB) -> list[Event]:
    stream = EventParser(limit)
    return [event for chunk in chunks for event in fed(stream, chunk)]


@pytest.mark.parametrize(
    ("text", "events"),
    [
        pytest.param(b"data: hi\n\n", [Event("message", b"hi")], id="plain"),
        pytest.param(b"data:hi\n\n", [Event("message", b"hi")], id="without a space"),
        pytest.param(b"data:  hi\n\n", [Event("message", b" hi")], id="only one space is cut"),
        pytest.param(b"data: a\ndata: b\n\n", [Event("message", b"a\nb")], id="several lines"),
        pytest.param(b"data\n\n", [Event("message", b"")], id="field without a colon"),
        pytest.param(b"data: \n\n", [Event("message", b"")], id="empty data primes the stream"),
        pytest.param(b"event: ping\ndata: 1\n\n", [Event("ping", b"1")], id="named"),
        pytest.param(b"event:\ndata: 1\n\n", [Event("message", b"1")], id="empty name"),
        pytest.param(b": hello\n\ndata: 1\n\n", [Event("message", b"1")], id="comment"),
        pytest.param(b"id: 7\nretry: 5\n\n", [], id="no data, no event"),
        pytest.param(b"data: 1\n", [], id="unfinished"),
        pytest.param(b"data: 1\r\rdata: 2\r\n\r\n",
                     [Event("message", b"1"), Event("message", b"2")], id="any line ending"),
        pytest.param(b"\xef\xbb\xbfdata: 1\n\n", [Event("message", b"1")], id="byte order mark"),
        pytest.param(b"data: a:b\n\n", [Event("message", b"a:b")], id="colon in the value"),
        pytest.param(b"data: a\x0b\x0c\x1c\x85b\n\n", [Event("message", b"a\x0b\x0c\x1c\x85b")],
                     id="only CR and LF end a line"),
        pytest.param(b"data : 1\nfoo: 2\n\n", [], id="unknown fields"),
    ],
)  # fmt: skip
def test_events_are_read_as_the_standard_says(text: bytes, events: list[Event]):
    assert parse(text) == events


@given(
    text=st.lists(
        st.sampled_from(
            [b"data: x", b"data:", b"id: 1", b"event: e", b": c", b"", b"retry: 10", b"\n", b"\r",
             b"\r\n", b"\n\n", b"\xef\xbb\xbf", b"data: \xc3\xa9", b"x" * 600, b"data: y\n" * 150]
        )
    ).map(b"".join),
    cuts=st.lists(st.integers(0, 3000)),
)  # fmt: skip
def test_where_the_chunks_are_cut_makes_no_difference(text: bytes, cuts: list[int]):
    whole, pieces = EventParser(MIB), EventParser(MIB)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})

    expected = fed(whole, text)
    events = [event for start, end in pairwise(edges) for event in fed(pieces, text[start:end])]

    assert events == expected
    assert (pieces.last_id, pieces.retry) == (whole.last_id, whole.retry)


@given(lines=st.lists(st.binary(max_size=20).filter(lambda line: not {10, 13} & set(line))))
def test_data_comes_back_as_it_was_sent(lines: list[bytes]):
    text = b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"

    assert parse(text) == ([Event("message", b"\n".join(lines))] if lines else [])


def test_many_lines_keep_their_order():
    lines = [b"%d" % number for number in range(5000)]

    (event,) = parse(b"".join(b"data: %s\n" % line for line in lines) + b"\n")

    assert event.data == b"\n".join(lines)


def test_the_last_id_counts_only_once_its_event_is_complete():
    stream = EventParser(MIB)

    fed(stream, b"id: 1\ndata: x\n\nid: 2\ndata: y\n")

    assert stream.last_id == "1"
    fed(stream, b"\n")
    assert stream.last_id == "2"


def test_an_id_that_no_header_can_carry_is_ignored():
    stream = EventParser(MIB)

    fed(stream, b"id: 1\n\nid: a\0b\n\nid: " + b"x" * 2000 + b"\n\n")

    assert stream.last_id == "1"


@pytest.mark.parametrize(
    ("value", "seconds"), [(b"500", 0.5), (b"0", 0.0), (b"-1", None), (b"9" * 5000, None)]
)
def test_retry_is_milliseconds(value: bytes, seconds: float | None):
    stream = EventParser(MIB)

    fed(stream, b"retry: " + value + b"\n\n")

    assert stream.retry == seconds


def test_a_new_connection_forgets_the_unfinished_event_but_not_the_place():
    stream = EventParser(MIB)
    fed(stream, b"id: 1\nretry: 100\ndata: x\n\ndata: lost")

    stream.restart()

    assert fed(stream, b"data: new\n\n") == [Event("message", b"new")]
    assert (stream.last_id, stream.retry) == ("1", 0.1)


@pytest.mark.parametrize("step", [1, 7, 100, 5000])
def test_an_oversized_event_leaves_its_edges_and_the_next_event_is_whole(step: int):
    text = b'data: {"id":1,' + b"x" * 3000 + b',"end":2}\n\ndata: next\n\n'
    stream = EventParser(1024)
    events: list[Event] = []
    noticed = False

    for start in range(0, len(text), step):
        events += fed(stream, text[start : start + step])
        noticed = noticed or stream.oversized

    large, after = events
    assert large.oversized
    assert b'{"id":1,' in large.data
    assert large.data.rstrip().endswith(b',"end":2}')
    assert len(large.data) <= 1024
    assert after == Event("message", b"next")
    assert noticed or step == 5000
    assert not stream.oversized


def test_the_limit_holds_over_the_lines_of_one_event():
    (event,) = parse(b"data: 1234567\n" * 300 + b"\n", limit=2000)

    assert event.oversized


def test_comments_do_not_count():
    assert parse(b": ping\n" * 1000 + b"data: 1\n\n", limit=100) == [Event("message", b"1")]


def test_an_endless_event_costs_no_more_than_the_limit():
    stream = EventParser(MIB)
    chunk = b"x" * 65536
    fed(stream, b"data: ")
    tracemalloc.start()
    try:
        for _ in range(1000):
            fed(stream, chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert stream.oversized
    assert peak < 3 * MIB


def test_millions_of_tiny_lines_cost_no_multiple_of_the_limit():
    stream = EventParser(MIB // 4)
    chunk = b"data:ab\n" * 1024
    tracemalloc.start()
    try:
        while not stream.oversized:
            fed(stream, chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < MIB


def test_millions_of_tiny_pieces_cost_no_multiple_of_the_limit():
    stream = EventParser(MIB // 4)
    fed(stream, b"data: ")
    tracemalloc.start()
    try:
        while not stream.oversized:
            fed(stream, bytes([120, 121]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < MIB


@pytest.mark.parametrize("line", [b"\n", b"\r", b"\r\n", b":\n", b"x\n", b"id:1\n", b"data:x\n"])
def test_a_spent_budget_leaves_the_rest_for_later(line: bytes):
    stream, spent = EventParser(MIB), Budget()
    while not spent.late():
        pass

    stream.feed(line * 10_000 + b"\n\ndata: 1\n\n")

    assert stream.take(spent) is None
    assert not stream.drained
    assert fed(stream, b"data: 2\n\n")[-2:] == [Event("message", b"1"), Event("message", b"2")]


@pytest.mark.parametrize(
    ("text", "wasted"),
    [
        pytest.param(b"id: 7\nevent: message\nretry: 5\ndata: 1\n\n", 0, id="an event"),
        pytest.param(b"\n\n\n", 3 * 64, id="blank lines"),
        pytest.param(b": " + b"x" * 98 + b"\n", 100, id="a comment"),
        pytest.param(b"x: 1\n" * 10, 640, id="unknown fields"),
        pytest.param(b"id: 1\n" * 10, 7 * 64, id="more fields than an event has"),
        pytest.param(b"data: " + b"x" * 2000, 2006, id="what is over the limit"),
    ],
)
def test_what_makes_no_event_is_counted(text: bytes, wasted: int):
    stream = EventParser(1024)

    fed(stream, text)

    assert stream.wasted == wasted
