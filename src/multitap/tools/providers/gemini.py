"""Tools, calls and results as Google's generateContent writes them."""

from collections.abc import Iterable, Iterator
from typing import Any

from multitap.results import ToolResult
from multitap.tools.providers.convert import Converted
from multitap.tools.providers.model_answers import each, field
from multitap.tools.providers.offer import Answered, RawCall, ToolCall
from multitap.tools.providers.pictures import ImageLimits, text_of

NAME = "Gemini"
# More function declarations make the API refuse the request.
MOST_TOOLS = 128
_FRAME = ImageLimits(
    frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"}),
    largest=18 * 2**20,  # a whole request may have 20 MB
)


class GenerateContent:
    """The generateContent interface.

    Args:
        images: Whether the model accepts images in a function's response, as Gemini 3 does.
    """

    def __init__(self, *, images: bool) -> None:
        self._images = images

    def declare(self, name: str, tool: Converted) -> dict[str, Any]:
        arguments = {"parameters": tool.schema} if tool.schema else {}
        return {"name": name, "description": tool.description or name, **arguments}

    def wrap(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"functionDeclarations": tools}] if tools else []

    def calls(self, answer: Any) -> Iterator[RawCall]:
        """The calls in a response, in its content, or in the parts of that."""
        candidates = each(field(answer, "candidates"))
        content = field(candidates[0], "content") if candidates else answer
        for part in each(content, "parts"):
            call = field(part, "functionCall", "function_call")
            if call is not None:
                yield field(call, "id") or "", field(call, "name") or "", field(call, "args")

    def messages(self, answered: Iterable[Answered]) -> list[dict[str, Any]]:
        """One content with all results: a response for each call."""
        parts = [{"functionResponse": self._response(*one)} for one in answered]
        return [{"role": "user", "parts": parts}] if parts else []

    def _response(self, call: ToolCall, result: ToolResult) -> dict[str, Any]:
        made: dict[str, Any] = {"id": call.id} if call.id else {}
        # by the name that the model used, which may differ from ours
        made["name"] = call.sent
        made["response"] = {"error" if result.is_error else "output": text_of(result)}
        if self._images and (pictures := list(_FRAME.pictures(result))):
            made["parts"] = [
                {"inlineData": {"mimeType": picture.mime_type, "data": picture.data}}
                for picture in pictures
            ]
        return made
