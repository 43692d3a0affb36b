"""The content blocks of a tool's result, each readable as text."""

import binascii
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Raw

JPEG_MAGIC = b"\xff\xd8\xff"
# the three are between the frames, but are tables and a reserved marker: DHT, JPG and DAC
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# TEM, RST and SOI have no length after them
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
            # the other two bits of each are a scale for showing it
            return size[0] & 0x3FFF, size[1] & 0x3FFF
        case b"VP8L" if len(head) >= 25:  # noqa: PLR2004 - the end of its header
            bits = int.from_bytes(head[21:25], "little")
            # both are stored less one, because no side is 0
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
            # a frame has its height first
            return (size[1], size[0]) if size else None
        elif marker in _END_OF_HEADER:
            return None
        else:
            at += 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return None


_SPACE = b" \t\r\n"
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_"
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
# PNG, GIF and WebP have their size in the first bytes: a picture of megabytes is not decoded to
# describe it.
_HEAD = 64
_JPEG_HEAD = 350_000  # bytes; the size of a JPEG comes after its profile and thumbnail
_ONE_LINE = 200  # characters of one property in a block's description


class TextBlock(msgspec.Struct, frozen=True):
    text: str

    def __str__(self) -> str:
        return self.text


class _Media(msgspec.Struct, frozen=True, dict=True):
    mime_type: str
    """As the server states it; may be empty."""
    encoded: str
    """The bytes in base64, as received."""

    @cached_property
    def data(self) -> bytes:
        return _decode(self.encoded)

    @property
    def size(self) -> int:
        """The size in bytes, computed without decoding."""
        return _size_decoded(self.encoded)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"  # without the bytes


class ImageBlock(_Media, frozen=True):
    @cached_property
    def _pixels(self) -> tuple[int, int] | None:
        head = _decode(self.encoded[:_HEAD])
        if head.startswith(JPEG_MAGIC):
            head = _decode(self.encoded[:_JPEG_HEAD])
        return dimensions(head)

    @property
    def width(self) -> int | None:
        return self._pixels[0] if self._pixels else None

    @property
    def height(self) -> int | None:
        return self._pixels[1] if self._pixels else None

    def __str__(self) -> str:
        pixels = f"{self.width}x{self.height} pixels" if self._pixels else ""
        return _describe("image", self.mime_type, _kilobytes(self.size), pixels)


class AudioBlock(_Media, frozen=True):
    def __str__(self) -> str:
        return _describe("audio", self.mime_type, _kilobytes(self.size))


class ResourceLink(msgspec.Struct, frozen=True):
    """A resource that can be read from the same server."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    """The size in bytes, as the server states it."""

    def __str__(self) -> str:
        size = "" if self.size is None else _kilobytes(self.size)
        return _describe("resource link", self.uri, self.title or self.name, self.mime_type, size)


class EmbeddedResource(msgspec.Struct, frozen=True, dict=True):
    """A resource with its content: `text` or `data`."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    encoded: str | None = None
    """The bytes in base64, as received."""

    @cached_property
    def data(self) -> bytes | None:
        return None if self.encoded is None else _decode(self.encoded)

    def __repr__(self) -> str:
        return f"<EmbeddedResource {self.uri}>"  # without the content

    def __str__(self) -> str:
        if self.text is not None:
            return f"{_describe('resource', self.uri, self.mime_type)}\n{self.text}"
        size = _kilobytes(_size_decoded(self.encoded or ""))
        return _describe("resource", self.uri, self.mime_type, size)


class UnknownBlock(msgspec.Struct, frozen=True):
    """A content block of an unknown type, or one that is malformed."""

    type: str
    raw: bytes
    problem: str = "unknown kind"

    def __repr__(self) -> str:
        return f"<UnknownBlock {self}>"

    def __str__(self) -> str:
        return _describe(self.type or "content", self.problem, _kilobytes(len(self.raw)))


Block = TextBlock | ImageBlock | AudioBlock | ResourceLink | EmbeddedResource | UnknownBlock


