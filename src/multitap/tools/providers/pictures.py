"""The images of a result, in the formats that providers accept."""

import binascii
from collections.abc import Iterator

from multitap.records import dataclass
from multitap.results import ImageBlock, ToolResult

NOTHING = "(no output)"
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
)


@dataclass(frozen=True, slots=True)
class ResultImage:
    mime_type: str
    """The media type found in the bytes: providers refuse a wrong one."""
    data: str
    """The bytes in base64."""

    @property
    def url(self) -> str:
        return f"data:{self.mime_type};base64,{self.data}"


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """The images that a provider accepts; others are described in text."""

    types: frozenset[str]
    largest: int
    """Characters in base64."""
    longest_side: int | None = None
    """Pixels."""

    def pictures(self, result: ToolResult) -> Iterator[ResultImage]:
        for block in result.images:
            if self._fits(block):
                yield ResultImage(
                    _type(block), binascii.b2a_base64(block.data, newline=False).decode()
                )

    def _fits(self, image: ImageBlock) -> bool:
        side = max(image.width or 0, image.height or 0)
        return (
            # computed, not encoded: base64 of a picture that is too large would be thrown away
            (image.size + 2) // 3 * 4 <= self.largest
            and (self.longest_side is None or side <= self.longest_side)
            and _type(image) in self.types
        )


def text_of(result: ToolResult) -> str:
    """The text of a result for the model, with a line for everything that is not text."""
    text = result.error if result.is_error else result.text
    return text if text and text.strip() else NOTHING


def _type(image: ImageBlock) -> str:
    head = image.data[:16]
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    return next((name for magic, name in _MAGIC if head.startswith(magic)), image.mime_type)
