"""A tool's arguments on one line: `(path: string, depth?: integer)`."""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from multitap.catalog.schemas.json_values import is_list, is_object

MAX_OPTIONAL = 12
MAX_CHOICES = 10
MAX_DEPTH = 3
MAX_REFERENCES = 16
MORE = "…"

Schema = Mapping[str, Any]


def outline(schema: Schema) -> str:
    """Required arguments, then optional ones; `…` stands for omitted ones."""
    return f"({_members(schema, schema, 0)})"


def _members(schema: Schema, root: Schema, depth: int) -> str:
    schema = _resolve(schema, root)
    properties = schema.get("properties")
    named: Mapping[str, Any] = properties if is_object(properties) else {}
    needed = schema.get("required")
    required = [name for name in named if is_list(needed) and name in needed]
    optional = [name for name in named if name not in required]
    members = [f"{name}: {_kind(named[name], root, depth)}" for name in required]
    members += [f"{name}?: {_kind(named[name], root, depth)}" for name in optional[:MAX_OPTIONAL]]
    return ", ".join(members + [MORE] * (len(optional) > MAX_OPTIONAL))


def _kind(schema: Any, root: Schema, depth: int) -> str:
    if not is_object(schema) or depth == MAX_DEPTH:
        return "any"
    schema = _resolve(schema, root)
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if is_list(choices):
        return _either(map(_literal, choices[:MAX_CHOICES]), more=len(choices) > MAX_CHOICES)
    branches = schema.get("anyOf", schema.get("oneOf"))
    if is_list(branches):
        return _either(_kind(branch, root, depth + 1) for branch in branches)
    return _type_of(schema, root, depth)


def _type_of(schema: Schema, root: Schema, depth: int) -> str:
    kinds = schema.get("type", "any")
    if kinds == "array":
        return _list_of(_kind(schema.get("items"), root, depth + 1))
    if kinds == "object" and schema.get("properties"):
        return f"{{{_members(schema, root, depth + 1)}}}"
    return _either(map(str, kinds)) if is_list(kinds) else str(kinds)


def _list_of(kind: str) -> str:
    return f"({kind})[]" if " | " in kind else f"{kind}[]"


def _either(kinds: Iterable[str], *, more: bool = False) -> str:
    # `?` already says that it may be null
    distinct = [kind for kind in dict.fromkeys(kinds) if kind != "null"]
    return " | ".join([*distinct, *[MORE] * more]) or "null"


def _literal(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _resolve(schema: Schema, root: Schema) -> Schema:
    for _ in range(MAX_REFERENCES):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            break
        target = _at(reference, root)
        if not is_object(target):
            return {}
        schema = target
    return schema


def _at(reference: str, root: Schema) -> Any:
    place: Any = root
    for part in unquote(reference).removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not is_object(place):
            return None
        place = place.get(name)
    return place
