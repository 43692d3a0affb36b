"""Replaces references in a schema with the definitions they name."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from multitap.catalog.schemas.json_values import is_list, is_object
from multitap.tools.providers.combine import both
from multitap.tools.providers.walk import (
    OnChange,
    Path,
    Schema,
    map_schemas,
    outline,
    unheard,
)

MAX_NODES = 2_000
"""Subschemas; expanded, ten lines of references can exceed a machine's memory."""
MAX_PATH = 100  # well below Python's own limit for recursion
MAX_CHAIN = 50
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ASIDE = frozenset({*_REFERENCES, "$defs", "definitions"})
_WHY = "not every model follows references"


def inline_references(schema: Mapping[str, Any], note: OnChange = unheard) -> Schema:
    """The schema without references; a recursive one is replaced by its type."""
    return _Inliner(schema, note).node(schema, (), (id(schema),))


class _Inliner:
    def __init__(self, root: Mapping[str, Any], note: OnChange) -> None:
        self._root = root
        self._note = note
        self._left = MAX_NODES

    def node(self, schema: Mapping[str, Any], path: Path, chain: tuple[int, ...]) -> Schema:
        self._left -= 1
        if self._left < 0 or len(path) > MAX_PATH:
            self._note(path, "only its type is given", "the schema is too large or too deep")
            return outline(schema)
        # since draft 2019-09, keywords beside a reference apply as well
        beside = {word: value for word, value in schema.items() if word not in _ASIDE}
        written = map_schemas(beside, lambda part, at: self._part(part, at, chain), path)
        for word in _REFERENCES:
            if word in schema:
                written = both(written, self._follow(schema[word], path, chain))
        return written

    def _part(self, part: Any, path: Path, chain: tuple[int, ...]) -> Any:
        return self.node(part, path, chain) if is_object(part) else part

    def _follow(self, reference: Any, path: Path, chain: tuple[int, ...]) -> Schema:
        target = self._target(reference)
        if not is_object(target):
            self._note(path, f"any value is taken for `{reference!s:.100}`", "it leads nowhere")
            return {}
        # By identity: stops at a schema that contains itself, but not at one that is used
        # twice.
        if id(target) in chain or len(chain) > MAX_CHAIN:
            self._note(path, f"only the type of `{reference}` is given", "it contains itself")
            return outline(target)
        self._note(path, f"`{reference}` is written out", _WHY)
        return self.node(target, path, (*chain, id(target)))

    def _target(self, reference: Any) -> Any:
        # nothing is ever fetched: a schema must not make us ask other machines
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        if reference == "#":
            return self._root
        if reference.startswith("#/"):
            return _at(self._root, unquote(reference[2:]).split("/"))
        return _find_anchor(self._root, reference[1:])


def _at(place: Any, path: list[str]) -> Any:
    try:
        for part in path:
            name = part.replace("~1", "/").replace("~0", "~")
            place = place[int(name) if is_list(place) else name]
    except (LookupError, TypeError, ValueError):
        return None
    return place


def _find_anchor(root: Mapping[str, Any], name: str) -> Any:
    """The definition with that anchor; anchors elsewhere are too rare to look for."""
    for group in ("$defs", "definitions"):
        found = root.get(group)
        for definition in found.values() if is_object(found) else ():
            if is_object(definition) and name in {
                definition.get("$anchor"),
                definition.get("$dynamicAnchor"),
            }:
                return definition
    return None
