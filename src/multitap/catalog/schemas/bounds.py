"""Estimates the cost of a schema before anything compiles it."""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import Any
from urllib.parse import unquote

import msgspec

from multitap.catalog.schemas.schema import is_list, is_object

# Schemas come from servers, and are compiled and run in our process: what exceeds a bound is left
# unchecked, and the server is the one that judges its arguments.
MAX_DEPTH = 64
MAX_SUBSCHEMAS = 2_000
MAX_REF_CHAIN = 64
MAX_PATTERNS = 100
"""Patterns of one schema; compiling one may take milliseconds."""
MAX_COST = 50_000
"""Subschemas evaluated for one value; about a millisecond."""

Schema = Mapping[str, Any]


def bounds(schema: Schema) -> str | None:
    """Why checking against `schema` could cost too much, if so; recursion alone is not a reason."""
    try:
        survey = _Survey(schema)
    except _OutOfBounds as exc:
        return str(exc)
    if survey.longest_chain() > MAX_REF_CHAIN:
        return f"a `$ref` leads to another more than {MAX_REF_CHAIN} times"
    if survey.cost() > MAX_COST:
        return f"one value may need more than {MAX_COST:,} checks"
    return None


def evaluations(schema: Schema, depth: int) -> int:
    """The maximum number of subschemas evaluated for a value of that depth, without lists.

    More than any bound for a schema that is out of bounds.
    """
    try:
        return _Survey(schema).cost_at(depth)
    except _OutOfBounds:
        return MAX_COST + 1


class _Edge(Enum):
    HERE = auto()
    """Applied to the same value."""
    BELOW = auto()
    """Applied to parts of the value."""
    ASIDE = auto()
    """Applied only by reference."""


