"""Flattens alternatives at the top of a schema into one object."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from multitap.catalog.schemas.json_values import is_list, is_object
from multitap.tools.providers.combine import both, distinct
from multitap.tools.providers.walk import Schema, properties_of, required_of

COMBINATORS = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "enum", "const")
"""Keywords that OpenAI and Anthropic refuse at the top of a schema."""
_DEEPEST = 20  # combinators within combinators; a foreign schema must not exhaust the stack


def flatten(schema: Mapping[str, Any], depth: int = 0) -> tuple[Schema, str]:
    """One object that accepts all alternatives, and a text for rules that it cannot express."""
    flat: Schema = {word: schema[word] for word in schema if word not in COMBINATORS}
    said: list[str] = []
    if depth < _DEEPEST:
        for part in _objects(schema.get("allOf")):
            inner, words = flatten(part, depth + 1)
            flat = both(flat, inner)
            said.append(words)
        for word in ("anyOf", "oneOf"):
            branches = [flatten(part, depth + 1)[0] for part in _objects(schema.get(word))]
            said.append(_alternatives(branches, required_of(flat), exactly=word == "oneOf"))
            flat = _either(flat, branches)
        for word in ("then", "else"):
            if is_object(branch := schema.get(word)):
                inner, _ = flatten(branch, depth + 1)
                # applies only if the condition holds, and no provider evaluates the condition
                inner.pop("required", None)
                flat = both(flat, inner)
    return {**flat, "type": "object", "properties": dict(properties_of(flat))}, _sentence(said)


def _objects(parts: Any) -> list[Mapping[str, Any]]:
    """The alternatives that an object can match."""
    found = [part for part in parts if is_object(part)] if is_list(parts) else []
    return [part for part in found if "object" in _types(part)]


def _types(schema: Mapping[str, Any]) -> Sequence[str]:
    kind: Any = schema.get("type", "object")
    return kind if is_list(kind) else [kind]


def _either(base: Schema, branches: list[Schema]) -> Schema:
    if not branches:
        return base
    known = properties_of(base)
    names = dict.fromkeys(name for branch in branches for name in properties_of(branch))
    added = {
        name: _any([properties_of(one)[name] for one in branches if name in properties_of(one)])
        for name in names
        if not known.get(name)
    }
    first, *others = [required_of(branch) for branch in branches]
    # only what every alternative requires; the rest goes into the description
    needed = [name for name in first if all(name in other for other in others)]
    required = distinct([*required_of(base), *needed])
    joined = {**base, "properties": {**known, **added}}
    if added:
        joined.pop("additionalProperties", None)
    return {**joined, "required": required} if required else joined


def _any(schemas: list[Any]) -> Any:
    """One schema for a property that the alternatives describe differently."""
    found = distinct(schemas)
    if len(found) == 1:
        return found[0]
    if all(is_object(one) and ("const" in one or is_list(one.get("enum"))) for one in found):
        values = [value for one in found for value in one.get("enum", [one.get("const")])]
        plain = {word: value for word, value in found[0].items() if word not in {"const", "type"}}
        return {**plain, "enum": distinct(values)}
    return {"anyOf": found}


def _alternatives(branches: list[Schema], known: Iterable[str], *, exactly: bool) -> str:
    sets = [_property_names(branch, known) for branch in branches]
    if len(sets) < 2 or not all(sets):  # noqa: PLR2004 - one alternative is none
        return ""
    if all(len(one) == 1 for one in sets):
        how = "Exactly" if exactly else "At least"
        return f"{how} one of these is needed: {', '.join(one[0] for one in sets)}."
    return f"Needed together: {'; or '.join(', '.join(one) for one in distinct(sets))}."


def _property_names(branch: Schema, known: Iterable[str]) -> list[str]:
    properties = properties_of(branch)
    return [
        name + _constant(properties.get(name))
        for name in required_of(branch)
        if name not in known or _constant(properties.get(name))
    ]


def _constant(schema: Any) -> str:
    if is_object(schema) and "const" in schema:
        return f"={msgspec.json.encode(schema['const']).decode()}"
    return ""


def _sentence(parts: Iterable[str]) -> str:
    return " ".join(part for part in parts if part)
