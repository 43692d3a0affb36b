"""What a tool answered, for programs and for readers of text."""

from multitap.content.blocks import (
    AudioBlock,
    Block,
    EmbeddedResource,
    ImageBlock,
    ResourceLink,
    TextBlock,
    UnknownBlock,
)
from multitap.content.kept import Capped, Found, KeptResult, KeptResults, Line, LongText, cap
from multitap.content.result import ToolResult

__all__ = [
    "AudioBlock",
    "Block",
    "Capped",
    "EmbeddedResource",
    "Found",
    "ImageBlock",
    "KeptResult",
    "KeptResults",
    "Line",
    "LongText",
    "ResourceLink",
    "TextBlock",
    "ToolResult",
    "UnknownBlock",
    "cap",
]
