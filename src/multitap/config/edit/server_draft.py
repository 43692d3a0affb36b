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
from multitap.config.models import Provenance
from multitap.errors import ConfigError
from multitap.records import dataclass

_PLACE = re.compile(r"\.{0,2}/|\.{1,2}$|~")
_INPUT = re.compile(r"\$\{input:([^}]+)\}")


@dataclass(frozen=True, slots=True)
class DraftInput:
    """Something that only the user knows: a key, a folder, an address.

    It goes wherever `${input:NAME}` stands in the fields of its draft.
    """

    name: str
    description: str = ""
    secret: bool = False
    """Kept in the vault; the configuration only names it."""
    required: bool = True
    default: str | None = None
    """Used if the user says nothing."""
    choices: tuple[str, ...] = ()
    """If not empty, the only values there are."""
    multiple: bool = False
    """Takes several values; an argument that is nothing but this input becomes as many."""
    path: bool = False
    """A file or folder: written in full, because the server may be started from anywhere."""


@dataclass(frozen=True, slots=True)
class ServerDraft:
    """One server in our own words, with places for what the user still has to say."""

    name: str
    fields: Mapping[str, Any]
    """By the keys of `multitap.toml`. A member of `args` may be a list: it stays or goes as a
    whole, so that an option goes with its value."""
    inputs: tuple[DraftInput, ...] = ()
    provenance: Provenance = "user"
    note: str = ""
    """For the person who adds it: where it comes from, what it needs."""
    warnings: tuple[str, ...] = field(default=())
    """What of its source cannot be expressed, or should be looked at."""
    unpacked: Path | None = field(default=None, compare=False)
    """A folder that was made for it, and goes again if it is not added."""


def fill(draft: ServerDraft, answers: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """The fields of a draft with its inputs put in, as they are to be written.

    Args:
        draft: With its inputs.
        answers: For each input the texts that stand for it; what has none is left out, and so is
            all that needs it.

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
    """A draft that knows which answers are files and folders, though its publisher did not say.

    A person who writes `./notes`, `~/notes` or `/srv/notes`, and it is there, means that place.
    """
    inputs = tuple(
        replace(one, path=True)
        if not one.secret and any(map(_names_place, answers.get(one.name, ())))
        else one
        for one in draft.inputs
    )
    return replace(draft, inputs=inputs)


def paths_in(draft: ServerDraft, answers: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The files and folders that the user gave it, in full."""
    given = (path for one in draft.inputs if one.path for path in answers.get(one.name, ()))
    return tuple(map(_in_full, given))


def hosts_in(draft: ServerDraft, answers: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The hosts of the addresses that the user gave it, as rules of a sandbox name them."""
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
    # a variable is put in when the server starts
    return path if "${" in path else os.path.abspath(Path(path).expanduser())  # noqa: PTH100 - `..` too


def _fill(value: Any, values: Mapping[str, tuple[str, ...]]) -> Any:
    """A value with its inputs put in; None where one of them is not given."""
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
    return _INPUT.sub(lambda match: " ".join(values[match[1]]), text)
