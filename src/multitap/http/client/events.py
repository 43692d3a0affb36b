"""Parses server-sent events in linear time and bounded memory."""

import re
from typing import NamedTuple

from multitap.limits import Budget

_MANY = 1024  # pieces joined early: millions of tiny ones would cost more than their bytes
_BLOCK = 1024 * 1024  # bytes joined early: small pieces would fragment the memory


class ChunkBuffer:
    """Collects pieces and joins them, in linear time."""

    __slots__ = ("_blocks", "_pieces", "_separator", "_size")

    def __init__(self, separator: bytes = b"") -> None:
        self._separator = separator
        self._blocks: list[bytes] = []
        self._pieces: list[bytes] = []
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._blocks or self._pieces)

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if len(self._pieces) >= _MANY or self._size >= _BLOCK:
            self._blocks.append(self._separator.join(self._pieces))
            self._pieces.clear()
            self._size = 0

    def join(self) -> bytes:
        if not self._blocks and len(self._pieces) == 1:
            return self._pieces[0]
        return self._separator.join((*self._blocks, *self._pieces))

    def beginning(self, size: int) -> bytes:
        """The first bytes, without the separators."""
        head = b""
        for piece in (*self._blocks, *self._pieces):
            head += piece[:size]
            if len(head) >= size:
                break
        return head[:size]

    def clear(self) -> None:
        self._blocks.clear()
        self._pieces.clear()
        self._size = 0


_BOM = b"\xef\xbb\xbf"
_EDGE = 512  # bytes of an oversized event: enough to find the id of its request
_WINDOW = 1024  # bytes split into lines at a time: even blank lines take less than a millisecond
_FIELDS = 3  # fields that an event may have beside its data
_LEAST_WASTE = 64  # bytes: a short line costs as much as one of this size
_LONGEST_ID = 1024  # it goes back to the server in a header
_LONGEST_RETRY = 9  # digits
_LONE = re.compile(rb"(?:event: message\r?\n)?data: ")
"""The beginning of the usual response: a single event."""
_ENDS = (b"\n", b"\r\n")


class Event(NamedTuple):
    """One event; for an oversized one, only its first and last bytes."""

    kind: str
    data: bytes
    oversized: bool = False


