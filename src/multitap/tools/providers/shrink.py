"""Shortens schemas step by step until they fit."""

from collections.abc import Mapping
from typing import Any

from multitap.catalog.schemas.json_values import is_list, is_object
from multitap.records import dataclass
from multitap.tools.providers.descriptions import cut
from multitap.tools.providers.walk import Path, Schema, map_schemas, outline

_DECORATION = frozenset(
    {
        *("title", "examples", "example", "deprecated", "readOnly", "writeOnly"),
        *("markdownDescription", "enumDescriptions", "discriminator", "externalDocs"),
    }
)
_SAME_LEVEL = frozenset({"anyOf", "oneOf", "allOf"})


@dataclass(frozen=True, slots=True)
class ShorteningStep:
    """How much to shorten."""

    about: int
    """Characters of the tool's description."""
    words: int
    """Characters of a description within the schema."""
    values: int
    """How many allowed values are listed."""
    levels: int
    """Levels of properties and items that are described."""

    def __str__(self) -> str:
        return (
            f"descriptions are cut to {self.words} characters, lists of more than {self.values} "
            f"values and what is nested deeper than {self.levels} levels left out"
        )


STEPS = (
    ShorteningStep(about=4000, words=400, values=200, levels=20),
    ShorteningStep(about=2000, words=150, values=100, levels=20),
    ShorteningStep(about=1000, words=80, values=50, levels=5),
    ShorteningStep(about=1000, words=80, values=20, levels=3),
    ShorteningStep(about=600, words=60, values=10, levels=2),
    ShorteningStep(about=300, words=0, values=0, levels=1),
)


def say_less(schema: Mapping[str, Any], step: ShorteningStep, level: int = 0) -> Schema:
    """A shorter schema that is still correct."""
    if level >= step.levels:
        return _cut_description(outline(schema), step.words)
    kept = {word: value for word, value in schema.items() if word not in _DECORATION}
    # all or none: a truncated list would forbid values that the tool accepts
    if is_list(values := kept.get("enum")) and len(values) > step.values:
        del kept["enum"]

    def visit(part: Any, at: Path) -> Any:
        # an alternative describes the same value, not a deeper one
        inner = level if at[0] in _SAME_LEVEL else level + 1
        return say_less(part, step, inner) if is_object(part) else part

    return _cut_description(map_schemas(kept, visit, ()), step.words)


def _cut_description(schema: Schema, longest: int) -> Schema:
    words = schema.get("description")
    if not isinstance(words, str):
        return schema
    if not longest:
        return {word: value for word, value in schema.items() if word != "description"}
    return {**schema, "description": cut(words, longest)}
