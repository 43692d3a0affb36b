"""Reads lines from a pipe, with bounded work per turn of the loop."""

import asyncio
from collections.abc import Callable

from multitap.pace import FULL_READ, Budget, Pace
from multitap.wire.jsonrpc.line_framer import LineFramer, Oversized

OnLine = Callable[[bytes], bool]
"""Takes one line; whether anybody waits for what this reader brings. Must not block or raise."""
OnOversized = Callable[[Oversized], None]
"""Told of a line over the limit. Must not block or raise."""


class LineReader(asyncio.Protocol):
    """Hands on one line after the other, and lets the others of the loop have their turn.

    Args:
        limit: Bytes of one line.
        on_line: Takes each line.
        on_oversized: Told of those that are too long.
        on_end: Called once, when nothing more can come.
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
        """Whether lines are left for a later turn: whoever feeds it by hand waits for them."""
        return self._pace.holding

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pace.reads(transport)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        size = len(data)
        if not self._framer.held and size < self._most and data.find(b"\n") == size - 1:
            if self._on_line(data[:-1]):  # the usual case: one line, one read
                self._pace.useful = True
            return
        self._framer.feed(data)
        if not self._pace.holding and (self._work() or len(data) >= FULL_READ):
            self._pace.hold()

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
