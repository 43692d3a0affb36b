"""Lines out of a stream of chunks, in linear time and bounded memory."""

from dataclasses import dataclass

EDGE = 512
"""Bytes kept of each end of a line that is over the limit."""


@dataclass(frozen=True, slots=True)
class Oversized:
    """A line over the limit: told of once it is, and again with its `tail` when it ends."""

    size: int
    head: bytes
    tail: bytes = b""


class LineFramer:
    """Cuts chunks into lines; a line over `limit` bytes is dropped while it comes in."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._head = b""
        self._tail = b""

    def feed(self, chunk: bytes) -> list[bytes | Oversized]:
        """The lines that `chunk` completes, without their ends."""
        *ended, rest = chunk.split(b"\n")
        lines: list[bytes | Oversized] = []
        for piece in ended:
            if not self._size and len(piece) <= self._limit:
                lines.append(piece)  # most are whole
                continue
            self._add(piece, lines)
            lines.append(self._take())
        if rest:
            self._add(rest, lines)
        return lines

    def _add(self, piece: bytes, lines: list[bytes | Oversized]) -> None:
        self._size += len(piece)
        if self._size <= self._limit:
            self._parts.append(piece)
            return
        if not self._head:
            self._head = b"".join(self._parts)[:EDGE] + piece[:EDGE]
            self._parts.clear()
            lines.append(Oversized(self._size, self._head))
        self._tail = (self._tail + piece[-EDGE:])[-EDGE:]

    def _take(self) -> bytes | Oversized:
        if self._size > self._limit:
            line: bytes | Oversized = Oversized(self._size, self._head, self._tail)
        else:
            line = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        self._size = 0
        self._head = self._tail = b""
        return line
