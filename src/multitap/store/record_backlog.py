"""Records that wait to be written, in bounded memory."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

FLUSH_COUNT = 2048
"""Records that are written in one transaction, which costs more than its rows."""
MAX_BUFFERED = 10_000
"""Records that are kept while they cannot be written."""

_T = TypeVar("_T")


class RecordBacklog(Generic[_T]):
    """Records that wait to be written; beyond the limit, the oldest are dropped.

    Args:
        pending: Set when there are records.
        full: Set when enough records wait to be written at once.
    """

    def __init__(self, pending: asyncio.Event, full: asyncio.Event) -> None:
        self.dropped = 0
        self._pending = pending
        self._full = full
        self.records: deque[_T] = deque()
        """Always the same object: frequent writers append to it, and call `stir` now and then."""

    def add(self, record: _T) -> None:
        self.records.append(record)
        self.stir()

    def stir(self) -> None:
        """Have the added records written soon.

        To be called after the first record, and again from `FLUSH_COUNT` on.
        """
        self._pending.set()
        if len(self.records) >= FLUSH_COUNT:
            self._full.set()
            self._trim()

    # A copy, and the deque emptied in place: callers keep references to `records`.
    def take(self) -> deque[_T]:
        taken = self.records.copy()
        self.records.clear()
        return taken

    def put_back(self, records: deque[_T]) -> None:
        self.records.extendleft(reversed(records))
        self._trim()
        self._pending.set()

    def _trim(self) -> None:
        # The oldest: recent records are more likely to be needed.
        while len(self.records) > MAX_BUFFERED:
            self.records.popleft()
            self.dropped += 1
