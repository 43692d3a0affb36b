"""Tool results, for programs and for readers of text.

In: a result as undecoded JSON. Out: a `ToolResult` that decodes only what is read, its blocks, and
its text, cut if it is too long (`KeptResults` has the rest). Results are foreign: `result.sift`
drops what no client can use. It must not know who asked, and never talks to a server.
"""

from multitap.results.blocks import (
    AudioBlock,
    Block,
    EmbeddedResource,
    ImageBlock,
    ResourceLink,
    TextBlock,
    UnknownBlock,
)
from multitap.results.long_text import (
    Capped,
    Found,
    KeptResult,
    KeptResults,
    LongText,
    TextLine,
    cap,
)
from multitap.results.result import ToolResult

__all__ = [
    "AudioBlock",
    "Block",
    "Capped",
    "EmbeddedResource",
    "Found",
    "ImageBlock",
    "KeptResult",
    "KeptResults",
    "LongText",
    "ResourceLink",
    "TextBlock",
    "TextLine",
    "ToolResult",
    "UnknownBlock",
    "cap",
]
