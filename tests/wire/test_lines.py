"""Lines from a pipe, however they are cut and however long they are."""

import asyncio
import os
import subprocess
import sys

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.wire.lines import LineFramer, OversizedLine, PipeEnd
from tests.waiting import PATIENCE


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
    assert early == OversizedLine(3000, oversized.head)
    assert oversized.size == 4500
    assert oversized.head.startswith(b"A" * 500)
    assert oversized.tail == b"C" * 512
    assert following == b"next"


def test_an_endless_line_costs_no_memory():
    framer = LineFramer(limit=10_000)
    told = [line for _ in range(1000) for line in fed(framer, b"x" * 10_000)]

    assert len(told) == 1

    assert len(framer._head) + len(framer._tail) + sum(map(len, framer._parts)) < 3000


async def closed_by_its_transport():
    """What the other end reads after the transport has closed its end: nothing."""
    ours, theirs = os.pipe()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_write_pipe(asyncio.Protocol, PipeEnd(theirs))
    transport.close()
    with anyio.fail_after(PATIENCE):
        end = await anyio.to_thread.run_sync(os.read, ours, 1)
    os.close(ours)
    return end


async def whose_number_is_used_again(connect):
    """A file under the number of a closed pipe stays open when the pipe is closed once more."""
    loop = asyncio.get_running_loop()
    ends = os.pipe()
    ours, theirs = ends if connect == "connect_read_pipe" else reversed(ends)
    end = PipeEnd(ours)
    transport, _ = await getattr(loop, connect)(asyncio.Protocol, end)
    transport.close()
    with anyio.fail_after(PATIENCE):
        while _is_open(ours):
            await anyio.lowlevel.checkpoint()
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
    end.close()

    assert ours in others
    for number in (*others, theirs):
        os.close(number)  # fails if somebody else has closed it


def _is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def on_uvloop(call):
    # in a process of its own: uvloop keeps a descriptor
    program = (
        "import anyio, functools; from tests.wire import test_lines; "
        f"print(anyio.run({call}, backend_options={{'use_uvloop': True}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_the_pipe_is_closed_with_its_transport():
    assert await closed_by_its_transport() == b""


def test_the_pipe_is_closed_with_its_transport_on_uvloop():
    assert on_uvloop("test_lines.closed_by_its_transport") == "b''\n"


@pytest.mark.parametrize("connect", ["connect_read_pipe", "connect_write_pipe"])
async def test_closing_a_pipe_again_closes_no_foreign_file(connect):
    await whose_number_is_used_again(connect)


@pytest.mark.parametrize("connect", ["connect_read_pipe", "connect_write_pipe"])
def test_closing_a_pipe_again_closes_no_foreign_file_on_uvloop(connect):
    on_uvloop(f"functools.partial(test_lines.whose_number_is_used_again, {connect!r})")
