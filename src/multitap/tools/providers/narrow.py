"""Schemas for Gemini: a subset of OpenAPI 3.0."""

import re
from collections.abc import Mapping
from typing import Any

from multitap.tools.providers.descriptions import comma_list, describe, with_description
from multitap.tools.providers.patterns import portable
from multitap.tools.providers.properties import rename_properties
from multitap.tools.providers.restore import SAME, Restoration, either
from multitap.tools.providers.single_types import plain
from multitap.tools.providers.walk import OnChange, Path, Schema, properties_of, required_of

PROPERTY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
FORMATS: Mapping[str, frozenset[str]] = {
    "string": frozenset({"date-time"}),
    "number": frozenset({"float", "double"}),
    "integer": frozenset({"int32", "int64"}),
}
_KEPT = frozenset(
    {
        *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"),
        *("minProperties", "maxProperties"),
    }
)
# It has no null type; a nullable string comes closest.
_NULL: Schema = {"type": "STRING", "nullable": True}
_WHY = "Gemini does not take it"


def narrow(schema: Mapping[str, Any], note: OnChange) -> tuple[Schema | None, Restoration]:
    """The schema of a tool's arguments for Gemini; None for a tool without arguments."""
    root = plain(schema, note)
    # Gemini refuses an object without properties, even as a tool's arguments
    if not properties_of(root):
        return None, SAME
    return _node(root, note, ())


def _node(node: Schema, note: OnChange, path: Path) -> tuple[Schema, Restoration]:
    if "anyOf" in node:
        return _choice(node, note, path)
    match node.get("type"):
        case None:
            return _text(node, "any value, as JSON", note, path), Restoration(text=True)
        case "object" if not properties_of(node):
            return _text(node, "an object, as JSON", note, path), Restoration(text=True, word=True)
        case "object":
            return _object(node, note, path)
        case "array":
            items, back = _node(node["items"], note, (*path, "items"))
            return {**_keep_known(node, note, path), "items": items}, Restoration(
                items=back or None
            )
        case _:
            return _keep_known(node, note, path), SAME


def _choice(node: Schema, note: OnChange, path: Path) -> tuple[Schema, Restoration]:
    """No keyword may accompany `anyOf`, so the description goes to the first alternative."""
    branches = [one for one in node["anyOf"] if one.get("type") != "null"] or node["anyOf"][:1]
    nullable = {"nullable": True} if len(branches) < len(node["anyOf"]) else {}
    pairs = [_node(one, note, (*path, "anyOf", at)) for at, one in enumerate(branches)]
    # `anyOf` within `anyOf` is refused
    made = _spread_lists([one for one, _ in pairs])
    words = " ".join(filter(None, (describe(*_about(node)), made[0].get("description", ""))))
    made[0] = with_description(made[0], words)
    back = either(back for _, back in pairs)
    if len(made) == 1:
        return {**made[0], **nullable}, back
    return {"anyOf": [{**one, **nullable} for one in made]}, back


def _spread_lists(schemas: list[Schema]) -> list[Schema]:
    return [inner for one in schemas for inner in one.get("anyOf", [one])]


def _object(node: Schema, note: OnChange, path: Path) -> tuple[Schema, Restoration]:
    names = rename_properties(node["properties"], PROPERTY)
    if names:
        note(path, f"{comma_list(names)} renamed", "Gemini does not accept such property names")
    made: Schema = {}
    backs: dict[str, Restoration] = {}
    for name, part in node["properties"].items():
        made[names.get(name, name)], backs[name] = _node(part, note, (*path, "properties", name))
    whole = {**_keep_known(node, note, path), "properties": made}
    if required := [names.get(name, name) for name in required_of(node)]:
        whole["required"] = required
    inner = {name: back for name, back in backs.items() if back}
    return whole, Restoration({sent: name for name, sent in names.items()}, properties=inner)


def _text(node: Schema, what: str, note: OnChange, path: Path) -> Schema:
    note(path, f"{what} in a string", "Gemini requires every property to be declared")
    words = " ".join(filter(None, (describe(*_about(node)), f"({what})")))
    return {"type": "STRING", "description": words}


def _keep_known(node: Schema, note: OnChange, path: Path) -> Schema:
    kind = node["type"]
    made: Schema = {"type": kind.upper()} if kind != "null" else _NULL
    made = {**made, **{word: node[word] for word in node if word in _KEPT}}
    if node.get("format") in FORMATS.get(kind, ()):
        made["format"] = node["format"]
    if portable(node.get("pattern")):
        made["pattern"] = node["pattern"]
    # Only strings may have an enum, and no value may be empty.
    if kind == "string" and (values := [value for value in node.get("enum", ()) if value]):
        made |= {"enum": values, "format": "enum"}
    apart = {"type", "description", "items", "properties", "required"}
    lost = {word: node[word] for word in node if word not in made and word not in apart}
    if "" in node.get("enum", ()) and "enum" in made:
        lost["enum"] = node["enum"]
    if lost:
        note(path, f"{comma_list(lost)} left out of the schema", _WHY)
    return with_description(made, describe(node.get("description"), lost))


def _about(node: Schema) -> tuple[Any, Schema]:
    return node.get("description"), {"default": node["default"]} if "default" in node else {}
