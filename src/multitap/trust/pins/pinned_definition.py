"""The parts of a tool's definition that people rely on, and their digest."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

PINNED = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""What a model and a person are told about a tool, and so what must not change unseen."""

_encode = msgspec.json.Encoder(order="sorted").encode


def pinned_part(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A definition without what may change at will, such as `_meta`."""
    return {key: definition[key] for key in PINNED if key in definition}


def canonical(value: object) -> bytes:
    """One JSON text for equal values: keys sorted, no blanks, UTF-8."""
    try:
        return _encode(value)
    except (ValueError, TypeError, RecursionError):  # such as half of a surrogate pair
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=repr).encode()


def digest(part: Mapping[str, Any]) -> str:
    """The SHA-256 of a pinned part."""
    return sha256(canonical(part)).hexdigest()