class EventParser:
    """Takes chunks as they arrive and returns complete events, one at a time.

    Parsing happens in `take`, so that the caller controls the work per turn. An event has at most
    `limit` bytes.
    """

    def __init__(self, limit: int) -> None:
        self.last_id = ""
        """The last event id, to resume from; empty if the server sends none."""
        self.retry: float | None = None
        """Seconds that the server wants us to wait before we reconnect."""
        self.oversized = False
        """Whether the current event is over the limit."""
        self.wasted = 0
        """Bytes of comments and blank lines since the reader last reset it."""
        self._limit = limit
        self._data = ChunkBuffer(b"\n")
        self._size = self._fields = 0
        self._tail = b""
        self.restart()

    def restart(self) -> None:
        """Begin with a new connection: an incomplete event is dropped."""
        self._chunk = b""
        self._at = 0
        self._lines: list[bytes] = []  # lines of the window, in reverse order
        self._at_start = True
        self._after_cr = False
        self._partial = ChunkBuffer()
        self._unfinished = 0
        self._begin_event()

    @property
    def drained(self) -> bool:
        """Whether all input has been parsed."""
        return not self._chunk and not self._lines

    def feed(self, chunk: bytes) -> None:
        """Add received bytes."""
        self._chunk = self._chunk[self._at :] + chunk if self._chunk else chunk
        self._at = 0

    def take(self, budget: Budget) -> Event | None:
        """The next event; None if there is no complete one, or the budget is spent.

        Each call makes some progress, even without budget.
        """
        if not self._lines and not self._at and (lone := self._lone()) is not None:
            return lone
        while True:
            while self._lines:
                if (event := self._take_line(self._lines.pop())) is not None:
                    return event
            if not self._chunk:
                return None
            self._cut_window()
            if budget.late():
                return None

    def _lone(self) -> Event | None:
        chunk = self._chunk
        is_partial = self._unfinished or self._size or self._id or self.oversized or self._after_cr
        if is_partial or self._kind != "message" or len(chunk) > self._limit:
            return None
        if (lone := _LONE.match(chunk)) is None:
            return None
        start = lone.end()
        end = chunk.find(b"\n", start)
        if end < 0 or chunk[end + 1 : end + 4] not in _ENDS:
            return None
        data = chunk[start:end].removesuffix(b"\r")
        if not data or b"\r" in data:
            return None
        self._chunk = b""
        self._at_start = False
        return Event("message", data)

    def _cut_window(self) -> None:
        chunk, start = self._chunk, self._at
        if self._after_cr and chunk.startswith(b"\n", start):
            start += 1
        end, is_one = _window(chunk, start)
        window = chunk[start:end]
        self._after_cr = window.endswith(b"\r") if window else False
        self._lines = [window] if is_one else window.splitlines(keepends=True)[::-1]
        if end == len(chunk):
            self._chunk, end = b"", 0
        self._at = end

    def _take_line(self, piece: bytes) -> Event | None:
        if piece.endswith((b"\n", b"\r")):
            return self._end_line(piece)
        self._partial.add(piece)
        self._unfinished += len(piece)
        self._weigh(piece)
        return None

    def _end_line(self, piece: bytes) -> Event | None:
        ending = 2 if piece.endswith(b"\r\n") else 1
        size = self._unfinished + len(piece) - ending
        if self._partial:
            self._partial.add(piece)
            piece = self._partial.join()
            self._partial.clear()
        self._unfinished = 0
        if self._at_start:
            self._at_start = False
            if piece.startswith(_BOM):
                piece = piece[len(_BOM) :]
                size -= len(_BOM)
        if not size:
            return self._end_event()
        if self.oversized:
            self._weigh(piece)
        else:
            self._field(piece, size)
        return None

    def _field(self, line: bytes, size: int) -> None:
        colon = line.find(b":", 0, size)
        name = line[: colon if colon >= 0 else size]
        start = size if colon < 0 else colon + 1
        if line[start : start + 1] == b" ":
            start += 1
        value = line[start:size]
        if name == b"data":
            self._data.add(value)
            self._size += len(value) + 1
            self._weigh(value)
            return
        self._fields += 1
        if name == b"event":
            self._kind = value[:_EDGE].decode("utf-8", "replace") or "message"
        elif name == b"id":
            self._id = _usable_id(value)
        elif name == b"retry" and value.isdigit() and len(value) <= _LONGEST_RETRY:
            self.retry = int(value) / 1000
        else:
            self._fields = _FIELDS + 1  # a comment, or an unknown field
        if self._fields > _FIELDS:
            self.wasted += max(size, _LEAST_WASTE)

    def _weigh(self, piece: bytes) -> None:
        if not self.oversized:
            if self._size + self._unfinished <= self._limit:
                return
            self.oversized = True
            self._head = (self._data or self._partial).beginning(_EDGE)
            self._data.clear()
        self.wasted += len(piece)
        self._partial.clear()
        self._tail = (self._tail + piece[-_EDGE:])[-_EDGE:]

    def _end_event(self) -> Event | None:
        if self._id:
            self.last_id = self._id
        event = None
        if self.oversized:
            event = Event(self._kind, self._head + self._tail, oversized=True)
        elif self._size:
            event = Event(self._kind, self._data.join())
        else:
            self.wasted += _LEAST_WASTE
        self._begin_event()
        return event

    def _begin_event(self) -> None:
        self.oversized = False
        self._kind = "message"
        self._id = ""
        self._fields = 0
        self._data = ChunkBuffer(b"\n")
        self._size = 0
        self._head = self._tail = b""


def _window(chunk: bytes, start: int) -> tuple[int, bool]:
    """The end of the next window, at a line end if possible; and whether it has one line only.

    Finding it is much faster than splitting lines.
    """
    end = start + _WINDOW
    if end >= len(chunk):
        return len(chunk), False
    last = max(chunk.rfind(b"\n", start, end), chunk.rfind(b"\r", start, end))
    if last >= 0:
        return last + 1, False
    newline = chunk.find(b"\n", end)
    end = chunk.find(b"\r", end, len(chunk) if newline < 0 else newline)
    if end >= 0 and end != newline - 1:
        return end + 1, True
    return len(chunk) if newline < 0 else newline + 1, True


def _usable_id(value: bytes) -> str:
    text = value[: _LONGEST_ID + 1].decode("utf-8", "replace")
    return text if len(text) <= _LONGEST_ID and text.isprintable() else ""
