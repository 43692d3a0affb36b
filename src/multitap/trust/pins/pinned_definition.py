"""The parts of a server's offers that people rely on, and their digest."""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

PINNED = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""The parts of a tool that models and people read, and that must not change unnoticed."""

_OTHERS = {
    "prompt": ("name", "name title description arguments"),
    "resource": ("uri", "uri name title description mimeType"),
    "template": ("uriTemplate", "uriTemplate name title description mimeType"),
}
"""By kind: the identifying field, and the pinned fields."""
INSTRUCTIONS = "instructions"
"""The key of a server's instructions."""

_encode = msgspec.json.Encoder(order="sorted").encode


def pinned_part(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A definition without parts that may change freely, such as `_meta`."""
    return {key: definition[key] for key in PINNED if key in definition}


def other_parts(
    lists: Mapping[str, Iterable[Mapping[str, Any]]], instructions: str | None
) -> dict[str, dict[str, Any]]:
    """The pinned parts of offers that are not tools, by kind and name: `prompt NAME`.

    Args:
        lists: Definitions by kind: `prompt`, `resource`, `template`.
        instructions: The server's instructions.
    """
    found: dict[str, dict[str, Any]] = {}
    for kind, definitions in lists.items():
        named, pinned = _OTHERS[kind]
        for one in definitions:
            if isinstance(name := one.get(named), str):
                part = {key: one[key] for key in pinned.split() if key in one}
                found.setdefault(f"{kind} {name}", part)
    if instructions:
        found[INSTRUCTIONS] = {"name": INSTRUCTIONS, "description": instructions}
    return found


def comes_and_goes(key: str) -> bool:
    """Whether new ones of its kind need no review: resources are data."""
    return key.startswith("resource ")


def canonical(value: object) -> bytes:
    """Canonical JSON: sorted keys, no blanks, UTF-8."""
    try:
        return _encode(value)
    except (ValueError, TypeError, RecursionError):  # such as half of a surrogate pair
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=repr).encode()


def digest(part: Mapping[str, Any]) -> str:
    """The SHA-256 of a pinned part."""
    return sha256(canonical(part)).hexdigest()
