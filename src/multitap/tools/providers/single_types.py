"""Rewrites schemas so that each has a single type or is a union of such schemas."""

from collections.abc import Mapping
from typing import Any

from multitap.catalog.schemas.json_values import is_list, is_object
from multitap.tools.providers.combine import both, distinct
from multitap.tools.providers.descriptions import comma_list, with_description
from multitap.tools.providers.flat import flatten
from multitap.tools.providers.number_limits import modernise
from multitap.tools.providers.tuples import limit_length, places_of
from multitap.tools.providers.walk import OnChange, Path, Schema, properties_of, required_of

_ABOUT = ("description", "default", "examples", "title")
_KEPT: Mapping[str, frozenset[str]] = {
    "string": frozenset({"enum", "format", "pattern", "minLength", "maxLength"}),
    "number": frozenset(
        {
            *("enum", "format", "minimum", "maximum", "multipleOf"),
            *("exclusiveMinimum", "exclusiveMaximum"),
        }
    ),
    "boolean": frozenset({"enum"}),
    "null": frozenset(),
    "array": frozenset({"items", "minItems", "maxItems", "uniqueItems"}),
    "object": frozenset(
        {
            *("properties", "required", "additionalProperties", "patternProperties"),
            *("minProperties", "maxProperties"),
        }
    ),
}
"""The keywords that apply to each type; `integer` is like `number`."""
_READ = frozenset({"type", "anyOf", "nullable", "prefixItems", "additionalItems", *_ABOUT})
_WHY = "it takes a small part of JSON Schema only"


def plain(schema: Any, note: OnChange, path: Path = ()) -> Schema:
    """The schema in the small dialect; empty for any value.

    Args:
        schema: A schema without references.
        note: Called for each loss.
        path: Its place.
    """
    if not is_object(schema):
        return {}
    node = _single(schema, note, path)
    if is_list(node.get("anyOf")):
        return _choice(node, node["anyOf"], note, path)
    kinds = _kinds(node)
    if len(kinds) == 1:
        return _with_type(node, kinds[0], note, path)
    about = _about(node)
    if not kinds:
        return about
    return {"anyOf": [_with_type(_bare(node), kind, note, path) for kind in kinds], **about}


def _single(schema: Schema, note: OnChange, path: Path) -> Schema:
    """The schema with at most one combinator, an `anyOf`."""
    node = dict(schema)
    parts = node.pop("allOf", None)
    for part in parts if is_list(parts) else ():
        if is_object(part):
            node = both(node, _single(part, note, path))
    if parts is not None:
        note(path, "the parts of `allOf` are made one", _WHY)
    if "const" in node:
        node["enum"] = [node.pop("const")]
    # No provider of this small dialect supports `oneOf`; the server still checks that one matches.
    if is_list(choice := node.pop("oneOf", None)) and "anyOf" not in node:
        note(path, "`oneOf` became `anyOf`", _WHY)
        node["anyOf"] = choice
    if "properties" in node and "anyOf" in node and not _own_kinds(node["anyOf"]):
        node, words = flatten(node)
        note(path, "`anyOf` became words", _WHY)
        node = with_description(node, f"{node.get('description', '')} {words}".strip())
    return node


def _own_kinds(branches: Any) -> bool:
    """Whether alternatives describe values, not only required properties."""
    words = {"type", "properties", "enum", "const", "items", "anyOf", "oneOf", "allOf"}
    return is_list(branches) and any(is_object(one) and words & one.keys() for one in branches)


def _choice(node: Schema, branches: list[Any], note: OnChange, path: Path) -> Schema:
    shared = _bare({word: value for word, value in node.items() if word != "anyOf"})
    made: list[Any] = []
    for at, branch in enumerate(branches):
        if branch is False:
            continue  # it accepts nothing
        one = both(branch, shared) if is_object(branch) else shared
        inner = plain(one, note, (*path, "anyOf", at))
        # nested unions are merged, unless they have their own description
        made += inner["anyOf"] if "anyOf" in inner and not _about(inner) else [inner]
    about, found = _about(node), distinct(made)
    # one alternative accepts any value, so the union does
    if not found or any(not one.keys() - set(_ABOUT) for one in found):
        return about
    return {**found[0], **about} if len(found) == 1 else {"anyOf": found, **about}


