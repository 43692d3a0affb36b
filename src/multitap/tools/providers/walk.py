"""Visits the subschemas of a schema, and replaces them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from multitap.catalog.schemas.json_values import is_list, is_object

Schema = dict[str, Any]
Path = tuple[str | int, ...]
OnChange = Callable[[Path, str, str], None]
"""Called with the place, change and reason of every change."""


def unheard(_path: Path, _what: str, _why: str) -> None:
    """Ignore a change."""


_ONE = frozenset(
    {
        *("items", "additionalItems", "unevaluatedItems", "contains"),
        *("additionalProperties", "unevaluatedProperties", "propertyNames"),
        *("not", "if", "then", "else", "contentSchema"),
    }
)
_MANY = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})


def map_schemas(schema: Mapping[str, Any], visit: Callable[[Any, Path], Any], path: Path) -> Schema:
    """The schema, with `visit` applied to each schema directly in it, `true` and `false` too."""
    return {word: _part(word, value, visit, (*path, word)) for word, value in schema.items()}


def _part(word: str, value: Any, visit: Callable[[Any, Path], Any], path: Path) -> Any:
    if word in _NAMED and is_object(value):
        return {
            # `dependencies` may have a list of names instead of a schema
            name: part if is_list(part) else visit(part, (*path, name))
            for name, part in value.items()
        }
    if word in _MANY and is_list(value):
        return [visit(part, (*path, at)) for at, part in enumerate(value)]
    return visit(value, path) if word in _ONE else value


def every(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schema and all schemas within it."""
    pending = [schema]

    def visit(part: Any, _: Path) -> None:
        if is_object(part):
            pending.append(part)

    while pending:
        one = pending.pop()
        yield one
        map_schemas(one, visit, ())


def outline(schema: Mapping[str, Any]) -> Schema:
    """A schema reduced to its type and its description."""
    kept = {word: schema[word] for word in ("type", "description") if word in schema}
    if "type" not in kept and "properties" in schema:
        kept["type"] = "object"
    return kept


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if is_object(found) else {}


def required_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    found = schema.get("required")
    return tuple(name for name in found if isinstance(name, str)) if is_list(found) else ()
