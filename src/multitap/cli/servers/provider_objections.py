"""What model providers are known to refuse in a tool's definition."""

from collections.abc import Iterator, Mapping
from typing import Any

from multitap.names import MAX_LENGTH, slug
from multitap.tools.providers.flat import COMBINATORS
from multitap.tools.providers.inline import inline_references
from multitap.tools.providers.openai import MOST_TOOLS
from multitap.tools.providers.walk import every

__all__ = ["MOST_TOOLS", "objections"]


def objections(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """Which providers refuse a tool of this name and input schema, and why.

    Args:
        name: The name that models see.
        schema: The tool's input schema.
    """
    if slug(name) != name or not 0 < len(name) <= MAX_LENGTH:
        yield f"OpenAI and Anthropic require names of at most {MAX_LENGTH} letters, digits, _ and -"
    if found := [word for word in COMBINATORS if word in schema]:
        yield f"OpenAI and Anthropic refuse `{found[0]}` at the top of a schema"
    pieces = [*every(inline_references(schema))]
    if any(piece.get("type") == "array" and "items" not in piece for piece in pieces):
        yield "OpenAI refuses an array without `items`"
    if any("$ref" in piece for piece in every(schema)):
        yield "Gemini refuses `$ref`"
    if any("if" in piece for piece in pieces):
        yield "Gemini refuses `if`"
