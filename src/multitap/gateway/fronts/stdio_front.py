"""The gateway on its own standard input and output."""

import asyncio
import logging
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

import anyio
import anyio.lowlevel
from anyio import to_thread

from multitap.catalog.audience import Audience
from multitap.errors import MultitapError, ungrouped
from multitap.gateway.client import Client
from multitap.gateway.fronts.duplex import Duplex
from multitap.gateway.gateway import Gateway
from multitap.tasks import Tasks
from multitap.wire.jsonrpc.line_framer import Oversized
from multitap.wire.jsonrpc.line_reader import LineReader, OnLine, OnOversized
from multitap.wire.process.pipe_end import PipeEnd
from multitap.wire.process.stdio_wire import line_of

logger = logging.getLogger(__name__)

MAX_LINE = 32 * 1024 * 1024
"""Bytes of one message; a longer one is dropped."""
BACKLOG = 256 * 1024 * 1024
"""Bytes that may wait for the client to read them; further messages are dropped."""
INSTEAD = "let a client start it (in a container with `docker run -i`), or use `--http PORT`"
"""The advice if no client can use the pipes."""
LAST_ANSWERS = 1.0
"""Seconds for requests in progress after the client has closed its end."""
_CHUNK = 256 * 1024


@runtime_checkable
class _ClientWritable(Protocol):
    """The part of a transport that is used; those of uvloop are not `WriteTransport`s."""

    def write(self, data: bytes, /) -> None: ...
    def get_write_buffer_size(self) -> int: ...


class _ClientOutput(asyncio.Protocol):
    """Messages to the client, in order; an `Outlet`."""

    def __init__(self, gone: Callable[[], None]) -> None:
        self._gone = gone
        self._transport: _ClientWritable | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, _ClientWritable):
            self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._gone()

    def send(self, message: bytes) -> bool:
        transport = self._transport
        # callers are callbacks and cannot wait, so this bound is all that protects the memory
        if transport is None or transport.get_write_buffer_size() > BACKLOG:
            return False
        transport.write(line_of(message))
        return True

    async def flush(self) -> None:
        # polled: a transport tells when its buffer is low, not when it is empty
        while self._transport is not None and self._transport.get_write_buffer_size():
            await anyio.sleep(0.005)


class _Descriptor:
    """The same without a transport, for two kinds of output.

    Loops cannot wait for files and devices. And on a terminal or socket that is also the input, a
    transport for writing would consume what the client sends: it reads to notice the end.
    """

    def __init__(self, fd: int, gone: Callable[[], None]) -> None:
        self._fd = fd
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._unwritten = bytearray()
        self._blocked = False

    def send(self, message: bytes) -> bool:
        if len(self._unwritten) > BACKLOG:
            return False
        self._unwritten += line_of(message)
        # while blocked, the loop calls `_write`: writing here as well would be a wasted system call
        return self._blocked or self._write()

    def _write(self) -> bool:
        try:
            while self._unwritten:
                del self._unwritten[: os.write(self._fd, self._unwritten)]
        except BlockingIOError:
            self._blocked = True
            self._loop.add_writer(self._fd, self._write)
            return True
        except OSError as exc:
            self.close()
            logger.warning("standard output cannot be written: %s", exc.strerror)
            self._gone()
            return False
        self.close()
        return True

    async def flush(self) -> None:
        while self._blocked:
            await anyio.sleep(0.005)

    def close(self) -> None:
        if self._blocked:
            self._blocked = False
            self._loop.remove_writer(self._fd)


def _taking(duplex: Duplex) -> OnLine:
    """A handler for the client's messages, each of which counts as awaited."""

    def on_line(line: bytes) -> bool:
        if line.strip():
            duplex.take(line)
        return True

    return on_line


def _refusing(duplex: Duplex) -> OnOversized:
    """A handler that refuses messages over the limit."""

    def on_oversized(line: Oversized) -> None:
        if not line.tail:  # it is reported twice
            duplex.refuse(f"a message has at most {MAX_LINE} bytes")

    return on_oversized


async def serve_stdio(gateway: Gateway, *, profile: str | None = None) -> None:
    """Answer the client on this process's pipes until it closes them.

    Anything else that this process prints goes to its standard error meanwhile.
    """
    source, target = _claim()
    blocking = [(fd, os.get_blocking(fd)) for fd in (source, target)]
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    direct = _Descriptor(target, ended.set)
    output: _ClientOutput | _Descriptor = direct
    transports: list[asyncio.BaseTransport] = []
    try:
        with ungrouped():
            async with Tasks() as tasks:
                if _is_waitable(target) and not _is_input_too(source, target):
                    # a copy, because a transport closes its descriptor, and ours is restored below
                    writer, output = await loop.connect_write_pipe(
                        lambda: _ClientOutput(ended.set), PipeEnd.copy(target)
                    )
                    transports.append(writer)
                elif _is_waitable(target):
                    os.set_blocking(target, False)
                client = Client(output, audience=Audience.of(profile), alone=True)
                duplex = Duplex(gateway, client, output, tasks)
                received = LineReader(MAX_LINE, _taking(duplex), _refusing(duplex), ended.set)
                if _is_waitable(source):
                    reader, _ = await loop.connect_read_pipe(lambda: received, PipeEnd.copy(source))
                    transports.append(reader)
                else:
                    tasks.start_soon(_read_file, source, received)
                await ended.wait()
                await _wind_up(client, output)
                await gateway.on_left(client)
    finally:
        direct.close()
        for transport in transports:
            transport.close()
        for fd, was_blocking in blocking:
            os.set_blocking(fd, was_blocking)  # others may share it, such as a shell
            os.close(fd)


async def _wind_up(client: Client, output: "_ClientOutput | _Descriptor") -> None:
    with anyio.move_on_after(LAST_ANSWERS):
        # requests before the end are answered: input may be a file or an `echo`
        while client.scopes:
            await anyio.sleep(0.005)
        await output.flush()


async def _read_file(fd: int, received: LineReader) -> None:
    try:
        while data := await to_thread.run_sync(os.read, fd, _CHUNK, abandon_on_cancel=True):
            received.data_received(data)
            # as a transport would do: nothing more is read before this is handled
            while received.holding:
                await anyio.lowlevel.checkpoint()
    except OSError as exc:
        raise MultitapError(
            f"standard input cannot be read: {(exc.strerror or str(exc)).lower()}", hint=INSTEAD
        ) from None
    received.connection_lost(None)


def null_streams() -> tuple[str, ...]:
    """The standard streams that are /dev/null, so that no client can use them."""
    null = Path(os.devnull).stat().st_rdev
    status = {"input": os.fstat(0), "output": os.fstat(1)}
    return tuple(
        name
        for name, found in status.items()
        if stat.S_ISCHR(found.st_mode) and found.st_rdev == null
    )


def _claim() -> tuple[int, int]:
    """Private copies of the pipes, so that no other output mixes with the messages."""
    sys.stdout.flush()
    source, target = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    # a library that prints does so on standard error, and not between two messages
    os.dup2(2, 1)
    os.close(nothing)
    return source, target


def _is_waitable(fd: int) -> bool:
    """Whether a loop can wait for a descriptor; uvloop aborts the process if it cannot."""
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)


def _is_input_too(source: int, target: int) -> bool:
    """Whether a read from the output could consume input: both are the same terminal or socket."""
    return os.isatty(target) or os.path.sameopenfile(source, target)
