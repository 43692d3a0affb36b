"""Validates entries; every problem has its position."""

from collections.abc import Mapping
from itertools import takewhile
from typing import Any, TypeVar

from pydantic_core import ErrorDetails, ValidationError

from multitap.config.dialects.draft import Entry, FieldPath
from multitap.config.documents import Node
from multitap.config.frozen_model import FrozenModel
from multitap.config.models import HttpServer, StdioServer
from multitap.config.problems import Problem, Severity, did_you_mean

Fields = Mapping[FieldPath, Node]
_Model = TypeVar("_Model", bound=FrozenModel)

_NOUNS: Mapping[type[FrozenModel], str] = {StdioServer: "a program", HttpServer: "a remote server"}


def server(entry: Entry) -> tuple[StdioServer | HttpServer | None, tuple[Problem, ...]]:
    """The model of an entry; None, with the reasons, if it is not valid."""
    kind = _kind(entry)
    if isinstance(kind, Problem):
        return None, (kind,)
    # a key of the other kind is harmless, and often left over when a server is changed
    fitting = {path: node for path, node in entry.fields.items() if path[0] in kind.model_fields}
    idle = [
        _problem(Severity.WARNING, node, f"has no effect for {_NOUNS[kind]}", entry.name)
        for path, node in entry.fields.items()
        if path not in fitting
    ]
    model, problems = validate_fields(kind, fitting, name=entry.name)
    return model, (*idle, *problems)


def validate_fields(
    kind: type[_Model], fields: Fields, *, name: str | None = None
) -> tuple[_Model | None, tuple[Problem, ...]]:
    """The model of these fields, or what is wrong with them."""
    try:
        return kind.model_validate(nest(fields)), ()
    except ValidationError as exc:
        # the input may be a secret, and the URL explains pydantic, not our file
        errors = exc.errors(include_url=False, include_input=False)
    return None, tuple(
        _translate(error, fields, name)
        for error in errors
        if error["type"] != "default_factory_not_called"  # only a consequence of the others
    )


def nest(fields: Fields) -> dict[str, Any]:
    """`{("env", "A"): …}` as `{"env": {"A": …}}`, in the order in which it is written."""
    tree: dict[str, Any] = {}
    for path, node in fields.items():
        table = tree
        for step in path[:-1]:
            table = table.setdefault(step, {})
        if node.value == {}:
            table.setdefault(path[-1], {})  # its members go into a new table
        else:
            table[path[-1]] = node.value
    return tree


def missing(entry: Entry, *names: str) -> Problem:
    """The problem of an entry that does not say how to reach its server."""
    words = [entry.words.get(name, name) for name in names]
    quoted = [f"`{word}`" for word in words]
    message = f"{quoted[0]} is missing" if len(quoted) == 1 else f"neither {' nor '.join(quoted)}"
    typo = next((hint for word in words if (hint := _typo(entry, word))), None)
    key = ".".join(filter(None, (entry.node.dotted, words[0] if len(words) == 1 else "")))
    place = entry.node.key_place
    expected = " or ".join(quoted)
    return Problem(Severity.ERROR, message, place, key, entry.name, expected, typo)


def _kind(entry: Entry) -> type[StdioServer] | type[HttpServer] | Problem:
    transport = entry.fields.get(("transport",))
    command, url = ("command",) in entry.fields, ("url",) in entry.fields
    if transport is None:
        if command and url:
            message = "has both `command` and `url`"
            hint = "remove one of them, or name the transport"
            return _problem(Severity.ERROR, entry.node, message, entry.name, hint=hint)
        if not command and not url:
            return missing(entry, "command", "url")
        return StdioServer if command else HttpServer
    if transport.value == "stdio":
        return StdioServer if command else missing(entry, "command")
    return HttpServer if url else missing(entry, "url")


def _typo(entry: Entry, word: str) -> str | None:
    close = next((key for key in entry.extra if did_you_mean(key, [word])), None)
    return f"did you mean `{word}` instead of `{close}`?" if close else None


def _translate(error: ErrorDetails, fields: Fields, name: str | None) -> Problem:
    node = _blame(error["loc"], fields)
    expected = _expected_words(error)
    message = f"expected {expected}" if expected else error["msg"].removeprefix("Value error, ")
    choices: list[str] = [word.strip("'") for word in _choices(error)]
    hint = did_you_mean(node.value, choices) if isinstance(node.value, str) else None
    return Problem(Severity.ERROR, message, node.place, node.dotted, name, expected, hint)


def _blame(location: tuple[int | str, ...], fields: Fields) -> Node:
    """The field at a location, or the table around several."""
    of_field = [path for path in fields if path[0] == location[0]]
    # pydantic's locations have steps of their own, such as the branch of a union
    if named := [path for path in of_field if {*path} <= {*location}]:
        return fields[max(named, key=len)]
    path = max(of_field, key=lambda path: _shared_steps(path, location))
    member = fields[path]
    beyond = len(path) - max(_shared_steps(path, location), 1)
    return Node(None, member.key[: len(member.key) - beyond], member.document)


def _shared_steps(path: FieldPath, location: tuple[int | str, ...]) -> int:
    """The length of the common prefix."""
    pairs = zip(path, location, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


_EXPECTED = {
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "string_pattern_mismatch": "an address that starts with http:// or https://",
    "string_too_short": "a text that is not empty",
}


def _expected_words(error: ErrorDetails) -> str | None:
    words = _EXPECTED.get(error["type"])
    return words and words.format(**error.get("ctx", {}))


def _choices(error: ErrorDetails) -> list[str]:
    return str(error.get("ctx", {}).get("expected", "")).replace(" or ", ", ").split(", ")


def _problem(
    severity: Severity, node: Node, message: str, name: str, *, hint: str | None = None
) -> Problem:
    return Problem(severity, message, node.key_place, node.dotted, name, hint=hint)
