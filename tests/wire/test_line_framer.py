from hypothesis import given
from hypothesis import strategies as st

from multitap.wire.jsonrpc.line_framer import LineFramer, Oversized


def fed(framer, chunk):
    framer.feed(chunk)
    while (line := framer.take()) is not None:
        yield line


lines = st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")))


@given(lines, st.lists(st.integers(1, 17)))
def test_lines_come_out_as_they_went_in_however_the_stream_is_cut(wanted, cuts):
    stream = b"".join(line + b"\n" for line in wanted)
    framer = LineFramer(limit=1000)
    got = []
    for cut in [*cuts, len(stream) or 1]:
        got += fed(framer, stream[:cut])
        stream = stream[cut:]
    got += fed(framer, stream)

    assert got == wanted


def test_a_line_over_the_limit_is_named_by_its_ends_and_the_next_one_is_read():
    framer = LineFramer(limit=2000)
    got = [*fed(framer, b"A" * 1500)]
    got += fed(framer, b"B" * 1500)
    got += fed(framer, b"C" * 1500 + b"\nnext\n")

    (early, oversized, following) = got
    assert early == Oversized(3000, oversized.head)
    assert oversized.size == 4500
    assert oversized.head.startswith(b"A" * 500)
    assert oversized.tail == b"C" * 512
    assert following == b"next"


def test_an_endless_line_costs_no_memory():
    framer = LineFramer(limit=10_000)
    told = [line for _ in range(1000) for line in fed(framer, b"x" * 10_000)]

    assert len(told) == 1

    assert len(framer._head) + len(framer._tail) + sum(map(len, framer._parts)) < 3000
