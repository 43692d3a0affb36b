"""Converts the arguments that a model sends to those that the tool expects."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

import msgspec

from multitap.catalog.schemas.json_values import is_list, is_object
from multitap.records import dataclass


@dataclass(frozen=True, slots=True)
class Restoration:
    """How a value differs from what the tool expects; empty if it does not."""

    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """The tool's property names by those that the model uses, if they differ."""
    optional: frozenset[str] = frozenset()
    """Properties, by the tool's names, for which null means absent."""
    properties: Mapping[str, "Restoration"] = field(default_factory=dict[str, "Restoration"])
    """Differences within properties, by the tool's names."""
    others: "Restoration | None" = None
    """Differences within undeclared properties."""
    items: "Restoration | None" = None
    text: bool = False
    """Whether it is sent as JSON in a string."""
    word: bool = False
    """Whether the string may also be literal, unless it is an object or a list."""

    def __bool__(self) -> bool:
        inner = any(self.properties.values()) or self.others or self.items
        return bool(self.names or self.optional or inner or self.text)


SAME = Restoration()


def restore_value(value: Any, back: Restoration) -> Any:
    """The value as the tool expects it."""
    if back.text and isinstance(value, str):
        return _read(value, word=back.word)
    if is_object(value):
        return _object(value, back)
    if is_list(value) and back.items:
        return [restore_value(item, back.items) for item in value]
    return value


def either(backs: Iterable[Restoration]) -> Restoration:
    """The combined restoration of several alternatives."""
    found = [back for back in backs if back]
    if len(found) <= 1:
        return found[0] if found else SAME
    # which alternative the model chose is not known, so all renames are undone
    names = {sent: name for back in found for sent, name in back.names.items()}
    inner = dict.fromkeys(name for back in found for name in back.properties)
    return Restoration(
        names,
        frozenset[str]().union(*(back.optional for back in found)),
        {name: either(back.properties.get(name, SAME) for back in found) for name in inner},
        either(back.others for back in found if back.others) or None,
        either(back.items for back in found if back.items) or None,
        any(back.text for back in found),
        any(back.word for back in found),
    )


def _object(value: Mapping[str, Any], back: Restoration) -> dict[str, Any]:
    named = {back.names.get(sent, sent): inner for sent, inner in value.items()}
    return {
        name: restore_value(inner, back.properties.get(name, back.others or SAME))
        for name, inner in named.items()
        # null means absent: strict mode requires a value
        if not (inner is None and name in back.optional)
    }


def _read(text: str, *, word: bool) -> Any:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text  # an unquoted word, where any value is allowed
    return text if word and not (is_object(value) or is_list(value)) else value
