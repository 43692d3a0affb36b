"""Reads lines from a pipe, with bounded work per turn of the loop."""

import asyncio
from collections.abc import Callable
from time import perf_counter

from multitap.pace import FULL_READ, MESSAGES, SECONDS, Budget, Pace
from multitap.wire.jsonrpc.line_framer import LineFramer, Oversized

OnLine = Callable[[bytes], bool]
"""Handles one line; returns whether it was awaited. Must not block or raise."""
OnOversized = Callable[[Oversized], None]
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
        on_line, pace, until = self._on_line, self._pace, perf_counter() + SECONDS
        for at, line in enumerate(lines, start=1):
            if on_line(line):
                pace.useful = True
            if at >= MESSAGES or perf_counter() >= until:  # inlined from `Budget`
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

    def _take(self, line: bytes | Oversized) -> bool:
        if isinstance(line, bytes):
            return self._on_line(line)
        self._on_oversized(line)
        return False
