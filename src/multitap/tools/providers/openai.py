"""Tools, calls and results as OpenAI's two interfaces write them."""

from collections.abc import Iterable, Iterator
from typing import Any

from multitap.tools.providers.convert import Converted
from multitap.tools.providers.loose import LooseSchema
from multitap.tools.providers.model_answers import each, field
from multitap.tools.providers.offer import Answered, RawCall
from multitap.tools.providers.pictures import ImageLimits, ResultImage, text_of

NAME = "OpenAI"
# More tools make the API refuse the request.
MOST_TOOLS = 128
dialect = LooseSchema(NAME)
_FRAME = ImageLimits(
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
        choices = each(field(answer, "choices"))
        message = field(choices[0], "message") if choices else answer
        for call in each(field(message, "tool_calls")):
            function = field(call, "function")
            yield (
                field(call, "id") or "",
                field(function, "name") or "",
                field(function, "arguments"),
            )

    def messages(self, answered: Iterable[Answered]) -> list[dict[str, Any]]:
        """One message for each result and, because those cannot have images, one for all images."""
        tools: list[dict[str, Any]] = []
        images: list[dict[str, Any]] = []
        for call, result in answered:
            text = text_of(result)
            # the protocol has no mark for a failed tool
            content = f"error: {text}" if result.is_error else text
            tools.append({"role": "tool", "tool_call_id": call.id, "content": content})
            if pictures := list(_FRAME.pictures(result)):
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
        for item in each(answer, "output"):
            if field(item, "type") == "function_call":
                yield (
                    field(item, "call_id") or "",
                    field(item, "name") or "",
                    field(item, "arguments"),
                )

    def messages(self, answered: Iterable[Answered]) -> list[dict[str, Any]]:
        return [
            {"type": "function_call_output", "call_id": call.id, "output": _output(result)}
            for call, result in answered
        ]


def _function(name: str, tool: Converted) -> dict[str, Any]:
    about = {"description": tool.description} if tool.description else {}
    how = {"strict": True} if tool.strict else {}
    return {"name": name, **about, "parameters": tool.schema, **how}


def _output(result: Any) -> str | list[dict[str, Any]]:
    text = text_of(result)
    said = f"error: {text}" if result.is_error else text
    pictures = list(_FRAME.pictures(result))
    if not pictures:
        return said
    return [{"type": "input_text", "text": said}, *map(_input_image, pictures)]


def _input_image(picture: ResultImage) -> dict[str, Any]:
    return {"type": "input_image", "image_url": picture.url, "detail": "auto"}