def _with_type(node: Schema, kind: str, note: OnChange, path: Path) -> Schema:
    kept = _KEPT["number" if kind == "integer" else kind]
    _say_lost(node, kept, note, path)
    made: Schema = {
        "type": kind,
        **_about(node),
        **{word: node[word] for word in node if word in kept},
    }
    if is_list(values := made.pop("enum", None)) and (fitting := _fitting(values, kind)):
        made["enum"] = fitting
    modernise(made, note, path)
    if kind == "array":
        _set_items(made, node, note, path)
    elif kind == "object":
        _set_properties(made, note, path)
    return made


def _fitting(values: list[Any], kind: str) -> list[Any]:
    return [value for value in distinct(values) if kind in _kinds_of(value)]


def _say_lost(node: Schema, kept: frozenset[str], note: OnChange, path: Path) -> None:
    every = frozenset[str]().union(*_KEPT.values())
    lost = [word for word in node if word not in kept | _READ and word not in every]
    if lost:
        note(path, f"{comma_list(lost)} left out", _WHY)


def _set_items(made: Schema, node: Schema, note: OnChange, path: Path) -> None:
    places = places_of(node)
    if places is None:
        made["items"] = plain(node.get("items"), note, (*path, "items"))
        return
    made.update(limit_length(node, places))
    made["items"] = _choice({}, distinct(places), note, (*path, "items"))
    note(path, "any place may have what one of the places has", _WHY)


def _set_properties(made: Schema, note: OnChange, path: Path) -> None:
    made["properties"] = {
        name: plain(part, note, (*path, "properties", name))
        for name, part in properties_of(made).items()
        if part is not False
    }
    # providers refuse a required property that is not declared
    made["required"] = [name for name in required_of(made) if name in made["properties"]]
    if is_object(rest := made.get("additionalProperties")):
        made["additionalProperties"] = plain(rest, note, (*path, "additionalProperties"))


def _kinds(node: Schema) -> list[str]:
    declared: Any = node.get("type")
    kinds = [kind for kind in (declared if is_list(declared) else [declared]) if kind in _TYPES]
    if not kinds and declared is None:
        kinds = _implied_types(node)
    if is_list(values := node.get("enum")) and values:
        fitting = [kind for kind in kinds or _TYPES if any(kind in _kinds_of(v) for v in values)]
        # values that are all whole need no second alternative for numbers
        kinds = [one for one in fitting if not (one == "number" and "integer" in fitting)] or kinds
    # OpenAPI's keyword, which many generated schemas still have
    if node.get("nullable") is True and kinds and "null" not in kinds:
        kinds.append("null")
    return distinct(kinds)


_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")


def _implied_types(node: Schema) -> list[str]:
    for kind in ("object", "array", "string", "number"):
        if (_KEPT[kind] | _IMPLYING.get(kind, frozenset())) - {"enum", "format"} & node.keys():
            return [kind]
    return []


_IMPLYING: Mapping[str, frozenset[str]] = {"array": frozenset({"prefixItems", "contains"})}


def _kinds_of(value: Any) -> tuple[str, ...]:
    match value:
        case None:
            return ("null",)
        case bool():  # before `int`, of which it is a subclass
            return ("boolean",)
        case int():
            return ("integer", "number")
        case float():
            return ("number", "integer") if value.is_integer() else ("number",)
        case str():
            return ("string",)
        case _:
            return ("object",) if is_object(value) else ("array",)


def _about(node: Schema) -> Schema:
    return {word: node[word] for word in _ABOUT if word in node}


def _bare(node: Schema) -> Schema:
    return {word: value for word, value in node.items() if word not in _ABOUT}
