"""The dialects of JSON Schema that providers accept, and the way back from their arguments."""

import re
import warnings
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

import msgspec

from multitap.catalog.schemas.schema import is_list, is_object
from multitap.tools.providers.schemas import (
    OnChange,
    Path,
    Schema,
    both,
    comma_list,
    describe,
    distinct,
    flatten,
    map_schemas,
    properties_of,
    required_of,
    with_description,
)


class Restoration(msgspec.Struct, frozen=True, kw_only=True):
    """How a value differs from what the tool expects; empty if it does not."""

    names: Mapping[str, str] = {}
    """The tool's property names by those that the model uses, if they differ."""
    optional: frozenset[str] = frozenset()
    """Properties, by the tool's names, for which null means absent."""
    properties: Mapping[str, "Restoration"] = {}
    """Differences within properties, by the tool's names."""
    others: "Restoration | None" = None
    """Differences within undeclared properties."""
    items: "Restoration | None" = None
    text: bool = False
    """Whether it is sent as JSON in a string."""
    word: bool = False
    """Whether the string may also be literal, unless it is an object or a list."""

    def __bool__(self) -> bool:
        inner = any(self.properties.values()) or self.others or self.items
        return bool(self.names or self.optional or inner or self.text)


SAME = Restoration()


def restore_value(value: Any, back: Restoration) -> Any:
    """The value as the tool expects it."""
    if back.text and isinstance(value, str):
        return _read(value, word=back.word)
    if is_object(value):
        return _object(value, back)
    if is_list(value) and back.items:
        return [restore_value(item, back.items) for item in value]
    return value


def either(backs: Iterable[Restoration]) -> Restoration:
    """The combined restoration of several alternatives."""
    changing = [back for back in backs if back]
    if len(changing) <= 1:
        return changing[0] if changing else SAME
    inner = dict.fromkeys(name for back in changing for name in back.properties)
    return Restoration(
        # which alternative the model chose is not known, so all renames are undone
        names={sent: name for back in changing for sent, name in back.names.items()},
        optional=frozenset[str]().union(*(back.optional for back in changing)),
        properties={
            name: either(back.properties.get(name, SAME) for back in changing) for name in inner
        },
        others=either(back.others for back in changing if back.others) or None,
        items=either(back.items for back in changing if back.items) or None,
        text=any(back.text for back in changing),
        word=any(back.word for back in changing),
    )


def _object(value: Mapping[str, Any], back: Restoration) -> dict[str, Any]:
    named = {back.names.get(sent, sent): inner for sent, inner in value.items()}
    return {
        name: restore_value(inner, back.properties.get(name, back.others or SAME))
        for name, inner in named.items()
        # null means absent: strict mode requires a value
        if not (inner is None and name in back.optional)
    }


def _read(text: str, *, word: bool) -> Any:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text  # an unquoted word, where any value is allowed
    return text if word and not (is_object(value) or is_list(value)) else value


# Compiled in our process, from a server's schema.
_LONGEST_PATTERN = 1_000
_PECULIAR = re.compile(r"\(\?|\\[pPkKuxGAZzbB1-9]|\[\[:")


def portable(pattern: object) -> bool:
    """Whether all engines accept a pattern: it has no look-around or similar."""
    return (
        isinstance(pattern, str)
        # a non-capturing group is the only form of `(?` that all engines accept
        and _PECULIAR.search(pattern.replace("(?:", "(")) is None
        and compiles(pattern)
    )


def compiles(pattern: str) -> bool:
    """Whether Python accepts it, which OpenAI's own check requires."""
    if len(pattern) > _LONGEST_PATTERN:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # syntax whose meaning Python may change
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError):
            return False
    return True


_FOREIGN = re.compile(r"[^A-Za-z0-9_]")
_LONGEST_NAME = 64  # characters, as Anthropic and Gemini allow


def rename_properties(names: Iterable[str], accepted: re.Pattern[str]) -> Mapping[str, str]:
    """New names for properties of one object that the provider would refuse."""
    own = tuple(names)
    # valid names are kept, whatever precedes them
    used = {name for name in own if accepted.fullmatch(name)}
    renamed: dict[str, str] = {}
    for name in own:
        if name not in used and name not in renamed:
            renamed[name] = _free(_plain_name(name), used | set(renamed.values()))
    return renamed


def _plain_name(name: str) -> str:
    plain = _FOREIGN.sub("_", name)[:_LONGEST_NAME] or "_"
    return plain if plain[0].isalpha() or plain[0] == "_" else f"_{plain}"[:_LONGEST_NAME]


def _free(name: str, used: set[str]) -> str:
    if name not in used:
        return name
    numbered = (f"{name[: _LONGEST_NAME - 6]}_{number}" for number in count(2))
    return next(candidate for candidate in numbered if candidate not in used)


_PAIRS = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))


def modernise(node: Schema, note: OnChange, path: Path) -> None:
    """Convert limits of draft 4, whose `exclusiveMinimum` is a boolean, to numbers."""
    for limit, exclusive in _PAIRS:
        if isinstance(node.get(exclusive), bool):
            note(path, f"`{exclusive}` is a number", "only draft 4 has it otherwise")
            if node.pop(exclusive) and limit in node:
                node[exclusive] = node.pop(limit)


def places_of(array: Mapping[str, Any]) -> list[Any] | None:
    """The schema of each position; None for an array with uniform items."""
    places = array.get("prefixItems", array.get("items"))
    return places if is_list(places) else None


