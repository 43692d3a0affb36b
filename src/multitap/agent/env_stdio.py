"""MCP over the standard input and output of this process, without threads."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from multitap.errors import MultitapError
from multitap.wire.framer import LineFramer, Oversized

MAX_LINE = 32 * 1024 * 1024
FLUSH_TIMEOUT = 2.0
"""Seconds that the last answers may take to leave."""
_CHUNK = 256 * 1024

_Incoming = SessionMessage | Exception


@asynccontextmanager
async def open_stdio() -> AsyncGenerator[
    tuple[MemoryObjectReceiveStream[_Incoming], MemoryObjectSendStream[SessionMessage]]
]:
    """What comes in and what goes out, as messages; the first ends when the input does.

    Within the block, whoever else here reads finds nothing, and what they print goes to the
    standard error.

    Raises:
        MultitapError: Input or output is a file, not a pipe.
    """
    incoming, reading = anyio.create_memory_object_stream[_Incoming](0)
    writing, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    with _own_descriptors() as (source, target):
        async with _opened(source, target) as (reader, writer), anyio.create_task_group() as tasks:
            tasks.start_soon(_read, reader, incoming)
            written = anyio.Event()
            tasks.start_soon(_write, outgoing, writer, written)
            with reading, writing:
                yield reading, writing
            with anyio.move_on_after(FLUSH_TIMEOUT):
                await written.wait()
            tasks.cancel_scope.cancel()


@contextmanager
def _own_descriptors() -> Generator[tuple[int, int]]:
    """Private copies of descriptors 0 and 1, which meanwhile lead elsewhere."""
    sys.stdout.flush()
    source, target = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        yield source, target
    finally:
        with suppress(OSError):
            sys.stdout.flush()
        for private, public in ((source, 0), (target, 1)):
            os.set_blocking(private, True)
            os.dup2(private, public)
        for descriptor in (nothing, source, target):
            os.close(descriptor)


@asynccontextmanager
async def _opened(
    source: int, target: int
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    with _file(source, "rb") as arriving, _file(target, "wb") as leaving:
        try:
            incoming, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader, loop=loop), arriving
            )
            outgoing, protocol = await loop.connect_write_pipe(
                lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), loop=loop),
                leaving,
            )
        except (ValueError, OSError) as exc:
            raise MultitapError(
                f"standard input and output can not be used: {exc}", hint="they must be pipes"
            ) from None
        try:
            yield reader, asyncio.StreamWriter(outgoing, protocol, None, loop)
        finally:
            incoming.close()
            outgoing.abort()
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()  # they let go of the files in the next round


def _file(descriptor: int, mode: str) -> Any:
    return os.fdopen(os.dup(descriptor), mode, buffering=0)


async def _read(reader: asyncio.StreamReader, incoming: MemoryObjectSendStream[_Incoming]) -> None:
    framer = LineFramer(MAX_LINE)
    with incoming, suppress(anyio.BrokenResourceError):
        while chunk := await reader.read(_CHUNK):
            framer.feed(chunk)
            while (line := framer.take()) is not None:
                if (message := _message(line)) is not None:
                    await incoming.send(message)


def _message(line: bytes | Oversized) -> _Incoming | None:
    if isinstance(line, Oversized):
        return ValueError(f"a line of more than {MAX_LINE} bytes")
    if not line.strip():
        return None
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as exc:
        return exc


async def _write(
    outgoing: MemoryObjectReceiveStream[SessionMessage],
    writer: asyncio.StreamWriter,
    written: anyio.Event,
) -> None:
    with outgoing, suppress(ConnectionError):  # whoever read is gone, and soon so is the input
        async for item in outgoing:
            line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            writer.write(line.encode() + b"\n")
            await writer.drain()
    written.set()
