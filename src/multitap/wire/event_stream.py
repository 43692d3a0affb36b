"""Server-sent events out of bytes, in linear time and bounded memory."""

import re
from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"
_EDGE = 512  # bytes of an oversized event: enough to find whose answer it was
_BLOCK = 1024  # lines joined early: millions of tiny ones would cost more than their bytes
_LONGEST_ID = 1024  # it goes back to the server in a header
_LONGEST_RETRY = 9  # digits
_LONE = re.compile(rb"(?:event: message\r?\n)?data: ([^\r\n]+)\r?\n\r?\n")
"""The one event that most answers are."""


class Event(NamedTuple):
    """One event; of an oversized one only the first and last bytes."""

    kind: str
    data: bytes
    oversized: bool = False


class EventStream:
    """Takes chunks as they come and gives the events they complete.

    Args:
        limit: Bytes of one event.
    """

    def __init__(self, limit: int) -> None:
        self.last_id = ""
        """Where to resume; empty when the server gave no ids."""
        self.retry: float | None = None
        """Seconds the server wants us to wait before we come back."""
        self.oversized = False
        """Whether the event under way is over the limit already."""
        self._limit = limit
        self._size = 0
        self._tail = b""
        self.restart()

    def restart(self) -> None:
        """Begin a new connection: an event that the old one cut off is lost."""
        self._at_start = True
        self._after_cr = False
        self._partial: list[bytes] = []
        self._unfinished = 0
        self._begin_event()

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        if not chunk:
            return []
        if self._is_between and len(chunk) <= self._limit and (lone := _LONE.fullmatch(chunk)):
            self._at_start = self._after_cr = False
            return [Event("message", lone[1])]
        self._after_cr = chunk.endswith(b"\r")
        if b"\n" not in chunk and b"\r" not in chunk:  # much faster to see than to split
            self._hold(chunk)
            return []
        events: list[Event] = []
        for piece in chunk.splitlines(keepends=True):
            if not piece.endswith((b"\n", b"\r")):
                self._hold(piece)
            elif (event := self._end_line(piece)) is not None:
                events.append(event)
        return events

    @property
    def _is_between(self) -> bool:
        """Whether nothing of an event is there yet."""
        begun = self._unfinished or self._size or self._id or self.oversized
        return not begun and self._kind == "message"

    def _hold(self, piece: bytes) -> None:
        self._partial.append(piece)
        self._unfinished += len(piece)
        self._weigh(piece)

    def _end_line(self, piece: bytes) -> Event | None:
        ending = 2 if piece.endswith(b"\r\n") else 1
        size = self._unfinished + len(piece) - ending
        if self._partial:
            piece = b"".join((*self._partial, piece))
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
            self._lines.append(value)
            self._size += len(value) + 1
            self._weigh(value)
            if len(self._lines) >= _BLOCK:
                self._blocks.append(b"\n".join(self._lines))
                self._lines.clear()
        elif name == b"event":
            self._kind = value[:_EDGE].decode("utf-8", "replace") or "message"
        elif name == b"id":
            self._id = _usable_id(value)
        elif name == b"retry" and value.isdigit() and len(value) <= _LONGEST_RETRY:
            self.retry = int(value) / 1000

    def _weigh(self, piece: bytes) -> None:
        if not self.oversized:
            if self._size + self._unfinished <= self._limit:
                return
            self.oversized = True
            self._head = _beginning(self._blocks or self._lines or self._partial)
            self._blocks.clear()
            self._lines.clear()
        self._partial.clear()
        self._tail = (self._tail + piece[-_EDGE:])[-_EDGE:]

    def _end_event(self) -> Event | None:
        if self._id:
            self.last_id = self._id
        event = None
        if self.oversized:
            event = Event(self._kind, self._head + self._tail, oversized=True)
        elif self._size:
            event = Event(self._kind, b"\n".join((*self._blocks, *self._lines)))
        self._begin_event()
        return event

    def _begin_event(self) -> None:
        self.oversized = False
        self._kind = "message"
        self._id = ""
        self._blocks: list[bytes] = []
        self._lines: list[bytes] = []
        self._size = 0
        self._head = self._tail = b""


def _beginning(pieces: list[bytes]) -> bytes:
    head = b""
    for piece in pieces:
        head += piece[:_EDGE]
        if len(head) >= _EDGE:
            break
    return head[:_EDGE]


def _usable_id(value: bytes) -> str:
    text = value[: _LONGEST_ID + 1].decode("utf-8", "replace")
    return text if len(text) <= _LONGEST_ID and text.isprintable() else ""
