"""The gateway on the pipes of its own process."""

import asyncio
import os
import stat
import sys
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import anyio
import anyio.lowlevel
from anyio import to_thread

from multitap.errors import ungrouped
from multitap.serve.dialogue import Dialogue
from multitap.serve.gateway import Gateway
from multitap.serve.peer import Peer
from multitap.tasks import Tasks
from multitap.wire.framer import Oversized
from multitap.wire.line_reader import LineReader, OnLine
from multitap.wire.stdio import line_of

MAX_LINE = 32 * 1024 * 1024
"""Bytes of one message; a longer one is dropped."""
BACKLOG = 256 * 1024 * 1024
"""Bytes that may wait for the client to read them."""
LAST_ANSWERS = 1.0
"""Seconds for the requests that are under way when the client closes its end."""
_CHUNK = 256 * 1024


@runtime_checkable
class _Writable(Protocol):
    """What there is to write to; the transports of uvloop are no `WriteTransport`."""

    def write(self, data: bytes, /) -> None: ...
    def get_write_buffer_size(self) -> int: ...


class _Output(asyncio.Protocol):
    """Messages to the client, in order; an `Outlet`."""

    def __init__(self, gone: Callable[[], None]) -> None:
        self._gone = gone
        self._transport: _Writable | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, _Writable):
            self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._gone()

    def send(self, message: bytes) -> bool:
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > BACKLOG:
            return False
        transport.write(line_of(message))
        return True

    async def flush(self) -> None:
        while self._transport is not None and self._transport.get_write_buffer_size():
            await anyio.sleep(0.005)


class _File:
    """The same for a file, which loops can not wait for."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, message: bytes) -> bool:
        os.write(self._fd, line_of(message))
        return True

    async def flush(self) -> None:
        """Nothing waits."""


def _taking(dialogue: Dialogue) -> OnLine:
    """Takes the client's messages as they come in; each is one that it waits for."""

    def on_line(line: bytes | Oversized) -> bool:
        if isinstance(line, Oversized):
            if not line.tail:  # it is reported twice
                dialogue.refuse(f"a message has at most {MAX_LINE} bytes")
        elif line.strip():
            dialogue.take(line)
        return True

    return on_line


async def serve_stdio(gateway: Gateway, *, profile: str | None = None) -> None:
    """Answer the client on this process's pipes until it closes them.

    Whatever else this process prints goes to its standard error meanwhile.
    """
    source, target = _claim()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    output: _Output | _File = _File(target)
    transports: list[asyncio.BaseTransport] = []
    try:
        with ungrouped():
            async with Tasks() as tasks:
                if not _is_file(target):
                    pipe = os.fdopen(os.dup(target), "wb", 0)
                    writer, output = await loop.connect_write_pipe(lambda: _Output(ended.set), pipe)
                    transports.append(writer)
                peer = Peer(output, profile=profile, alone=True)
                dialogue = Dialogue(gateway, peer, output, tasks)
                received = LineReader(MAX_LINE, _taking(dialogue), ended.set)
                if _is_file(source):
                    tasks.start_soon(_read_file, source, received)
                else:
                    reader, _ = await loop.connect_read_pipe(
                        lambda: received, os.fdopen(os.dup(source), "rb", 0)
                    )
                    transports.append(reader)
                await ended.wait()
                await _wind_up(peer, output)
                await gateway.left(peer)
    finally:
        for transport in transports:
            transport.close()
        os.close(source)
        os.close(target)


async def _wind_up(peer: Peer, output: "_Output | _File") -> None:
    with anyio.move_on_after(LAST_ANSWERS):
        while peer.scopes:
            await anyio.sleep(0.005)
        await output.flush()


async def _read_file(fd: int, received: LineReader) -> None:
    while data := await to_thread.run_sync(os.read, fd, _CHUNK):
        received.data_received(data)
        while received.holding:
            await anyio.lowlevel.checkpoint()
    received.connection_lost(None)


def _claim() -> tuple[int, int]:
    """Our ends of the pipes, where nobody else's words can get in between."""
    sys.stdout.flush()
    source, target = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return source, target


def _is_file(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)
