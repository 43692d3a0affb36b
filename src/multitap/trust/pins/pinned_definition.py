"""The parts of a server's offers that people rely on, and their digest."""

import json
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from multitap.config.documents import is_list, is_table

_NAMED = {"prompt": "name", "resource": "uri", "template": "uriTemplate"}
"""By kind: the field that identifies an offer."""
_OF_DATA = frozenset({"size", "lastModified"})
"""Fields of a resource, and of its annotations, that follow its data."""
_VARYING = re.compile(
    r"(?i)time(?:stamp)?$|date$|(?:updated|modified|generated|created|expires|fetched)(?:_?at)?$"
    r"|etag$|nonce$|(?:request|trace|span|correlation)[_-]?id$|traceparent$|ttl(?:_?ms)?$"
)
"""Names in `_meta` that stand for a moment or for one request."""
_MOMENT = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ][\d:.,]+(?: ?Z|[+-][\d:]+)?)?|\w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT"
    r"|(?:W/)?\"?[0-9a-fA-F][0-9a-fA-F-]{5,80}\"?|[\d.]+"
)
"""Moments, numbers and identifiers in hex: nothing that a model could follow."""
_DEEPEST = 16  # levels of `_meta` in which moments are found
_LIBRARIES = frozenset({"fastmcp", "_fastmcp"})
"""Members of `_meta` that a library adds to every tool, and that its versions call differently."""
INSTRUCTIONS = "instructions"
"""The key of a server's instructions."""

_encode = msgspec.json.Encoder(order="sorted").encode


def pinned_part(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A definition with every member, without what changes by itself.

    Clients show models whatever they like of it, so nothing else may change unnoticed.
    """
    part = dict(definition)
    if (meta := _lasting(part.pop("_meta", None))) is not None:
        part["_meta"] = meta
    return part


def _lasting(value: Any, name: str = "", depth: int = 0) -> Any:
    """A value in `_meta` without moments and identifiers of requests; None if none is left."""
    if depth > _DEEPEST:
        return value
    if is_table(value):
        members = {key: _lasting(member, key, depth + 1) for key, member in value.items()}
        lasting = {key: member for key, member in members.items() if member is not None}
        # a library that labels tools, and has no label for this one
        if name in _LIBRARIES and not any(lasting.values()):
            return None
        return lasting or None
    if is_list(value):
        return [_lasting(member, depth=depth + 1) for member in value]
    return None if _VARYING.search(name) and _is_moment(value) else value


def _is_moment(value: Any) -> bool:
    return not isinstance(value, bool) and _MOMENT.fullmatch(str(value)) is not None


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
        for definition in definitions:
            if isinstance(name := definition.get(_NAMED[kind]), str):
                found.setdefault(f"{kind} {name}", _without_data(pinned_part(definition)))
    if instructions:
        found[INSTRUCTIONS] = {"name": INSTRUCTIONS, "description": instructions}
    return found


def _without_data(part: dict[str, Any]) -> dict[str, Any]:
    """An offer without what follows the data that it stands for."""
    lasting = _without_moments(part)
    if is_table(annotations := lasting.get("annotations")):
        lasting["annotations"] = _without_moments(annotations)
    return lasting


def _without_moments(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in table.items() if key not in _OF_DATA or not _is_moment(value)
    }


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
