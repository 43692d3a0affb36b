"""Tools, calls and results as OpenAI's two interfaces write them."""

from collections.abc import Iterable, Iterator
from typing import Any

from multitap.tools.providers.dialects import LooseSchema
from multitap.tools.providers.offers import (
    Answered,
    Converted,
    ImageLimits,
    RawCall,
    ResultImage,
    member,
    members_of,
    text_of,
)

NAME = "OpenAI"
# More tools make the API refuse the request.
MOST_TOOLS = 128
dialect = LooseSchema(NAME)
_IMAGES = ImageLimits(
    frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"}), largest=20 * 2**20
)


class ChatCompletions:
    """The Chat Completions API, which most other providers support too."""

    def declare(self, name: str, tool: Converted) -> dict[str, Any]:
        return {"type": "function", "function": _function(name, tool)}

    def wrap(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return tools

    def calls(self, answer: Any) -> Iterator[RawCall]:
        """The calls in a completion, or in its message."""
        choices = members_of(member(answer, "choices"))
        message = member(choices[0], "message") if choices else answer
        for call in members_of(member(message, "tool_calls")):
            function = member(call, "function")
            yield (
                member(call, "id") or "",
                member(function, "name") or "",
                member(function, "arguments"),
            )

    def messages(self, answers: Iterable[Answered]) -> list[dict[str, Any]]:
        """One message for each result and, because those cannot have images, one for all images."""
        tools: list[dict[str, Any]] = []
        images: list[dict[str, Any]] = []
        for call, result in answers:
            text = text_of(result)
            # the protocol has no mark for a failed tool
            content = f"error: {text}" if result.is_error else text
            tools.append({"role": "tool", "tool_call_id": call.id, "content": content})
            if pictures := list(_IMAGES.pictures(result)):
                images.append({"type": "text", "text": f"From {call.sent} ({call.id}):"})
                images += [
                    {"type": "image_url", "image_url": {"url": picture.url}} for picture in pictures
                ]
        return [*tools, {"role": "user", "content": images}] if images else tools


class Responses:
    """The Responses API."""

    def declare(self, name: str, tool: Converted) -> dict[str, Any]:
        return {"type": "function", **_function(name, tool), "strict": tool.strict}

    def wrap(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return tools

    def calls(self, answer: Any) -> Iterator[RawCall]:
        """The calls in a response, or in its output."""
        for item in members_of(answer, "output"):
            if member(item, "type") == "function_call":
                yield (
                    member(item, "call_id") or "",
                    member(item, "name") or "",
                    member(item, "arguments"),
                )

    def messages(self, answers: Iterable[Answered]) -> list[dict[str, Any]]:
        return [
            {"type": "function_call_output", "call_id": call.id, "output": _output(result)}
            for call, result in answers
        ]


def _function(name: str, tool: Converted) -> dict[str, Any]:
    about = {"description": tool.description} if tool.description else {}
    how = {"strict": True} if tool.strict else {}
    return {"name": name, **about, "parameters": tool.schema, **how}


def _output(result: Any) -> str | list[dict[str, Any]]:
    text = text_of(result)
    content = f"error: {text}" if result.is_error else text
    pictures = list(_IMAGES.pictures(result))
    if not pictures:
        return content
    return [{"type": "input_text", "text": content}, *map(_input_image, pictures)]


def _input_image(picture: ResultImage) -> dict[str, Any]:
    return {"type": "input_image", "image_url": picture.url, "detail": "auto"}
