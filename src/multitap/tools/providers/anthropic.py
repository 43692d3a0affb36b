"""Tools, calls and results as Anthropic's Messages interface writes them."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from multitap.results import ToolResult
from multitap.tools.providers.dialects import LooseSchema
from multitap.tools.providers.offers import (
    Answered,
    Converted,
    ImageLimits,
    RawCall,
    member,
    members_of,
    text_of,
)

NAME = "Anthropic"
dialect = LooseSchema(NAME, re.compile(r"[A-Za-z0-9_.-]{1,64}"))
_IMAGES = ImageLimits(
    frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"}),
    # the API's own limits for one image; with a larger one, the whole request is refused
    largest=5 * 2**20,
    longest_side=8000,
)


class AnthropicMessages:
    """The Messages interface."""

    def declare(self, name: str, tool: Converted) -> dict[str, Any]:
        about = {"description": tool.description} if tool.description else {}
        return {"name": name, **about, "input_schema": tool.schema}

    def wrap(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return tools

    def calls(self, answer: Any) -> Iterator[RawCall]:
        """The calls in a message, or in its content."""
        for block in members_of(answer, "content"):
            if member(block, "type") == "tool_use":
                yield member(block, "id") or "", member(block, "name") or "", member(block, "input")

    def messages(self, answers: Iterable[Answered]) -> list[dict[str, Any]]:
        """One message with all results: each call has to be answered in the next message."""
        blocks = [_block(call.id, result) for call, result in answers]
        return [{"role": "user", "content": blocks}] if blocks else []


def _block(call_id: str, result: ToolResult) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": text_of(result)}]
    if not result.is_error:  # a failed result may contain only text
        content += [
            {
                "type": "image",
                "source": {
                    "type": "base64",
                    "media_type": picture.mime_type,
                    "data": picture.data,
                },
            }
            for picture in _IMAGES.pictures(result)
        ]
    failed = {"is_error": True} if result.is_error else {}
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **failed}