_HERE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")
_OF_OBJECTS = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_OF_LISTS = ("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains")
_SCHEMAS: Mapping[str, _Edge] = {
    **dict.fromkeys(_HERE, _Edge.HERE),
    **dict.fromkeys((*_OF_OBJECTS, *_OF_LISTS), _Edge.BELOW),
    "contentSchema": _Edge.ASIDE,
}
"""Keywords with a schema or a list of them."""
_NAMED_SCHEMAS: Mapping[str, _Edge] = {
    "dependentSchemas": _Edge.HERE,
    "dependencies": _Edge.HERE,
    "properties": _Edge.BELOW,
    "patternProperties": _Edge.BELOW,
    "$defs": _Edge.ASIDE,
    "definitions": _Edge.ASIDE,
}
"""Keywords with schemas by name."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_IDS = ("$id", "id")
_UNEVALUATED = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_REPEATED = 3  # how often they make the validator evaluate the subschemas beside them


class _OutOfBounds(Exception):
    pass


class _Node(msgspec.Struct):
    """One subschema, and the ones it leads to, by their `id()`."""

    references: list[int] = msgspec.field(default_factory=list[int])
    here: list[int] = msgspec.field(default_factory=list[int])
    below: list[int] = msgspec.field(default_factory=list[int])
    repeated: int = 1


class _Survey:
    """All subschemas of a schema, and the references between them."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._nodes: dict[int, _Node] = {}
        self._anchors: dict[str, Schema] = {}
        self._unresolved: list[Schema] = []
        self._patterns = 0
        self._walk(root)  # inline subschemas first: by reference they would seem less deep
        while self._unresolved:
            self._follow(self._unresolved.pop())

    def cost(self) -> int:
        """Subschemas evaluated for a value of any depth, with recursion counted once."""
        costs: dict[int, int] = {}
        for key in self._postorder(deep=True):
            costs[key] = self._cost(self._nodes[key], costs, costs)
        return costs[id(self._root)]

    def cost_at(self, depth: int) -> int:
        """The same for a value of that depth, with recursion counted each time."""
        order = self._postorder(deep=False)
        costs: dict[int, int] = {}
        for _ in range(depth + 1):
            parts, costs = costs, {}
            for key in order:
                costs[key] = self._cost(self._nodes[key], costs, parts)
        return costs[id(self._root)]

    def longest_chain(self) -> int:
        chains: dict[int, int] = {}
        for key in self._postorder(deep=False):
            references = self._nodes[key].references
            chains[key] = max((1 + chains.get(target, 0) for target in references), default=0)
        return max(chains.values())

    def _cost(self, node: _Node, same: Mapping[int, int], parts: Mapping[int, int]) -> int:
        here = sum(same.get(child, 1) for child in (*node.here, *node.references))
        below = sum(parts.get(child, 1) for child in node.below)
        return min(1 + node.repeated * here + below, MAX_COST + 1)

    def _walk(self, start: Schema) -> None:
        # a loop: a foreign schema may be nested deeper than Python can recurse
        pending = [(start, 1)]
        while pending:
            schema, depth = pending.pop()
            if id(schema) in self._nodes:
                continue
            self._admit(schema, depth)
            node = self._nodes[id(schema)] = _Node()
            if _UNEVALUATED & schema.keys():
                node.repeated = _REPEATED
            for edge, child in _children(schema):
                pending.append((child, depth + 1))
                if edge is _Edge.HERE:
                    node.here.append(id(child))
                elif edge is _Edge.BELOW:
                    node.below.append(id(child))

    def _admit(self, schema: Schema, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise _OutOfBounds(f"it is nested more than {MAX_DEPTH} levels deep")
        if len(self._nodes) == MAX_SUBSCHEMAS:
            raise _OutOfBounds(f"it has more than {MAX_SUBSCHEMAS:,} subschemas")
        # It changes the base of the references below, which this survey does not follow, so their
        # cost is unknown.
        if schema is not self._root and any(isinstance(schema.get(key), str) for key in _IDS):
            raise _OutOfBounds("a part of it has an `$id`, so that references may lead anywhere")
        named = schema.get("patternProperties")
        self._patterns += ("pattern" in schema) + (len(named) if is_object(named) else 0)
        if self._patterns > MAX_PATTERNS:
            raise _OutOfBounds(f"it has more than {MAX_PATTERNS} patterns")
        for key in _ANCHORS:
            if isinstance(name := schema.get(key), str):
                self._anchors[name] = schema
        if any(key in schema for key in _REFERENCES):
            self._unresolved.append(schema)

    def _follow(self, schema: Schema) -> None:
        for key in _REFERENCES:
            if key in schema and is_object(target := self._resolve(schema[key])):
                self._nodes[id(schema)].references.append(id(target))
                self._walk(target)

    def _resolve(self, reference: Any) -> Any:
        match reference:
            case "#":
                return self._root
            case str() if reference.startswith("#/"):
                # a pointer within a URI is percent-encoded (RFC 6901)
                return self._at(unquote(reference[2:]).split("/"), reference)
            case str() if reference.removeprefix("#") in self._anchors:
                return self._anchors[reference[1:]]
            case _:
                raise _OutOfBounds(f"it refers to {reference!r:.200}, which is not part of it")

    def _at(self, path: list[str], reference: str) -> Any:
        place: Any = self._root
        try:
            for part in path:
                # in this order: `~01` stands for `~1`, not for a slash
                name = part.replace("~1", "/").replace("~0", "~")
                place = place[int(name) if is_list(place) else name]
        except (LookupError, TypeError, ValueError):
            raise _OutOfBounds(f"it refers to {reference!r:.200}, and has no such part") from None
        return place

    def _postorder(self, *, deep: bool) -> list[int]:
        """Every subschema after those it leads to, except in cycles.

        Args:
            deep: Whether to include subschemas for parts of the value.
        """
        order: list[int] = []
        seen: set[int] = set()
        pending = [(key, False) for key in self._nodes]
        while pending:
            key, finished = pending.pop()
            if finished:
                order.append(key)
            elif key not in seen:
                seen.add(key)
                node = self._nodes[key]
                pending.append((key, True))
                below = node.below if deep else ()
                pending += [(to, False) for to in (*node.references, *node.here, *below)]
        return order


def _children(schema: Schema) -> Iterator[tuple[_Edge, Schema]]:
    for keyword, value in schema.items():
        if edge := _SCHEMAS.get(keyword):
            candidates: Iterable[Any] = value if is_list(value) else (value,)
        elif (edge := _NAMED_SCHEMAS.get(keyword)) and is_object(value):
            candidates = value.values()
        else:
            continue
        for candidate in candidates:
            if is_object(candidate):
                yield edge, candidate
