"""Reads lines from a pipe, with bounded memory, and bounded work per turn of the loop."""

import asyncio
import os
from collections.abc import Callable
from typing import Self

import msgspec

from multitap.limits import FULL_READ, Budget, Pace

EDGE = 512
"""Bytes kept of both ends of a line over the limit."""


class OversizedLine(msgspec.Struct, frozen=True):
    """A line over the limit: reported at once, and again with its `tail` when it ends."""

    size: int
    head: bytes
    tail: bytes = b""


class LineFramer:
    """Splits chunks into lines, one at a time; a line over `limit` bytes is dropped.

    Splitting happens in `take`, so that the caller controls the work per turn.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunk = b""
        self._at = 0
        self._parts: list[bytes] = []
        self._size = 0
        self._head = b""
        self._tail = b""
        self.held = False
        """Whether any input is left, even an incomplete line."""

    @property
    def drained(self) -> bool:
        """Whether no complete line is left."""
        return not self._chunk

    def feed(self, chunk: bytes) -> None:
        """Add received bytes."""
        self.held = True
        # only the rest is copied, so that many lines in one chunk take linear time
        self._chunk = self._chunk[self._at :] + chunk if self._chunk else chunk
        self._at = 0

    def take(self) -> bytes | OversizedLine | None:
        """The next line without its line end; None if there is no complete one."""
        if not (chunk := self._chunk):
            return None
        end = chunk.find(b"\n", self._at)
        if end < 0:
            rest, self._chunk = chunk[self._at :], b""
            return self._begin(rest)
        piece = chunk[self._at : end]
        if not self._size and len(piece) <= self._limit:  # the usual case: a complete line
            self._go_to(end + 1)
            return piece
        if (early := self._begin(piece)) is not None:
            self._at = end  # the line ends here; its end is reported next
            return early
        self._go_to(end + 1)
        return self._end()

    def _go_to(self, position: int) -> None:
        if position == len(self._chunk):
            self._chunk, position = b"", 0
            self.held = False
        self._at = position

    def _begin(self, piece: bytes) -> OversizedLine | None:
        self._size += len(piece)
        if self._size <= self._limit:
            self._parts.append(piece)
            return None
        first = not self._head
        if first:
            self._head = b"".join(self._parts)[:EDGE] + piece[:EDGE]
            self._parts.clear()
        self._tail = (self._tail + piece[-EDGE:])[-EDGE:]
        return OversizedLine(self._size, self._head) if first else None

    def _end(self) -> bytes | OversizedLine:
        line: bytes | OversizedLine = b"".join(self._parts)
        if self._size > self._limit:
            line = OversizedLine(self._size, self._head, self._tail)
        self._parts.clear()
        self._size = 0
        self._head = self._tail = b""
        return line


OnLine = Callable[[bytes], bool]
"""Handles one line; returns whether it was awaited. Must not block or raise."""
OnOversized = Callable[[OversizedLine], None]
"""Called for a line over the limit. Must not block or raise."""


class LineReader(asyncio.Protocol):
    """Delivers lines one by one, and yields to other tasks of the loop.

    Args:
        limit: Bytes of one line.
        on_line: Called with each line.
        on_oversized: Called for lines that are too long.
        on_end: Called once, at the end of the input.
    """

    def __init__(
        self, limit: int, on_line: OnLine, on_oversized: OnOversized, on_end: Callable[[], None]
    ) -> None:
        self._framer = LineFramer(limit)
        self._most = min(limit, FULL_READ)
        self._on_line = on_line
        self._on_oversized = on_oversized
        self._on_end = on_end
        self._pace = Pace(self._work)

    @property
    def holding(self) -> bool:
        """Whether lines are left for a later turn; for callers that feed it themselves."""
        return self._pace.holding

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pace.reads(transport)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        size, pace = len(data), self._pace
        if not self._framer.held and size < self._most:
            end = data.find(b"\n") + 1
            if end == size:  # the usual case: one line, one read
                if self._on_line(data[:-1]):
                    pace.useful = True
                return
            if end and not pace.holding:
                if self._take_whole(data):
                    pace.hold()
                return
        self._framer.feed(data)
        if not pace.holding and (self._work() or size >= FULL_READ):
            pace.hold()

    def _take_whole(self, data: bytes) -> bool:
        """Deliver the complete lines of a read; returns whether lines are left for a later turn.

        A server that answers many calls writes many short lines at once.
        """
        *lines, rest = data.split(b"\n")
        on_line, pace, budget = self._on_line, self._pace, Budget()
        for at, line in enumerate(lines, start=1):
            if on_line(line):
                pace.useful = True
            if budget.spent():
                rest = b"\n".join((*lines[at:], rest))
                break
        if rest:
            self._framer.feed(rest)
        return b"\n" in rest

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._pace.stop()
        self._on_end()

    def _work(self) -> bool:
        take = self._framer.take
        if (line := take()) is None:
            return False
        self._pace.useful |= self._take(line)
        if self._framer.drained:  # the usual case: one line, one read
            return False
        budget = Budget()
        while (line := take()) is not None:
            self._pace.useful |= self._take(line)
            if budget.spent():
                return not self._framer.drained
        return False

    def _take(self, line: bytes | OversizedLine) -> bool:
        if isinstance(line, bytes):
            return self._on_line(line)
        self._on_oversized(line)
        return False


class PipeEnd:
    """What `connect_read_pipe` and `connect_write_pipe` take in place of a file.

    asyncio's transports close the file that they were given. Those of uvloop close the descriptor
    themselves and then the file. In between, a thread that does not hold the interpreter's lock may
    have opened a file under the same number, such as the database. The transport owns `fd` from now
    on.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_closed_by_loop = not isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)

    @classmethod
    def copy(cls, fd: int) -> Self:
        """The same pipe under a number of its own; `fd` stays open."""
        return cls(os.dup(fd))

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if not self._is_closed_by_loop and self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
