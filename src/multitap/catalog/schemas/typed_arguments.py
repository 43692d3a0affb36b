"""Arguments as people type them, converted to the types that a tool's schema asks for."""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from multitap.catalog.schemas.schema import is_list, is_object
from multitap.config.problems import nearest
from multitap.errors import BadArguments, quoted

_WORD = re.compile(r"(.+?)(:?=)(.*)", re.DOTALL)


class ArgumentWord(msgspec.Struct, frozen=True):
    """One `key=value` or `key:=json`."""

    key: str
    text: str
    is_json: bool = False

    @property
    def json(self) -> Any:
        """The value as JSON.

        Raises:
            BadArguments: It is not JSON.
        """
        try:
            return json.loads(self.text)
        except ValueError as exc:
            raise bad_argument(self.key, f"expected JSON, got {quoted(self.text)}: {exc}") from None


def words(arguments: Iterable[str]) -> tuple[ArgumentWord, ...]:
    """The parsed arguments, with files read.

    Raises:
        BadArguments: One is not `key=value`, or its file cannot be read.
    """
    return tuple(map(_word, arguments))


def whole(argument: str) -> dict[str, Any] | None:
    """All arguments at once if the word is a JSON object or `-`; otherwise None.

    Raises:
        BadArguments: It should be a JSON object, but is not.
    """
    if argument == "-":
        return _object(sys.stdin.read(), "standard input")
    return _object(argument, "the argument") if argument.lstrip().startswith("{") else None


def texts(typed: Sequence[ArgumentWord], names: Sequence[str]) -> dict[str, str]:
    """The arguments of a prompt, which are all texts.

    Raises:
        BadArguments: The prompt takes no such argument, or it is given twice.
    """
    arguments: dict[str, str] = {}
    for word in typed:
        if word.key not in names:
            raise unknown(word.key, names)
        if word.key in arguments:
            raise twice(word.key)
        arguments[word.key] = word.text
    return arguments


def bad_argument(key: str, reason: str, hint: str | None = None) -> BadArguments:
    return BadArguments(f"{key}: {reason}", path=f"/{key}", hint=hint)


def unknown(key: str, names: Sequence[str]) -> BadArguments:
    near = nearest(key, names)
    takes = f"it takes {', '.join(names)}" if names else "it takes no arguments"
    hint = f"did you mean {near!r}? {takes}" if near else takes
    return BadArguments(f"there is no argument {key!r}", path=f"/{key}", hint=hint)


def twice(key: str) -> BadArguments:
    return bad_argument(key, "it is given more than once but takes one value")


def _word(argument: str) -> ArgumentWord:
    match = _WORD.fullmatch(argument)
    if match is None:
        raise BadArguments(
            f"expected key=value, got {quoted(argument)}",
            path="",
            hint="such as `path=README.md`",
        )
    key, sign, value = match.groups()
    if value.startswith("@@"):
        value = value[1:]
    elif value.startswith("@"):
        value = _content(key, value[1:])
    return ArgumentWord(key, value, is_json=sign == ":=")


def _content(key: str, path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).expanduser().read_text("utf-8")
    except OSError as exc:
        hint = "`@` reads a file; write `@@` for a literal `@`"
        raise bad_argument(key, f"cannot read {path!r}: {exc.strerror}", hint) from None
    except UnicodeDecodeError:
        raise bad_argument(key, f"{path!r} is not UTF-8 text") from None


def _object(text: str, source: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise BadArguments(f"{source} is not JSON: {exc}", path="") from None
    if not is_object(value):
        raise BadArguments(f"{source} is not a JSON object", path="", hint='such as {"a": 1}')
    return value


Schema = Mapping[str, Any]

# Python reads more as a number: `1_000`, `nan`, digits of other scripts
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
# a reference may lead back to itself
_DEEPEST = 20


def to_arguments(arguments: Sequence[ArgumentWord], schema: Schema) -> dict[str, Any]:
    """The arguments, converted to the types in the schema.

    Raises:
        BadArguments: One does not match; the message names the key and what is expected.
    """
    reader = _Parameters(schema)
    return {
        key: reader.value(key, [word for word in arguments if word.key == key])
        for key in dict.fromkeys(word.key for word in arguments)
    }


class _Parameters(msgspec.Struct, frozen=True):
    """A tool's parameters."""

    root: Schema

    def value(self, key: str, arguments: Sequence[ArgumentWord]) -> Any:
        schema = self._property(key)
        if len(arguments) == 1:
            return self._read(arguments[0], schema)
        if "array" not in self._kinds(schema):
            raise twice(key)
        items = self._items(schema)
        return [self._read(word, items) for word in arguments]

    def _property(self, key: str) -> Schema:
        properties: dict[str, Schema] = {}
        is_open = False
        for part in self._parts(self.root):
            properties |= _to_object(part.get("properties"))
            is_open |= "patternProperties" in part or bool(part.get("additionalProperties"))
        if key in properties:
            return _to_object(properties[key])
        # a schema without properties may accept anything
        if properties and not is_open:
            raise unknown(key, [*properties])
        return _to_object(self.root.get("additionalProperties"))

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
            declared = part.get("type", _implied_kinds(part))
            kinds |= {*declared} if is_list(declared) else {str(declared)}
        return frozenset(kinds) & _READERS.keys()

    def _items(self, schema: Schema) -> Schema:
        items = [part["items"] for part in self._parts(schema) if "items" in part]
        return _to_object(items[0]) if items else {}

    def _parts(self, schema: Schema, depth: int = 0) -> list[Schema]:
        """The alternatives of a schema, with references resolved."""
        if depth > _DEEPEST:
            return [{}]
        if isinstance(reference := schema.get("$ref"), str):
            # since 2019-09, what is beside a reference counts as well
            beside = {word: value for word, value in schema.items() if word != "$ref"}
            return self._parts({**_resolve(self.root, reference), **beside}, depth + 1)
        if is_list(whole := schema.get("allOf")):
            merged = {word: value for word, value in schema.items() if word != "allOf"}
            for piece in whole:
                merged |= _to_object(piece)
            return self._parts(merged, depth + 1)
        alternatives = schema.get("anyOf", schema.get("oneOf"))
        if is_list(alternatives) and "type" not in schema:
            return [
                part
                for alternative in alternatives
                for part in self._parts(_to_object(alternative), depth + 1)
            ]
        return [schema]


def _choose(word: ArgumentWord, choices: Sequence[Any]) -> Any:
    written = {
        choice if isinstance(choice, str) else json.dumps(choice): choice for choice in choices
    }
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
    node: Any = root
    for step in filter(None, reference.removeprefix("#").split("/")):
        node = _to_object(node).get(step.replace("~1", "/").replace("~0", "~"))
    return _to_object(node)


def _to_object(value: Any) -> dict[str, Any]:
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
