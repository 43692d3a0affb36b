"""Splits chunks into lines, in linear time and bounded memory."""

from multitap.records import dataclass

EDGE = 512
"""Bytes kept of both ends of a line over the limit."""


@dataclass(frozen=True, slots=True)
class Oversized:
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

    def take(self) -> bytes | Oversized | None:
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

    def _begin(self, piece: bytes) -> Oversized | None:
        self._size += len(piece)
        if self._size <= self._limit:
            self._parts.append(piece)
            return None
        first = not self._head
        if first:
            self._head = b"".join(self._parts)[:EDGE] + piece[:EDGE]
            self._parts.clear()
        self._tail = (self._tail + piece[-EDGE:])[-EDGE:]
        return Oversized(self._size, self._head) if first else None

    def _end(self) -> bytes | Oversized:
        line: bytes | Oversized = b"".join(self._parts)
        if self._size > self._limit:
            line = Oversized(self._size, self._head, self._tail)
        self._parts.clear()
        self._size = 0
        self._head = self._tail = b""
        return line
