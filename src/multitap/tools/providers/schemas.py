"""JSON Schemas rewritten for any model: references inlined, alternatives joined, texts cut."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec

from multitap.catalog.schemas.schema import is_list, is_object

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
        node = pending.pop()
        yield node
        map_schemas(node, visit, ())


def outline(schema: Mapping[str, Any]) -> Schema:
    """A schema reduced to its type and its description."""
    brief = {word: schema[word] for word in ("type", "description") if word in schema}
    if "type" not in brief and "properties" in schema:
        brief["type"] = "object"
    return brief


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if is_object(properties) else {}


def required_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    required = schema.get("required")
    return tuple(name for name in required if isinstance(name, str)) if is_list(required) else ()


_LARGER = frozenset(
    {
        *("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"),
        "minContains",
    }
)
_SMALLER = frozenset(
    {
        *("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"),
        "maxContains",
    }
)


def both(first: Mapping[str, Any], second: Mapping[str, Any]) -> Schema:
    """A schema for values that match both; the first of two rules that cannot be combined."""
    joined = {**second, **first}
    for keyword in first.keys() & second.keys():
        joined[keyword] = _JOIN.get(keyword, _first)(first[keyword], second[keyword])
    if _closed(first) != _closed(second):
        del joined["additionalProperties"]  # properties of the other schema must stay possible
    return joined


def distinct(values: Iterable[Any]) -> list[Any]:
    """The distinct values in their order; 1 is not true."""
    # by their text: schemas cannot be hashed, and Python takes 1 and True for the same
    return list({repr(value): value for value in values}.values())


def _first(first: Any, _: Any) -> Any:
    return first


def _join_schemas(first: Any, second: Any) -> Any:
    if is_object(first) and is_object(second):
        return both(first, second)
    return second if first is True else first


def _combine_named(first: Any, second: Any) -> Any:
    if not (is_object(first) and is_object(second)):
        return first
    shared = {
        name: _join_schemas(first[name], second[name]) for name in first.keys() & second.keys()
    }
    return {**first, **second, **shared}


def _all(first: Any, second: Any) -> Any:
    return distinct([*first, *second]) if is_list(first) and is_list(second) else first


def _common(first: Any, second: Any) -> Any:
    common = (
        [value for value in first if value in second] if is_list(first) and is_list(second) else []
    )
    # no common value: nothing would match, and the server may accept more than its schema says
    return common or first


def _common_types(first: Any, second: Any) -> Any:
    first_types, second_types = (value if is_list(value) else [value] for value in (first, second))
    # every integer is a number, so both allow the narrower type
    common = [
        kind
        for kind in first_types
        if kind in second_types or (kind == "integer" and "number" in second_types)
    ]
    if "number" in first_types and "integer" in second_types and "integer" not in common:
        common.append("integer")
    return (common[0] if len(common) == 1 else common) or first


def _number(choose: Callable[[list[Any]], Any]) -> Callable[[Any, Any], Any]:
    def pick(first: Any, second: Any) -> Any:
        numbers = isinstance(first, int | float) and isinstance(second, int | float)
        return choose([first, second]) if numbers else first

    return pick


_JOIN: Mapping[str, Callable[[Any, Any], Any]] = {
    "type": _common_types,
    "properties": _combine_named,
    "patternProperties": _combine_named,
    "items": _join_schemas,
    "additionalProperties": _join_schemas,
    "required": _all,
    "enum": _common,
    **dict.fromkeys(_LARGER, _number(max)),
    **dict.fromkeys(_SMALLER, _number(min)),
}


def _closed(schema: Mapping[str, Any]) -> bool:
    return schema.get("additionalProperties") is False


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
        definitions = root.get(group)
        for definition in definitions.values() if is_object(definitions) else ():
            if is_object(definition) and name in {
                definition.get("$anchor"),
                definition.get("$dynamicAnchor"),
            }:
                return definition
    return None


COMBINATORS = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "enum", "const")
"""Keywords that OpenAI and Anthropic refuse at the top of a schema."""
_DEEPEST = 20  # combinators within combinators; a foreign schema must not exhaust the stack


def flatten(schema: Mapping[str, Any], depth: int = 0) -> tuple[Schema, str]:
    """One object that accepts all alternatives, and a text for rules that it cannot express."""
    flat: Schema = {word: schema[word] for word in schema if word not in COMBINATORS}
    rules: list[str] = []
    if depth < _DEEPEST:
        for part in _objects(schema.get("allOf")):
            inner, rule = flatten(part, depth + 1)
            flat = both(flat, inner)
            rules.append(rule)
        for word in ("anyOf", "oneOf"):
            branches = [flatten(part, depth + 1)[0] for part in _objects(schema.get(word))]
            rules.append(_alternatives(branches, required_of(flat), exactly=word == "oneOf"))
            flat = _either(flat, branches)
        for word in ("then", "else"):
            if is_object(branch := schema.get(word)):
                inner, _ = flatten(branch, depth + 1)
                # applies only if the condition holds, and no provider evaluates the condition
                inner.pop("required", None)
                flat = both(flat, inner)
    return {**flat, "type": "object", "properties": dict(properties_of(flat))}, _sentence(rules)


def _objects(parts: Any) -> list[Mapping[str, Any]]:
    """The alternatives that an object can match."""
    objects = [part for part in parts if is_object(part)] if is_list(parts) else []
    return [part for part in objects if "object" in _declared_types(part)]


def _declared_types(schema: Mapping[str, Any]) -> Sequence[str]:
    kind: Any = schema.get("type", "object")
    return kind if is_list(kind) else [kind]


def _either(base: Schema, branches: list[Schema]) -> Schema:
    if not branches:
        return base
    properties = properties_of(base)
    names = dict.fromkeys(name for branch in branches for name in properties_of(branch))
    added = {
        name: _any(
            [properties_of(branch)[name] for branch in branches if name in properties_of(branch)]
        )
        for name in names
        if not properties.get(name)
    }
    first, *others = [required_of(branch) for branch in branches]
    # only what every alternative requires; the rest goes into the description
    needed = [name for name in first if all(name in other for other in others)]
    required = distinct([*required_of(base), *needed])
    joined = {**base, "properties": {**properties, **added}}
    if added:
        joined.pop("additionalProperties", None)
    return {**joined, "required": required} if required else joined


def _any(schemas: list[Any]) -> Any:
    """One schema for a property that the alternatives describe differently."""
    alternatives = distinct(schemas)
    if len(alternatives) == 1:
        return alternatives[0]
    if all(
        is_object(schema) and ("const" in schema or is_list(schema.get("enum")))
        for schema in alternatives
    ):
        values = [
            value for schema in alternatives for value in schema.get("enum", [schema.get("const")])
        ]
        plain = {
            word: value for word, value in alternatives[0].items() if word not in {"const", "type"}
        }
        return {**plain, "enum": distinct(values)}
    return {"anyOf": alternatives}


def _alternatives(branches: list[Schema], required: Iterable[str], *, exactly: bool) -> str:
    sets = [_property_names(branch, required) for branch in branches]
    if len(sets) < 2 or not all(sets):  # noqa: PLR2004 - one alternative is none
        return ""
    if all(len(names) == 1 for names in sets):
        how = "Exactly" if exactly else "At least"
        return f"{how} one of these is needed: {', '.join(names[0] for names in sets)}."
    return f"Needed together: {'; or '.join(', '.join(names) for names in distinct(sets))}."


def _property_names(branch: Schema, required: Iterable[str]) -> list[str]:
    properties = properties_of(branch)
    return [
        name + _constant(properties.get(name))
        for name in required_of(branch)
        if name not in required or _constant(properties.get(name))
    ]


def _constant(schema: Any) -> str:
    if is_object(schema) and "const" in schema:
        return f"={msgspec.json.encode(schema['const']).decode()}"
    return ""


def _sentence(parts: Iterable[str]) -> str:
    return " ".join(part for part in parts if part)


_TELLING = frozenset(
    {
        *("format", "pattern", "minLength", "maxLength", "default", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "enum"),
    }
)
_LONGEST = 200  # characters of one rule; an enum of a thousand values would bury the rest


def describe(description: Any, dropped: Mapping[str, Any]) -> str:
    """The description, with useful dropped rules in brackets."""
    own = description if isinstance(description, str) else ""
    rules = [
        f"{word}: {value}"
        for word in dropped
        if word in _TELLING and (value := _json(dropped[word])) and value not in own
    ]
    return f"{own} ({'; '.join(rules)})".strip() if rules else own


def cut(text: str, longest: int) -> str:
    """The text, cut at the end of a word if it is too long."""
    if len(text) <= longest:
        return text
    head = text[: max(longest - 1, 0)]
    space = head.rfind(" ")
    # a text without blanks, such as a URL, is cut anywhere
    return f"{head[:space] if space > longest // 2 else head}…"


def comma_list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def with_description(schema: Schema, description: str) -> Schema:
    """The schema with this description, or without one."""
    rest = {word: value for word, value in schema.items() if word != "description"}
    return {**rest, "description": description} if description else rest


def _json(value: Any) -> str:
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else ""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return ""
    return text if len(text) <= _LONGEST else ""


_DECORATION = frozenset(
    {
        *("title", "examples", "example", "deprecated", "readOnly", "writeOnly"),
        *("markdownDescription", "enumDescriptions", "discriminator", "externalDocs"),
    }
)
_SAME_LEVEL = frozenset({"anyOf", "oneOf", "allOf"})


class ShorteningStep(msgspec.Struct, frozen=True):
    """How much to shorten."""

    about: int
    """Characters of the tool's description."""
    part_about: int
    """Characters of a description within the schema."""
    values: int
    """How many allowed values are listed."""
    levels: int
    """Levels of properties and items that are described."""

    def __str__(self) -> str:
        return (
            f"descriptions are cut to {self.part_about} characters, lists of more than "
            f"{self.values} values and what is nested deeper than {self.levels} levels left out"
        )


