"""Schemas for providers that accept nearly all of JSON Schema."""

import re
from collections.abc import Mapping
from typing import Any

from multitap.catalog.schemas.json_values import is_list, is_object
from multitap.tools.providers.combine import distinct
from multitap.tools.providers.descriptions import comma_list, describe, with_description
from multitap.tools.providers.number_limits import modernise
from multitap.tools.providers.patterns import compiles
from multitap.tools.providers.properties import rename_properties
from multitap.tools.providers.restore import SAME, Restoration, either
from multitap.tools.providers.tuples import limit_length, places_of
from multitap.tools.providers.walk import (
    OnChange,
    Path,
    Schema,
    map_schemas,
    properties_of,
    required_of,
)

_ANY_NAME = re.compile(r".*", re.DOTALL)


class LooseSchema:
    """Valid JSON Schema 2020-12, with the few further rules of a provider."""

    def __init__(self, provider: str, names: re.Pattern[str] = _ANY_NAME) -> None:
        self._provider = provider
        self._names = names

    def __call__(self, schema: Mapping[str, Any], note: OnChange) -> tuple[Schema, Restoration]:
        return self._node(schema, note, ())

    def _node(
        self, schema: Mapping[str, Any], note: OnChange, path: Path
    ) -> tuple[Schema, Restoration]:
        node = self._clean(schema, note, path)
        names = rename_properties(properties_of(node), self._names)
        backs: dict[Path, Restoration] = {}

        def visit(part: Any, at: Path) -> Any:
            if not is_object(part):
                # only there do providers accept `true` and `false` as schemas
                return part if at[-1] == "additionalProperties" else _boolean_to_schema(part)
            made, backs[at[len(path) :]] = self._node(part, note, at)
            return made

        made = map_schemas(node, visit, path)
        if names:
            note(
                path,
                f"{comma_list(names)} renamed",
                f"{self._provider} does not accept such property names",
            )
            made = _with_names(made, names)
        return made, _back(names, backs)

    def _clean(self, schema: Mapping[str, Any], note: OnChange, path: Path) -> Schema:
        # references are already expanded, so the definitions are no longer needed
        lost = [word for word in schema if word.startswith(("$", "x-")) or word == "id"]
        node = {word: value for word, value in schema.items() if word not in lost}
        if lost:
            note(path, f"{comma_list(lost)} left out", "it means nothing to a model")
        kinds: Any = node.get("type")
        kinds = kinds if is_list(kinds) else [kinds]
        if "array" in kinds or is_list(node.get("items")):
            self._set_items(node, note, path)
        # some endpoints refuse an object that declares no properties
        if "object" in kinds and not is_object(node.get("properties")):
            node["properties"] = {}
        if "required" in node and not is_list(node["required"]):
            del node["required"]
        modernise(node, note, path)
        self._set_pattern(node, note, path)
        return node

    def _set_items(self, node: Schema, note: OnChange, path: Path) -> None:
        places = places_of(node)
        if places is not None:
            note(path, "any place may have what one of the places has", self._why("tuples"))
            node.update(limit_length(node, places))
            node["items"] = {"anyOf": [_boolean_to_schema(place) for place in distinct(places)]}
            node.pop("prefixItems", None)
            node.pop("additionalItems", None)
        elif not is_object(node.get("items")):
            note(path, "`items` is there", self._why("arrays without"))
            node["items"] = {}

    def _set_pattern(self, node: Schema, note: OnChange, path: Path) -> None:
        pattern = node.get("pattern")
        if isinstance(pattern, str) and not compiles(pattern):
            del node["pattern"]
            note(path, "`pattern` became words", self._why("patterns that Python does not"))
            words = describe(node.get("description"), {"pattern": pattern})
            node.update(with_description({}, words))

    def _why(self, what: str) -> str:
        return f"{self._provider} does not take {what}"


def _boolean_to_schema(part: Any) -> Any:
    if part is False:
        return {"not": {}}
    return {} if part is True else part


def _with_names(node: Schema, names: Mapping[str, str]) -> Schema:
    return {
        **node,
        "properties": {names.get(name, name): part for name, part in properties_of(node).items()},
        "required": [names.get(name, name) for name in required_of(node)],
    }


def _back(names: Mapping[str, str], backs: Mapping[Path, Restoration]) -> Restoration:
    """The restoration of a node, from those of the schemas within it."""

    def find_back(words: frozenset[str]) -> Restoration:
        return either(back for at, back in backs.items() if at[0] in words)

    if not names and not any(backs.values()):
        return SAME
    own = Restoration(
        names={sent: name for name, sent in names.items()},
        properties={str(at[1]): back for at, back in backs.items() if at[0] == "properties"},
        others=find_back(_OTHERS) or None,
        items=find_back(_ITEMS) or None,
    )
    return either([own, find_back(_SAME_VALUE)])


_OTHERS = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties"})
_ITEMS = frozenset({"items", "contains", "unevaluatedItems"})
_SAME_VALUE = frozenset(
    {
        *("anyOf", "oneOf", "allOf", "if", "then", "else", "not"),
        *("dependentSchemas", "dependencies"),
    }
)
