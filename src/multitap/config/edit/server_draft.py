"""A server about to be added: what is known, and what the user must still supply."""

import os
import re
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from multitap.config.documents import is_list, is_table
from multitap.config.files import is_there
from multitap.config.provenance import Provenance
from multitap.errors import ConfigError
from multitap.records import dataclass

_PLACE = re.compile(r"\.{0,2}/|\.{1,2}$|~")
_INPUT = re.compile(r"\$\{input:([^}]+)\}")


@dataclass(frozen=True, slots=True)
class DraftInput:
    """An input that only the user knows: a key, a folder, an address.

    It replaces `${input:NAME}` in the fields of its draft.
    """

    name: str
    description: str = ""
    secret: bool = False
    """Whether it is kept in the vault, and the configuration only refers to it."""
    required: bool = True
    default: str | None = None
    """The default value."""
    choices: tuple[str, ...] = ()
    """If not empty, the only allowed values."""
    multiple: bool = False
    """Whether it takes several values; an argument of only this input becomes as many."""
    path: bool = False
    """Whether it is a path, which is made absolute because the server may start anywhere."""


@dataclass(frozen=True, slots=True)
class DraftVariable:
    """One of the person's variables in a stranger's draft: text, unless the person gives it."""

    source: str
    """`env`, `auth`, `file` or `folder`."""
    name: str
    places: tuple[str, ...]
    """The dotted names of the fields that it would go to."""


@dataclass(frozen=True, slots=True)
class ServerDraft:
    """One server in our own format, with placeholders for inputs."""

    name: str
    fields: Mapping[str, Any]
    """By the keys of `multitap.toml`. A member of `args` may be a list, such as an option with its
    value, which is kept or dropped as a whole."""
    inputs: tuple[DraftInput, ...] = ()
    provenance: Provenance = "user"
    note: str = ""
    """A description for the user: where it comes from, what it needs."""
    warnings: tuple[str, ...] = field(default=())
    """Warnings: what cannot be expressed, or should be reviewed."""
    variables: tuple[DraftVariable, ...] = ()
    """The person's variables that it asks for; they are literal text in its fields."""
    is_typed: bool = False
    """Whether the person typed its words, although others wrote the program: its variables are
    the person's own."""
    unpacked: Path | None = field(default=None, compare=False)
    """A folder that was created for it, and is removed if it is not added."""


def fill(draft: ServerDraft, answers: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """The fields of a draft with its inputs filled in, ready to be written.

    Args:
        draft: The draft with its inputs.
        answers: The texts for each input; inputs without an answer are left out, and so is
            everything that needs them.

    Raises:
        ConfigError: A required input has no answer.
    """
    values = dict(answers)
    for one in draft.inputs:
        if not values.get(one.name):
            if one.default is not None:
                values[one.name] = (one.default,)
            elif one.required:
                raise ConfigError(
                    f"{draft.name!r} needs a value for {one.name!r}", hint=how_to_give(one)
                )
        if one.path and (given := values.get(one.name)):
            values[one.name] = tuple(map(_in_full, given))
    fields = {key: _fill(value, values) for key, value in draft.fields.items()}
    return {key: value for key, value in fields.items() if value is not None}


def with_named_paths(draft: ServerDraft, answers: Mapping[str, tuple[str, ...]]) -> ServerDraft:
    """A draft with answers marked as paths, even if its publisher did not declare them so.

    An answer such as `./notes`, `~/notes` or `/srv/notes` that exists is a path.
    """
    inputs = tuple(
        replace(one, path=True)
        if not one.secret and any(map(_names_place, answers.get(one.name, ())))
        else one
        for one in draft.inputs
    )
    return replace(draft, inputs=inputs)


def paths_in(draft: ServerDraft, answers: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The absolute paths of files and folders in the answers."""
    given = (path for one in draft.inputs if one.path for path in answers.get(one.name, ()))
    return tuple(map(_in_full, given))


def hosts_in(draft: ServerDraft, answers: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The hosts of addresses in the answers, in the format of sandbox rules."""
    given = (text for one in draft.inputs if not one.secret for text in answers.get(one.name, ()))
    return tuple(dict.fromkeys(host for text in given if (host := _host(text))))


def how_to_give(one: DraftInput) -> str:
    """How to give an input on the command line."""
    about = f" ({one.description})" if one.description else ""
    return f"add `--{one.name} VALUE`{about}"


def _names_place(text: str) -> bool:
    return bool(_PLACE.match(text)) and is_there(Path(text).expanduser())


def _host(text: str) -> str | None:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in {"http", "https"} or not host or "$" in host:
        return None
    shown = f"[{host}]" if ":" in host else host
    return shown if port in {None, 80, 443} else f"{shown}:{port}"


def _in_full(path: str) -> str:
    # a variable is expanded when the server starts
    return path if "${" in path else os.path.abspath(Path(path).expanduser())  # noqa: PTH100 - `..` too


def _fill(value: Any, values: Mapping[str, tuple[str, ...]]) -> Any:
    """A value with its inputs filled in; None if one is missing."""
    if isinstance(value, str):
        return _text(value, values)
    if is_table(value):
        members = {key: _fill(member, values) for key, member in value.items()}
        return {key: member for key, member in members.items() if member is not None}
    if is_list(value):
        return [one for member in value for one in _elements(member, values)]
    return value


def _elements(member: Any, values: Mapping[str, tuple[str, ...]]) -> list[Any]:
    if isinstance(member, str) and (whole := _INPUT.fullmatch(member)):
        return [*values.get(whole[1], ())]
    if is_list(member):
        parts = [_elements(part, values) for part in member]
        return [one for part in parts for one in part] if all(parts) else []
    given = _fill(member, values)
    return [] if given is None else [given]


def _text(text: str, values: Mapping[str, tuple[str, ...]]) -> str | None:
    named = _INPUT.findall(text)
    if not all(values.get(name) for name in named):
        return None
    joined, end = "", 0
    for match in _INPUT.finditer(text):
        for part in (text[end : match.start()], " ".join(values[match[1]])):
            joined = _join(joined, part)
        end = match.end()
    return _join(joined, text[end:])


def _join(left: str, right: str) -> str:
    # two harmless parts must not make a variable: `$` and `{HOME}`
    return f"{left}${right}" if left.endswith("$") and right.startswith("{") else left + right