class _Fields(msgspec.Struct):
    """Every field a block may have; none is trusted to have its type."""

    type: Any = None
    text: Any = None
    data: Any = None
    mime_type: Any = msgspec.field(default=None, name="mimeType")
    resource: Any = None
    uri: Any = None
    name: Any = None
    title: Any = None
    description: Any = None
    size: Any = None
    blob: Any = None


_parse = msgspec.json.Decoder(_Fields).decode


def block(raw: Raw) -> Block:
    """Parse one content block; a malformed one becomes an `UnknownBlock`.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: It is not JSON.
    """
    try:
        fields = _parse(raw)
    except msgspec.ValidationError:
        return UnknownBlock("", bytes(raw), "not an object")
    make = _MAKERS.get(fields.type, _unknown) if isinstance(fields.type, str) else _untyped_block
    block_or_problem = make(fields)
    if isinstance(block_or_problem, str):
        return UnknownBlock(_string(fields.type), bytes(raw), block_or_problem)
    return block_or_problem


def _text(fields: _Fields) -> TextBlock | str:
    return TextBlock(fields.text) if isinstance(fields.text, str) else "without a text"


def _image(fields: _Fields) -> ImageBlock | str:
    if not _is_base64(fields.data):
        return "its data is not base64"
    return ImageBlock(_string(fields.mime_type), fields.data)


def _audio(fields: _Fields) -> AudioBlock | str:
    if not _is_base64(fields.data):
        return "its data is not base64"
    return AudioBlock(_string(fields.mime_type), fields.data)


def _link(fields: _Fields) -> ResourceLink | str:
    if not isinstance(fields.uri, str):
        return "without a uri"
    return ResourceLink(
        uri=fields.uri,
        name=_string(fields.name),
        title=_string(fields.title) or None,
        description=_string(fields.description) or None,
        mime_type=_string(fields.mime_type) or None,
        # not `isinstance`: true is an int to Python
        size=fields.size if type(fields.size) is int else None,
    )


def _embedded_resource(fields: _Fields) -> EmbeddedResource | str:
    try:
        resource = msgspec.convert(fields.resource, _Fields)
    except msgspec.ValidationError:
        return "without a resource"
    if not isinstance(resource.uri, str):
        return "without a uri"
    mime_type = _string(resource.mime_type) or None
    if isinstance(resource.text, str):
        return EmbeddedResource(resource.uri, mime_type, text=resource.text)
    if _is_base64(resource.blob):
        return EmbeddedResource(resource.uri, mime_type, encoded=resource.blob)
    return "with neither text nor base64"


def _unknown(_: _Fields) -> str:
    return "unknown kind"


def _untyped_block(_: _Fields) -> str:
    return "without a type"


_Maker = Callable[[_Fields], Block | str]
"""Makes a block, or returns what is wrong with it."""

_MAKERS: Mapping[str, _Maker] = {
    "text": _text,
    "image": _image,
    "audio": _audio,
    "resource_link": _link,
    "resource": _embedded_resource,
}


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _body(encoded: str) -> bytes:
    return encoded.encode("ascii", "replace").translate(None, _SPACE).rstrip(b"=")


def _is_base64(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    body = _body(value)
    # a single character has only six bits, less than a byte; padding is optional in practice
    return len(body) % 4 != 1 and not body.translate(None, _ALPHABET)


def _decode(encoded: str) -> bytes:
    body = _body(encoded).translate(_URL_SAFE)
    whole = body[:-1] if len(body) % 4 == 1 else body  # a prefix may be cut anywhere
    return binascii.a2b_base64(whole + b"=" * (-len(whole) % 4))


def _size_decoded(encoded: str) -> int:
    return len(_body(encoded)) * 3 // 4


def _kilobytes(size: int) -> str:
    return f"{size / 1024:,.1f} KB"


def _describe(kind: str, *facts: str | None) -> str:
    """`[kind: property, property]` on one line, whatever the server sent."""
    return f"[{_line(kind)}: {', '.join(_line(fact) for fact in facts if fact)}]"


def _line(text: str) -> str:
    line = "".join(char if char.isprintable() else " " for char in text[: _ONE_LINE + 1])
    return line if len(line) <= _ONE_LINE else f"{line[:_ONE_LINE]}…"
