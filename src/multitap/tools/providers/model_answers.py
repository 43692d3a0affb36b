"""Reads a model's answer, as plain data or as a client library's object."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from multitap.catalog.schemas.json_values import is_list, is_object


def field(value: Any, *names: str) -> Any:
    """The value of the first field that exists."""
    for name in names:
        # client libraries return objects, plain HTTP returns dictionaries
        found: Any = value.get(name) if is_object(value) else getattr(value, name, None)
        if found is not None:
            return found
    return None


def each(value: Any, within: str | None = None) -> list[Any]:
    """The members of a list, or of the one in a field."""
    found = field(value, within) if within is not None and not is_list(value) else value
    return list(found) if is_list(found) else []


class UnreadableArguments(Exception):
    """Arguments that are not a JSON object; the message is for the model."""


def arguments(raw: Any) -> dict[str, Any]:
    """The arguments of a call.

    Raises:
        UnreadableArguments: They are not an object.
    """
    value = _decode(raw) if isinstance(raw, str | bytes | bytearray) else raw
    if isinstance(value, str):
        value = _decode(value)  # some models write JSON into a JSON string
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise UnreadableArguments("the arguments are not a JSON object; send them again as one")


def _decode(raw: str | bytes | bytearray) -> Any:
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
    # models send an empty string for a tool without arguments
    if not text.strip():
        return {}
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    try:
        return json.loads(
            text, strict=False, parse_constant=_refuse
        )  # allows line breaks within strings
    except (ValueError, RecursionError) as exc:
        raise UnreadableArguments(
            f"the arguments are not valid JSON: {exc}; send them again as one JSON object"
        ) from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