STEPS = (
    ShorteningStep(about=4000, part_about=400, values=200, levels=20),
    ShorteningStep(about=2000, part_about=150, values=100, levels=20),
    ShorteningStep(about=1000, part_about=80, values=50, levels=5),
    ShorteningStep(about=1000, part_about=80, values=20, levels=3),
    ShorteningStep(about=600, part_about=60, values=10, levels=2),
    ShorteningStep(about=300, part_about=0, values=0, levels=1),
)


def say_less(schema: Mapping[str, Any], step: ShorteningStep, level: int = 0) -> Schema:
    """A shorter schema that is still correct."""
    if level >= step.levels:
        return _cut_description(outline(schema), step.part_about)
    shorter = {word: value for word, value in schema.items() if word not in _DECORATION}
    # all or none: a truncated list would forbid values that the tool accepts
    if is_list(values := shorter.get("enum")) and len(values) > step.values:
        del shorter["enum"]

    def visit(part: Any, at: Path) -> Any:
        # an alternative describes the same value, not a deeper one
        inner = level if at[0] in _SAME_LEVEL else level + 1
        return say_less(part, step, inner) if is_object(part) else part

    return _cut_description(map_schemas(shorter, visit, ()), step.part_about)


def _cut_description(schema: Schema, longest: int) -> Schema:
    description = schema.get("description")
    if not isinstance(description, str):
        return schema
    if not longest:
        return {word: value for word, value in schema.items() if word != "description"}
    return {**schema, "description": cut(description, longest)}
