import asyncio
import os
import subprocess
import sys

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from multitap.wire.process.pipe_end import PipeEnd


async def closed_by_its_transport():
    """What the other end reads after the transport has closed its end: nothing."""
    ours, theirs = os.pipe()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_write_pipe(asyncio.Protocol, PipeEnd(theirs))
    transport.close()
    with anyio.fail_after(5):
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
    with anyio.fail_after(5):
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
        "import anyio, functools; from tests.wire import test_pipe_end; "
        f"print(anyio.run({call}, backend_options={{'use_uvloop': True}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_the_pipe_is_closed_with_its_transport():
    assert await closed_by_its_transport() == b""


def test_the_pipe_is_closed_with_its_transport_on_uvloop():
    assert on_uvloop("test_pipe_end.closed_by_its_transport") == "b''\n"


@pytest.mark.parametrize("connect", ["connect_read_pipe", "connect_write_pipe"])
async def test_closing_a_pipe_again_closes_no_foreign_file(connect):
    await whose_number_is_used_again(connect)


@pytest.mark.parametrize("connect", ["connect_read_pipe", "connect_write_pipe"])
def test_closing_a_pipe_again_closes_no_foreign_file_on_uvloop(connect):
    on_uvloop(f"functools.partial(test_pipe_end.whose_number_is_used_again, {connect!r})")
