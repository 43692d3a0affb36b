"""Records that wait to be written, in bounded memory."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

FLUSH_COUNT = 2048
"""Records; a transaction costs more than the rows in it."""
MAX_BUFFERED = 10_000
"""Records that are kept while the disk accepts none."""

_T = TypeVar("_T")


class Backlog(Generic[_T]):
    """What waits to be written; where there is too much of it, the oldest is dropped.

    Args:
        pending: Set when there is anything.
        full: Set when there is so much that it should be written now.
    """

    def __init__(self, pending: asyncio.Event, full: asyncio.Event) -> None:
        self.dropped = 0
        self._pending = pending
        self._full = full
        self._records: deque[_T] = deque()

    def add(self, record: _T) -> None:
        records = self._records
        # every call comes by here: one look, and nothing is awaited
        if not records:
            self._pending.set()
        elif len(records) >= FLUSH_COUNT:
            self._full.set()
            if len(records) == MAX_BUFFERED:
                records.popleft()
                self.dropped += 1
        records.append(record)

    def take(self) -> deque[_T]:
        records, self._records = self._records, deque()
        return records

    def put_back(self, records: deque[_T]) -> None:
        records.extend(self._records)
        while len(records) > MAX_BUFFERED:
            records.popleft()
            self.dropped += 1
        self._records = records
