"""Moves rules that a provider's schema cannot express into descriptions."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from multitap.tools.providers.walk import Schema

_TELLING = frozenset(
    {
        *("format", "pattern", "minLength", "maxLength", "default", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "enum"),
    }
)
_LONGEST = 200  # characters of one rule; an enum of a thousand values would bury the rest


def describe(description: Any, dropped: Mapping[str, Any]) -> str:
    """The description, with useful dropped rules in brackets."""
    own = description if isinstance(description, str) else ""
    rules = [
        f"{word}: {value}"
        for word in dropped
        if word in _TELLING and (value := _json(dropped[word])) and value not in own
    ]
    return f"{own} ({'; '.join(rules)})".strip() if rules else own


def cut(text: str, longest: int) -> str:
    """The text, cut at the end of a word if it is too long."""
    if len(text) <= longest:
        return text
    head = text[: max(longest - 1, 0)]
    space = head.rfind(" ")
    # a text without blanks, such as a URL, is cut anywhere
    return f"{head[:space] if space > longest // 2 else head}…"


def comma_list(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def with_description(schema: Schema, description: str) -> Schema:
    """The schema with this description, or without one."""
    rest = {word: value for word, value in schema.items() if word != "description"}
    return {**rest, "description": description} if description else rest


def _json(value: Any) -> str:
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else ""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return ""
    return text if len(text) <= _LONGEST else ""
