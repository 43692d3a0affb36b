"""Merges two schemas into one."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from multitap.catalog.schemas.json_values import is_list, is_object
from multitap.tools.providers.walk import Schema

_LARGER = frozenset(
    {
        *("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"),
        "minContains",
    }
)
_SMALLER = frozenset(
    {
        *("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"),
        "maxContains",
    }
)


def both(one: Mapping[str, Any], other: Mapping[str, Any]) -> Schema:
    """A schema for values that match both; the first of two rules that cannot be combined."""
    joined = {**other, **one}
    for word in one.keys() & other.keys():
        joined[word] = _JOIN.get(word, _first)(one[word], other[word])
    if _closed(one) != _closed(other):
        del joined["additionalProperties"]  # properties of the other schema must stay possible
    return joined


def distinct(values: Iterable[Any]) -> list[Any]:
    """The distinct values in their order; 1 is not true."""
    # by their text: schemas cannot be hashed, and Python takes 1 and True for the same
    return list({repr(value): value for value in values}.values())


def _first(one: Any, _: Any) -> Any:
    return one


def _schema(one: Any, other: Any) -> Any:
    if is_object(one) and is_object(other):
        return both(one, other)
    return other if one is True else one


def _combine_named(one: Any, other: Any) -> Any:
    if not (is_object(one) and is_object(other)):
        return one
    shared = {name: _schema(one[name], other[name]) for name in one.keys() & other.keys()}
    return {**one, **other, **shared}


def _all(one: Any, other: Any) -> Any:
    return distinct([*one, *other]) if is_list(one) and is_list(other) else one


def _common(one: Any, other: Any) -> Any:
    kept = [value for value in one if value in other] if is_list(one) and is_list(other) else []
    # no common value: nothing would match, and the server may accept more than its schema says
    return kept or one


def _types(one: Any, other: Any) -> Any:
    first, second = (value if is_list(value) else [value] for value in (one, other))
    # every integer is a number, so both allow the narrower type
    kept = [kind for kind in first if kind in second or (kind == "integer" and "number" in second)]
    if "number" in first and "integer" in second and "integer" not in kept:
        kept.append("integer")
    return (kept[0] if len(kept) == 1 else kept) or one


def _number(choose: Callable[[list[Any]], Any]) -> Callable[[Any, Any], Any]:
    def pick(one: Any, other: Any) -> Any:
        numbers = isinstance(one, int | float) and isinstance(other, int | float)
        return choose([one, other]) if numbers else one

    return pick


_JOIN: Mapping[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "properties": _combine_named,
    "patternProperties": _combine_named,
    "items": _schema,
    "additionalProperties": _schema,
    "required": _all,
    "enum": _common,
    **dict.fromkeys(_LARGER, _number(max)),
    **dict.fromkeys(_SMALLER, _number(min)),
}


def _closed(schema: Mapping[str, Any]) -> bool:
    return schema.get("additionalProperties") is False
