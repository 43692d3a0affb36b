"""Records that wait to be written, in bounded memory."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

FLUSH_COUNT = 2048
"""Records; a transaction costs more than the rows in it."""
MAX_BUFFERED = 10_000
"""Records that are kept while the disk accepts none."""

_T = TypeVar("_T")


class RecordBacklog(Generic[_T]):
    """What waits to be written; where there is too much of it, the oldest is dropped.

    Args:
        pending: Set when there is anything.
        full: Set when there is so much that it should be written now.
    """

    def __init__(self, pending: asyncio.Event, full: asyncio.Event) -> None:
        self.dropped = 0
        self._pending = pending
        self._full = full
        self.records: deque[_T] = deque()
        """Always the same one: who adds many appends to it, and calls `stir` now and then."""

    def add(self, record: _T) -> None:
        self.records.append(record)
        self.stir()

    def stir(self) -> None:
        """Have what was added written soon.

        To be called after the first record, and again from `FLUSH_COUNT` on.
        """
        self._pending.set()
        if len(self.records) >= FLUSH_COUNT:
            self._full.set()
            self._trim()

    # A copy, and the deque emptied in place: callers hold on to `records` itself.
    def take(self) -> deque[_T]:
        taken = self.records.copy()
        self.records.clear()
        return taken

    def put_back(self, records: deque[_T]) -> None:
        self.records.extendleft(reversed(records))
        self._trim()
        self._pending.set()

    def _trim(self) -> None:
        # The oldest go: what happens now is what somebody will look for.
        while len(self.records) > MAX_BUFFERED:
            self.records.popleft()
            self.dropped += 1
