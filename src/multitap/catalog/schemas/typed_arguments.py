"""Converts typed text to the types that a tool's schema asks for."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from multitap.catalog.schemas.argument_words import ArgumentWord, bad_argument, twice, unknown
from multitap.catalog.schemas.json_values import is_list, is_object
from multitap.config.problems import nearest
from multitap.errors import quoted
from multitap.records import dataclass

Schema = Mapping[str, Any]

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DEEPEST = 20


def to_arguments(given: Sequence[ArgumentWord], schema: Schema) -> dict[str, Any]:
    """The arguments, converted to the types in the schema.

    Raises:
        BadArguments: One does not match; the message names the key and what is expected.
    """
    taken = _Taken(schema)
    return {
        key: taken.value(key, [word for word in given if word.key == key])
        for key in dict.fromkeys(word.key for word in given)
    }


@dataclass(frozen=True, slots=True)
class _Taken:
    """A tool's parameters."""

    root: Schema

    def value(self, key: str, given: Sequence[ArgumentWord]) -> Any:
        schema = self._property(key)
        if len(given) == 1:
            return self._read(given[0], schema)
        if "array" not in self._kinds(schema):
            raise twice(key)
        items = self._items(schema)
        return [self._read(word, items) for word in given]

    def _property(self, key: str) -> Schema:
        properties: dict[str, Schema] = {}
        is_open = False
        for part in self._parts(self.root):
            properties |= _object(part.get("properties"))
            is_open |= "patternProperties" in part or bool(part.get("additionalProperties"))
        if key in properties:
            return _object(properties[key])
        # a schema without properties may accept anything
        if properties and not is_open:
            raise unknown(key, [*properties])
        return _object(self.root.get("additionalProperties"))

    def _read(self, word: ArgumentWord, schema: Schema) -> Any:
        """The word converted to the first allowed kind that it fits."""
        if word.is_json:
            return word.json
        if choices := self._choices(schema):
            return _choose(word, choices)
        kinds = self._kinds(schema)
        # the narrowest kind that fits, so that `1` is a number if it may be one
        for kind, read in _READERS.items():
            if kind in kinds:
                try:
                    return read(word.text)
                except ValueError:
                    continue
        # `tags=a` means a list of one; invalid JSON is a mistake
        if "array" in kinds and not word.text.lstrip().startswith("["):
            return [self._read(word, self._items(schema))]
        expected = " or ".join(_NOUNS[kind] for kind in _READERS if kind in kinds)
        raise bad_argument(word.key, f"expected {expected}, got {quoted(word.text)}")

    def _choices(self, schema: Schema) -> list[Any]:
        """All allowed values, if the schema lists them."""
        choices: list[Any] = []
        for part in self._parts(schema):
            if "const" in part:
                choices.append(part["const"])
            elif is_list(values := part.get("enum")):
                choices += values
            elif part.get("type") == "null":
                choices.append(None)
            else:
                return []
        return choices

    def _kinds(self, schema: Schema) -> frozenset[str]:
        kinds: set[str] = set()
        for part in self._parts(schema):
            said = part.get("type", _implied_kinds(part))
            kinds |= {*said} if is_list(said) else {str(said)}
        return frozenset(kinds) & _READERS.keys()

    def _items(self, schema: Schema) -> Schema:
        items = [part["items"] for part in self._parts(schema) if "items" in part]
        return _object(items[0]) if items else {}

    def _parts(self, schema: Schema, depth: int = 0) -> list[Schema]:
        """The alternatives of a schema, with references resolved."""
        if depth > _DEEPEST:
            return [{}]
        if isinstance(reference := schema.get("$ref"), str):
            beside = {word: value for word, value in schema.items() if word != "$ref"}
            return self._parts({**_resolve(self.root, reference), **beside}, depth + 1)
        if is_list(whole := schema.get("allOf")):
            merged = {word: value for word, value in schema.items() if word != "allOf"}
            for piece in whole:
                merged |= _object(piece)
            return self._parts(merged, depth + 1)
        alternatives = schema.get("anyOf", schema.get("oneOf"))
        if is_list(alternatives) and "type" not in schema:
            return [part for one in alternatives for part in self._parts(_object(one), depth + 1)]
        return [schema]


def _choose(word: ArgumentWord, choices: Sequence[Any]) -> Any:
    written = {one if isinstance(one, str) else json.dumps(one): one for one in choices}
    if word.text in written:
        return written[word.text]
    near = nearest(word.text, written)
    hint = f"did you mean {near!r}?" if near else None
    expected = f"expected one of {', '.join(written)}"
    raise bad_argument(word.key, f"{expected}, got {quoted(word.text)}", hint)


def _implied_kinds(schema: Schema) -> list[str]:
    """The kinds that a schema without a `type` allows."""
    if "properties" in schema:
        return ["object"]
    return ["array"] if "items" in schema else [*_READERS]


def _resolve(root: Schema, reference: str) -> Schema:
    if not reference.startswith("#"):
        return {}  # never fetched from elsewhere
    found: Any = root
    for step in filter(None, reference.removeprefix("#").split("/")):
        found = _object(found).get(step.replace("~1", "/").replace("~0", "~"))
    return _object(found)


def _object(value: Any) -> dict[str, Any]:
    return value if is_object(value) else {}


def _null(text: str) -> None:
    if text != "null":
        raise ValueError


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError
    return text.lower() == "true"


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError
    return int(text)


def _number(text: str) -> float:
    if _INTEGER.fullmatch(text):
        return int(text)
    if not _NUMBER.fullmatch(text) or not math.isfinite(number := float(text)):
        raise ValueError
    return number


def _array(text: str) -> list[Any]:
    if not is_list(value := json.loads(text)):
        raise ValueError
    return value


def _table(text: str) -> dict[str, Any]:
    if not is_object(value := json.loads(text)):
        raise ValueError
    return value


_READERS: Mapping[str, Callable[[str], Any]] = {
    "null": _null,
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "array": _array,
    "object": _table,
    "string": str,
}
"""In the order in which they are tried; text comes last."""

_NOUNS = {
    "null": "null",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "array": "a list as JSON",
    "object": "an object as JSON",
    "string": "a text",
}
