"""Small PNG pictures become colours; anything else does not."""

import struct
import zlib

import pytest

from multitap.screens.png_pixels import MAGIC, thumbnail


def chunk(kind, body):
    checksum = zlib.crc32(kind + body)
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)


def png(width, height, rows, *, kind=2, depth=8, interlaced=0, palette=b""):
    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced)
    colours = chunk(b"PLTE", palette) if palette else b""
    return MAGIC + chunk(b"IHDR", head) + colours + chunk(b"IDAT", zlib.compress(rows))


RED, GREEN = (255, 0, 0), (0, 255, 0)
LINES = {
    "none": b"\x00" + bytes(RED + GREEN),
    "sub": b"\x01" + bytes(RED) + bytes((1, 255, 0)),
    "up": b"\x02" + bytes(RED + GREEN),
    "average": b"\x03" + bytes(RED) + bytes((129, 255, 0)),
    "paeth": b"\x04" + bytes(RED) + bytes((1, 255, 0)),
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_every_filter_is_undone(line):
    assert thumbnail(png(2, 1, line), 10, 10) == [[RED, GREEN]]


def test_grey_and_palettes_are_colours_too():
    assert thumbnail(png(1, 1, b"\x00\x07", kind=0), 9, 9) == [[(7, 7, 7)]]
    assert thumbnail(png(1, 1, b"\x00\x01", kind=3, palette=bytes(RED + GREEN)), 9, 9) == [[GREEN]]


def test_a_large_picture_becomes_small():
    rows = thumbnail(png(100, 50, b"".join(b"\x00" + bytes(300) for _ in range(50))), 20, 20)

    assert (len(rows[0]), len(rows)) == (20, 10)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GIF89a",
        MAGIC,
        png(2, 2, b"\x00"),
        png(2, 1, b"\x09" + bytes(6)),
        png(2, 1, LINES["none"], depth=16),
        png(2, 1, LINES["none"], interlaced=1),
        png(50_000, 50_000, b""),
        png(1, 1, b"\x00\x09", kind=3, palette=bytes(RED)),
        png(2, 1, LINES["none"])[:-10],
    ],
)
def test_what_cannot_be_drawn_is_left_out(data):
    assert thumbnail(data, 10, 10) is None
