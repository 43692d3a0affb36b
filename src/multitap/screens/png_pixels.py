"""Small PNG pictures as colours, to be drawn with characters."""

import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice

from multitap.records import dataclass

MAGIC = b"\x89PNG\r\n\x1a\n"
MOST_PIXELS = 1_000_000
"""Pixels of a picture that can be drawn, because Python decodes it byte by byte."""
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Channels by PNG's colour types: grey, RGB, palette, grey and alpha, RGB and alpha."""

Colour = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Head:
    width: int
    height: int
    kind: int

    @property
    def channels(self) -> int:
        return _CHANNELS[self.kind]

    @property
    def stride(self) -> int:
        """Bytes of a line."""
        return self.width * self.channels


def thumbnail(data: bytes, width: int, height: int) -> list[list[Colour]] | None:
    """The picture scaled to the given columns and rows; None if it cannot be drawn.

    Args:
        data: A PNG; other pictures cannot be drawn.
        width: The maximum columns.
        height: The maximum rows.
    """
    try:
        return _draw(data, width, height)
    except (zlib.error, struct.error, IndexError, ValueError):
        return None  # it is damaged


def _draw(data: bytes, width: int, height: int) -> list[list[Colour]] | None:
    if not data.startswith(MAGIC):
        return None
    head: _Head | None = None
    palette: bytes = b""
    packed = bytearray()
    for kind, body in _chunks(data):
        match kind:
            case b"IHDR":
                wide, high, depth, colours, _, _, interlaced = struct.unpack(">IIBBBBB", body)
                if depth != 8 or interlaced or colours not in _CHANNELS:  # noqa: PLR2004 - bits
                    return None
                head = _Head(wide, high, colours)
            case b"PLTE":
                palette = body
            case b"IDAT":
                packed += body
            case _:
                continue
    if head is None or not 0 < head.width * head.height <= MOST_PIXELS:
        return None
    # no more than the picture can hold: a few bytes may unpack to gigabytes
    raw = zlib.decompressobj().decompress(packed, (head.stride + 1) * head.height)
    step = max(1.0, head.width / width, head.height / height)
    columns = [int(column * step) for column in range(int(head.width / step))]
    wanted = {int(row * step) for row in range(max(1, int(head.height / step)))}
    return [
        [_colour(line, column, head, palette) for column in columns]
        for number, line in enumerate(_lines(raw, head))
        if number in wanted
    ]


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(MAGIC)
    while at + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        yield kind, data[at + 8 : at + 8 + size]
        at += size + 12  # length, kind and checksum; a wrong one shows as a damaged picture


def _lines(raw: bytes, head: _Head) -> Iterator[Sequence[int]]:
    """The unfiltered lines; each depends on the one above."""
    stride, back = head.stride, head.channels
    above = bytearray(stride)
    for start in range(0, (stride + 1) * head.height, stride + 1):
        method, line = raw[start], bytearray(raw[start + 1 : start + 1 + stride])
        if len(line) < stride:
            raise ValueError("cut")
        _unfilter(method, line, above, back)
        yield line
        above = line


def _unfilter(method: int, line: bytearray, above: bytearray, back: int) -> None:
    match method:
        case 0:
            return
        case 1:
            for index in range(back, len(line)):
                line[index] = (line[index] + line[index - back]) & 255
        case 2:
            line[:] = bytes((one + up) & 255 for one, up in zip(line, above, strict=True))
        case 3:
            for index, up in enumerate(above):
                left = line[index - back] if index >= back else 0
                line[index] = (line[index] + (left + up) // 2) & 255
        case 4:
            for index, up in enumerate(above):
                left, corner = (
                    (line[index - back], above[index - back]) if index >= back else (0, 0)
                )
                line[index] = (line[index] + _paeth(left, up, corner)) & 255
        case _:
            raise ValueError(method)


def _paeth(left: int, up: int, corner: int) -> int:
    to_left, to_up = abs(up - corner), abs(left - corner)
    to_corner = abs(left + up - 2 * corner)
    if to_left <= to_up and to_left <= to_corner:
        return left
    return up if to_up <= to_corner else corner


def _colour(line: Sequence[int], column: int, head: _Head, palette: bytes) -> Colour:
    at = column * head.channels
    match head.kind:
        case 0 | 4:
            grey = line[at]
            return grey, grey, grey
        case 3:
            red, green, blue = islice(palette, line[at] * 3, line[at] * 3 + 3)
            return red, green, blue
        case _:
            return line[at], line[at + 1], line[at + 2]