def limit_length(array: Schema, places: list[Any]) -> Schema:
    """The maximum length of an array with those positions, if there is one."""
    rest = array.get("items") if "prefixItems" in array else array.get("additionalItems")
    if rest is not False:
        return {}
    most = array.get("maxItems")
    return {"maxItems": min(len(places), most) if isinstance(most, int) else len(places)}


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
            converted, backs[at[len(path) :]] = self._node(part, note, at)
            return converted

        converted = map_schemas(node, visit, path)
        if names:
            note(
                path,
                f"{comma_list(names)} renamed",
                f"{self._provider} does not accept such property names",
            )
            converted = _with_names(converted, names)
        return converted, _back(names, backs)

    def _clean(self, schema: Mapping[str, Any], note: OnChange, path: Path) -> Schema:
        # references are already expanded, so the definitions are no longer needed
        dropped = [word for word in schema if word.startswith(("$", "x-")) or word == "id"]
        node = {word: value for word, value in schema.items() if word not in dropped}
        if dropped:
            note(path, f"{comma_list(dropped)} left out", "it means nothing to a model")
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
            note(path, "every position accepts what any of them does", self._why("tuples"))
            node.update(limit_length(node, places))
            node["items"] = {"anyOf": [_boolean_to_schema(place) for place in distinct(places)]}
            node.pop("prefixItems", None)
            node.pop("additionalItems", None)
        elif not is_object(node.get("items")):
            note(path, "`items` added", self._why("arrays without it"))
            node["items"] = {}

    def _set_pattern(self, node: Schema, note: OnChange, path: Path) -> None:
        pattern = node.get("pattern")
        if isinstance(pattern, str) and not compiles(pattern):
            del node["pattern"]
            note(path, "`pattern` became words", self._why("patterns that Python does not"))
            description = describe(node.get("description"), {"pattern": pattern})
            node.update(with_description({}, description))

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

    def find_back(keywords: frozenset[str]) -> Restoration:
        return either(back for at, back in backs.items() if at[0] in keywords)

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
        node, rules = flatten(node)
        note(path, "`anyOf` became words", _WHY)
        node = with_description(node, f"{node.get('description', '')} {rules}".strip())
    return node


def _own_kinds(branches: Any) -> bool:
    """Whether alternatives describe values, not only required properties."""
    keywords = {"type", "properties", "enum", "const", "items", "anyOf", "oneOf", "allOf"}
    return is_list(branches) and any(
        is_object(branch) and keywords & branch.keys() for branch in branches
    )


def _choice(node: Schema, branches: list[Any], note: OnChange, path: Path) -> Schema:
    shared = _bare({word: value for word, value in node.items() if word != "anyOf"})
    alternatives: list[Any] = []
    for at, branch in enumerate(branches):
        if branch is False:
            continue  # it accepts nothing
        whole = both(branch, shared) if is_object(branch) else shared
        inner = plain(whole, note, (*path, "anyOf", at))
        # nested unions are merged, unless they have their own description
        alternatives += inner["anyOf"] if "anyOf" in inner and not _about(inner) else [inner]
    about, choices = _about(node), distinct(alternatives)
    # one alternative accepts any value, so the union does
    if not choices or any(not whole.keys() - set(_ABOUT) for whole in choices):
        return about
    return {**choices[0], **about} if len(choices) == 1 else {"anyOf": choices, **about}


def _with_type(node: Schema, kind: str, note: OnChange, path: Path) -> Schema:
    keywords = _KEPT["number" if kind == "integer" else kind]
    _say_lost(node, keywords, note, path)
    typed: Schema = {
        "type": kind,
        **_about(node),
        **{word: node[word] for word in node if word in keywords},
    }
    if is_list(values := typed.pop("enum", None)) and (fitting := _fitting(values, kind)):
        typed["enum"] = fitting
    modernise(typed, note, path)
    if kind == "array":
        _set_items(typed, node, note, path)
    elif kind == "object":
        _set_properties(typed, note, path)
    return typed


def _fitting(values: list[Any], kind: str) -> list[Any]:
    return [value for value in distinct(values) if kind in _kinds_of(value)]


def _say_lost(node: Schema, keywords: frozenset[str], note: OnChange, path: Path) -> None:
    every = frozenset[str]().union(*_KEPT.values())
    dropped = [word for word in node if word not in keywords | _READ and word not in every]
    if dropped:
        note(path, f"{comma_list(dropped)} left out", _WHY)


def _set_items(typed: Schema, node: Schema, note: OnChange, path: Path) -> None:
    places = places_of(node)
    if places is None:
        typed["items"] = plain(node.get("items"), note, (*path, "items"))
        return
    typed.update(limit_length(node, places))
    typed["items"] = _choice({}, distinct(places), note, (*path, "items"))
    note(path, "every position accepts what any of them does", _WHY)


def _set_properties(typed: Schema, note: OnChange, path: Path) -> None:
    typed["properties"] = {
        name: plain(part, note, (*path, "properties", name))
        for name, part in properties_of(typed).items()
        if part is not False
    }
    # providers refuse a required property that is not declared
    typed["required"] = [name for name in required_of(typed) if name in typed["properties"]]
    if is_object(rest := typed.get("additionalProperties")):
        typed["additionalProperties"] = plain(rest, note, (*path, "additionalProperties"))


def _kinds(node: Schema) -> list[str]:
    declared: Any = node.get("type")
    kinds = [kind for kind in (declared if is_list(declared) else [declared]) if kind in _TYPES]
    if not kinds and declared is None:
        kinds = _implied_types(node)
    if is_list(values := node.get("enum")) and values:
        fitting = [kind for kind in kinds or _TYPES if any(kind in _kinds_of(v) for v in values)]
        # values that are all whole need no second alternative for numbers
        kinds = [
            kind for kind in fitting if not (kind == "number" and "integer" in fitting)
        ] or kinds
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
