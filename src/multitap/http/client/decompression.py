"""Decompresses bodies in bounded pieces."""

import zlib
from typing import Protocol

_PIECE = 64 * 1024  # bytes of output at a time: compressed data may expand a thousandfold
_SLICE = 16 * 1024  # bytes of input at a time: the rest after a member is copied for each
_GZIP = 31
_DEFLATE = 15
_RAW = -15
_ZLIB = 8  # the method in the first byte of a zlib header; many servers leave the header out


class _Member(Protocol):
    """The decompressor of one compressed stream; a body may have several."""

    @property
    def eof(self) -> bool: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class Decompressor:
    """Decompresses one body.

    Args:
        encoding: Its `Content-Encoding`.

    Raises:
        ValueError: We did not ask for this encoding.
        zlib.error: From `piece`: the body is damaged.
    """

    def __init__(self, encoding: str) -> None:
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise ValueError(encoding)
        self._bits = _DEFLATE if encoding == "deflate" else _GZIP
        self._member: _Member | None = None
        self._input = memoryview(b"")
        self._tail = b""

    @property
    def hungry(self) -> bool:
        """Whether it needs more input."""
        return not self._tail and not self._input

    def feed(self, data: bytes) -> None:
        """Add the next bytes; only when it is `hungry`."""
        self._input = memoryview(data)

    def piece(self) -> bytes:
        """The next piece of output; may be empty."""
        if not self._tail:
            self._tail = bytes(self._input[:_SLICE])
            self._input = self._input[_SLICE:]
        member = self._member or self._begin()
        if member is None:
            return b""
        plain = member.decompress(self._tail, _PIECE)
        self._tail = member.unconsumed_tail
        if member.eof:
            self._tail = member.unused_data
            self._member = None
        return plain

    def _begin(self) -> _Member | None:
        """Begin the next member; some servers pad with zeros."""
        if self._bits == _GZIP:
            self._tail = self._tail.lstrip(b"\0")
        if not self._tail:
            return None
        if self._bits == _DEFLATE and self._tail[0] & 0xF != _ZLIB:
            self._bits = _RAW
        self._member = zlib.decompressobj(self._bits)
        return self._member
