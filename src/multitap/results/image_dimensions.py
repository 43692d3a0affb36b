"""Reads an image's size in pixels from its first bytes."""

JPEG_MAGIC = b"\xff\xd8\xff"
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_NO_PAYLOAD = frozenset({0x01, *range(0xD0, 0xD9)})
_END_OF_HEADER = frozenset({0xD9, 0xDA})


def dimensions(head: bytes) -> tuple[int, int] | None:
    """Width and height of the PNG, JPEG, GIF or WebP image that begins with `head`."""
    if head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR":
        size = _pair(head, 16, 4, "big")
    elif head.startswith((b"GIF87a", b"GIF89a")):
        size = _pair(head, 6, 2, "little")
    elif head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        size = _webp(head)
    elif head.startswith(JPEG_MAGIC):
        size = _jpeg(head)
    else:
        return None
    # a side of 0 means a damaged image, or a JPEG that states its height later
    return size if size and all(size) else None


def _pair(head: bytes, start: int, width: int, order: str) -> tuple[int, int] | None:
    if len(head) < start + 2 * width:
        return None
    first, second = head[start : start + width], head[start + width : start + 2 * width]
    if order == "big":
        return int.from_bytes(first, "big"), int.from_bytes(second, "big")
    return int.from_bytes(first, "little"), int.from_bytes(second, "little")


def _webp(head: bytes) -> tuple[int, int] | None:
    match head[12:16]:
        case b"VP8 " if size := _pair(head, 26, 2, "little"):
            return size[0] & 0x3FFF, size[1] & 0x3FFF
        case b"VP8L" if len(head) >= 25:  # noqa: PLR2004 - the end of its header
            bits = int.from_bytes(head[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X" if size := _pair(head, 24, 3, "little"):
            return size[0] + 1, size[1] + 1
        case _:
            return None


def _jpeg(head: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 4 <= len(head) and head[at] == 0xFF:  # noqa: PLR2004 - every segment begins so
        marker = head[at + 1]
        if marker == 0xFF:  # noqa: PLR2004 - padding
            at += 1
        elif marker in _NO_PAYLOAD:
            at += 2
        elif marker in _START_OF_FRAME:
            size = _pair(head, at + 5, 2, "big")
            return (size[1], size[0]) if size else None
        elif marker in _END_OF_HEADER:
            return None
        else:
            at += 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return None
