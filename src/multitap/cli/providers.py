"""What providers of language models are known to refuse in a tool's definition."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from multitap.names import MAX_LENGTH
from multitap.schemas.values import is_list, is_object

MOST_TOOLS = 128
"""OpenAI's limit, and with it that of most hosts."""

_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_LENGTH}}}")
_COMBINATORS = ("anyOf", "oneOf", "allOf", "not", "if")
_NESTED = ("properties", "$defs", "definitions")
_VALUES = ("const", "default", "enum", "examples")
_DEEPEST = 50


def objections(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """Who refuses a tool of this name and input schema, and for what.

    Args:
        name: As models see it.
        schema: The tool's input schema.
    """
    if not _NAME.fullmatch(name):
        yield f"OpenAI and Anthropic want names of at most {MAX_LENGTH} letters, digits, _ and -"
    if found := [word for word in _COMBINATORS if word in schema]:
        yield f"OpenAI and Anthropic refuse `{found[0]}` at the top of a schema"
    pieces = list(_pieces(schema))
    if any(piece.get("type") == "array" and "items" not in piece for piece in pieces):
        yield "OpenAI refuses an array that does not say what its items are"
    if any("$ref" in piece for piece in pieces):
        yield "Gemini refuses `$ref`"
    if any("if" in piece for piece in pieces):
        yield "Gemini refuses `if`"


def _pieces(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schema and every schema within it, as far as it is worth to look."""
    level: list[Mapping[str, Any]] = [schema]
    for _ in range(_DEEPEST):
        yield from level
        level = [inner for piece in level for inner in _inner(piece)]


def _inner(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for word, value in schema.items():
        if word in _VALUES:
            continue
        if word in _NESTED and is_object(value):
            yield from (member for member in value.values() if is_object(member))
        elif is_object(value):
            yield value
        elif is_list(value):
            yield from (member for member in value if is_object(member))
