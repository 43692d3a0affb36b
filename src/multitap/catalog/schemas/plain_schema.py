"""Recognises simple schemas that every version of JSON Schema accepts."""

from collections.abc import Callable, Mapping
from typing import Any

from multitap.catalog.schemas.json_values import is_list, is_object

# Deeper ones go to the library, which has bounds of its own; this recurses.
_DEEPEST = 16
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_VERSIONS = frozenset(
    {
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema",
    }
)
_REFERENCES = ("#/$defs/", "#/definitions/")


def is_plain(schema: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether a schema is certainly valid; most tools' schemas are.

    Others need a library that most gateways do not load before their first call.
    """
    return depth < _DEEPEST and all(
        _holds(keyword, value, depth + 1) for keyword, value in schema.items()
    )


def _holds(keyword: str, value: Any, depth: int) -> bool:
    if (check := _CHECKS.get(keyword)) is not None:
        return check(value)
    if keyword in {"items", "additionalProperties", "not"}:
        return _is_schema(value, depth)
    if keyword in {"properties", "$defs", "definitions"}:
        return is_object(value) and all(_is_schema(one, depth) for one in value.values())
    if keyword in {"anyOf", "allOf", "oneOf"}:
        return is_list(value) and bool(value) and all(_is_schema(one, depth) for one in value)
    return keyword.startswith("x-")


def _is_schema(value: Any, depth: int) -> bool:
    return isinstance(value, bool) or (is_object(value) and is_plain(value, depth))


def _is_any(_: Any) -> bool:
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_type(value: Any) -> bool:
    if is_list(value):
        return bool(value) and _are_different_texts(value) and _TYPES.issuperset(value)
    return isinstance(value, str) and value in _TYPES


def _are_different_texts(value: Any) -> bool:
    return (
        is_list(value)
        and all(isinstance(one, str) for one in value)
        and len(set(value)) == len(value)
    )


def _is_version(value: Any) -> bool:
    return isinstance(value, str) and value.rstrip("#") in _VERSIONS


def _is_reference(value: Any) -> bool:
    if not isinstance(value, str) or not value.startswith(_REFERENCES):
        return False
    return value.rpartition("/")[2].replace("_", "").isalnum() and value.isascii()


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "$ref": _is_reference,
    "$schema": _is_version,
    "const": _is_any,
    "default": _is_any,
    "description": _is_text,
    "enum": is_list,
    "examples": is_list,
    "exclusiveMaximum": _is_number,
    "exclusiveMinimum": _is_number,
    "format": _is_text,
    "maxItems": _is_count,
    "maxLength": _is_count,
    "maxProperties": _is_count,
    "maximum": _is_number,
    "minItems": _is_count,
    "minLength": _is_count,
    "minProperties": _is_count,
    "minimum": _is_number,
    "readOnly": _is_truth,
    "required": _are_different_texts,
    "title": _is_text,
    "type": _is_type,
    "uniqueItems": _is_truth,
}
