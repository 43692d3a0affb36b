"""Schemas for OpenAI's strict mode, which guarantees matching arguments."""

from collections.abc import Mapping
from typing import Any

from multitap.catalog.schemas.schema import is_object
from multitap.tools.providers.dialects import SAME, Restoration, either, plain, portable
from multitap.tools.providers.schemas import (
    OnChange,
    Path,
    Schema,
    comma_list,
    describe,
    properties_of,
    required_of,
    with_description,
)

# OpenAI's documented limits for strict mode. Beyond them it refuses the whole request, so such a
# tool is offered without strict mode.
MOST_PROPERTIES = 5_000
MOST_LEVELS = 10
MOST_VALUES = 1_000
MOST_CHARACTERS = 120_000
MOST_LONG_VALUES = 250
MOST_LONG_CHARACTERS = 15_000

_KEPT = frozenset(
    {
        *("type", "enum", "pattern", "format", "minItems", "maxItems", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    }
)
_FORMATS = frozenset(
    {
        *("date-time", "time", "date", "duration", "email"),
        *("hostname", "ipv4", "ipv6", "uuid"),
    }
)
_WHY = "OpenAI's strict mode does not take it"


class NotStrict(Exception):
    """A schema that strict mode cannot express."""


def strict(schema: Mapping[str, Any], note: OnChange) -> tuple[Schema, Restoration]:
    """The schema of a tool's arguments in strict mode.

    Raises:
        NotStrict: It cannot be; the message says why.
    """
    root = plain(schema, note)
    if not properties_of(root) and root.get("additionalProperties") is None:
        root["additionalProperties"] = False  # a tool without arguments
    converted, back = _node(root, note, ())
    _Count().add(converted, 1)
    return converted, back


def _node(node: Schema, note: OnChange, path: Path) -> tuple[Schema, Restoration]:
    if "anyOf" in node:
        pairs = [
            _node(branch, note, (*path, "anyOf", at)) for at, branch in enumerate(node["anyOf"])
        ]
        converted: Schema = {"anyOf": [branch for branch, _ in pairs]}
        return _describe(converted, node, {}), either(back for _, back in pairs)
    match node.get("type"):
        case None:
            # strict mode requires a type, and there is none for any value
            raise NotStrict(f"{_where(path)} takes any value")
        case "object":
            return _object(node, note, path)
        case "array":
            items, back = _node(node["items"], note, (*path, "items"))
            converted, dropped = _split_rules(node, note, path)
            return _describe({**converted, "items": items}, node, dropped), Restoration(
                items=back or None
            )
        case _:
            converted, dropped = _split_rules(node, note, path)
            return _describe(converted, node, dropped), SAME


def _object(node: Schema, note: OnChange, path: Path) -> tuple[Schema, Restoration]:
    rest = node.get("additionalProperties")
    named = rest is False or (rest is None and node["properties"])
    if not named or "patternProperties" in node:
        raise NotStrict(f"{_where(path)} takes properties of any name")
    properties: Schema = {}
    backs: dict[str, Restoration] = {}
    for name, part in node["properties"].items():
        properties[name], backs[name] = _node(part, note, (*path, "properties", name))
    optional = [name for name in properties if name not in required_of(node)]
    added = frozenset(name for name in optional if not _nullable(properties[name]))
    if added:
        note(
            path,
            f"{comma_list(sorted(added))} may be null",
            "strict mode has no optional properties",
        )
    # The model sends null for absent properties, and `Restoration.optional` drops it: many
    # servers refuse a null.
    for name in added:
        properties[name] = _or_null(properties[name])
    whole = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    _, dropped = _split_rules(node, note, path)
    inner = {name: back for name, back in backs.items() if back}
    return _describe(whole, node, dropped), Restoration(optional=added, properties=inner)


def _split_rules(node: Schema, note: OnChange, path: Path) -> tuple[Schema, Schema]:
    """The keywords of a node that strict mode accepts, and those it does not."""
    apart = {"description", "items", "properties", "required", "additionalProperties"}
    accepted = {
        keyword: node[keyword] for keyword in node if keyword in _KEPT and _takes(keyword, node)
    }
    dropped = {
        keyword: node[keyword]
        for keyword in node
        if keyword not in accepted and keyword not in apart
    }
    if dropped:
        note(path, f"{comma_list(dropped)} left out of the schema", _WHY)
    return accepted, dropped


def _takes(word: str, node: Schema) -> bool:
    value = node[word]
    match word:
        case "format":
            return node.get("type") == "string" and value in _FORMATS
        case "pattern":
            return portable(value)
        case "enum":
            return not any(isinstance(item, dict | list) for item in value)
        case _:
            return True


def _describe(converted: Schema, node: Schema, dropped: Mapping[str, Any]) -> Schema:
    default = {"default": node["default"]} if "default" in node and "anyOf" in converted else {}
    return with_description(converted, describe(node.get("description"), {**dropped, **default}))


def _nullable(schema: Schema) -> bool:
    branches = schema.get("anyOf", [schema])
    return any(branch.get("type") == "null" for branch in branches)


def _or_null(schema: Schema) -> Schema:
    null = {"type": "null"}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], null]}
    # a type list beside properties, items or an enum without null would be refused
    if schema["type"] in {"object", "array"} or "enum" in schema:
        inner = {word: value for word, value in schema.items() if word != "description"}
        return with_description({"anyOf": [inner, null]}, schema.get("description", ""))
    return {**schema, "type": [schema["type"], "null"]}


class _Count:
    """Keeps within OpenAI's limits for one schema."""

    def __init__(self) -> None:
        self.properties = self.values = self.characters = 0

    def add(self, node: Schema, level: int) -> None:
        values = node.get("enum", ())
        texts = [value for value in values if isinstance(value, str)]
        length = sum(map(len, texts))
        if len(texts) > MOST_LONG_VALUES and length > MOST_LONG_CHARACTERS:
            raise NotStrict("a list of allowed values is too long")
        self.values += len(values)
        self.properties += len(properties_of(node))
        self.characters += length + sum(map(len, properties_of(node)))
        self._check(level)
        inner = level + 1
        for part in properties_of(node).values():
            self.add(part, inner)
        for part in (node.get("items"), *node.get("anyOf", ())):
            if is_object(part):
                # alternatives are on the same level as the union itself
                self.add(part, level if part is not node.get("items") else inner)

    def _check(self, level: int) -> None:
        if (
            level > MOST_LEVELS
            or self.properties > MOST_PROPERTIES
            or self.values > MOST_VALUES
            or self.characters > MOST_CHARACTERS
        ):
            raise NotStrict("it is larger than strict mode allows")


def _where(path: Path) -> str:
    names = [str(part) for part in path if part not in {"properties", "items", "anyOf"}]
    return f"`{'.'.join(names)}`" if names else "it"
