"""A server about to be added: what is known, and what the user must still supply."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from multitap.config.documents import is_list, is_table, is_there
from multitap.config.provenance import Provenance
from multitap.config.variables import parse_reference
from multitap.errors import ConfigError

# begins like a path: a word may be the name of a file in the current folder by chance
_PLACE = re.compile(r"\.{0,2}/|\.{1,2}$|~")
_INPUT = re.compile(r"\$\{input:([^}]+)\}")


class DraftInput(msgspec.Struct, frozen=True, kw_only=True):
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


class DraftVariable(msgspec.Struct, frozen=True):
    """One of the person's variables in a stranger's draft: text, unless the person gives it."""

    source: str
    """`env`, `auth`, `file` or `folder`."""
    name: str
    places: tuple[str, ...]
    """The dotted names of the fields that it would go to."""


class ServerDraft(msgspec.Struct, frozen=True, kw_only=True):
    """One server in our own format, with placeholders for inputs."""

    name: str
    fields: Mapping[str, Any]
    """By the keys of `multitap.toml`. A member of `args` may be a list, such as an option with its
    value, which is kept or dropped as a whole."""
    inputs: tuple[DraftInput, ...] = ()
    provenance: Provenance = "user"
    note: str = ""
    """A description for the user: where it comes from, what it needs."""
    warnings: tuple[str, ...] = ()
    """Warnings: what cannot be expressed, or should be reviewed."""
    variables: tuple[DraftVariable, ...] = ()
    """The person's variables that it asks for; they are literal text in its fields."""
    is_typed: bool = False
    """Whether the person typed its words, although others wrote the program: its variables are
    the person's own."""
    unpacked: Path | None = None
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
    for draft_input in draft.inputs:
        if not values.get(draft_input.name):
            if draft_input.default is not None:
                values[draft_input.name] = (draft_input.default,)
            elif draft_input.required:
                raise ConfigError(
                    f"{draft.name!r} needs a value for {draft_input.name!r}",
                    hint=how_to_give(draft_input),
                )
        if draft_input.path and (answer := values.get(draft_input.name)):
            values[draft_input.name] = tuple(map(_in_full, answer))
    fields = {key: _fill(value, values) for key, value in draft.fields.items()}
    return {key: value for key, value in fields.items() if value is not None}


def with_named_paths(draft: ServerDraft, answers: Mapping[str, tuple[str, ...]]) -> ServerDraft:
    """A draft with answers marked as paths, even if its publisher did not declare them so.

    An answer such as `./notes`, `~/notes` or `/srv/notes` that exists is a path.
    """
    inputs = tuple(
        replace(draft_input, path=True)
        if not draft_input.secret and any(map(_names_place, answers.get(draft_input.name, ())))
        else draft_input
        for draft_input in draft.inputs
    )
    return replace(draft, inputs=inputs)


def paths_in(draft: ServerDraft, answers: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The absolute paths of files and folders in the answers."""
    paths = (
        path
        for draft_input in draft.inputs
        if draft_input.path
        for path in answers.get(draft_input.name, ())
    )
    return tuple(map(_in_full, paths))


def hosts_in(draft: ServerDraft, answers: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The hosts of addresses in the answers, in the format of sandbox rules."""
    texts = (
        text
        for draft_input in draft.inputs
        if not draft_input.secret
        for text in answers.get(draft_input.name, ())
    )
    return tuple(dict.fromkeys(host for text in texts if (host := _host(text))))


def how_to_give(draft_input: DraftInput) -> str:
    """How to give an input on the command line."""
    about = f" ({draft_input.description})" if draft_input.description else ""
    return f"add `--{draft_input.name} VALUE`{about}"


def _names_place(text: str) -> bool:
    return bool(_PLACE.match(text)) and is_there(Path(text).expanduser())


def _host(text: str) -> str | None:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    # a host with a variable is known only when the server starts
    if parts.scheme not in {"http", "https"} or not host or "$" in host:
        return None
    address = f"[{host}]" if ":" in host else host
    # a rule without a port opens these two
    return address if port in {None, 80, 443} else f"{address}:{port}"


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
        return [element for member in value for element in _elements(member, values)]
    return value


def _elements(member: Any, values: Mapping[str, tuple[str, ...]]) -> list[Any]:
    if isinstance(member, str) and (whole := _INPUT.fullmatch(member)):
        return [*values.get(whole[1], ())]
    if is_list(member):
        parts = [_elements(part, values) for part in member]
        return [element for part in parts for element in part] if all(parts) else []
    filled = _fill(member, values)
    return [] if filled is None else [filled]


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


_REFERENCE = re.compile(r"\$\$\{|\$\{(?:input:([^}]+)\})?")
_WHOLE = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_ESCAPED = re.compile(r"\$(\$\{([^}]*)\})")
_FIELDS = frozenset(
    (
        *("command", "args", "env", "cwd", "url", "headers", "transport", "oauth"),
        *("description", "enabled", "start", "session", "era", "filter"),
        *("timeout", "connect_timeout", "idle_timeout"),
    )
)
"""What a stranger's entry may set: how to reach the server, and what narrows it."""
_LOGIN = frozenset({"client_id", "client_secret", "scope", "callback_port"})
"""What it may say about the login; the rest names files to send, and addresses to ask."""
_STRICTER = frozenset({"strict", "bubblewrap"})


def without_loose_settings(
    fields: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields that a stranger may set, and those that only the person may, by dotted name."""
    left_out = {
        key: value
        for key, value in fields.items()
        # a stranger may confine the program more than usual, never less
        if key not in _FIELDS and not (key == "sandbox" and value in _STRICTER)
    }
    allowed = {key: value for key, value in fields.items() if key not in left_out}
    if is_table(login := allowed.get("oauth")):
        left_out |= {f"oauth.{key}": value for key, value in login.items() if key not in _LOGIN}
        allowed["oauth"] = {key: value for key, value in login.items() if key in _LOGIN}
    return allowed, left_out


def with_literal_variables(draft: ServerDraft) -> ServerDraft:
    """The draft with its variables as literal text, and a list of them.

    Only placeholders for its inputs stay. Text that is literal already stays as it is.
    """
    names = {member.name for member in draft.inputs}
    places: dict[tuple[str, str], dict[str, None]] = {}

    def escape(text: str) -> str:
        return _REFERENCE.sub(lambda match: _literal(match, names), text)

    def note_and_escape(place: str, text: str) -> str:
        for key in _variables(text):
            places.setdefault(key, {})[place] = None
        return escape(text)

    fields = _change_texts(draft.fields, note_and_escape)
    # a default is text in any case: the person is asked for the value itself
    inputs = tuple(
        replace(member, default=member.default and escape(member.default))
        for member in draft.inputs
    )
    variables = tuple(DraftVariable(*key, tuple(where)) for key, where in places.items())
    return replace(draft, fields=fields, inputs=inputs, variables=variables)


def with_given_variables(draft: ServerDraft, agreed: Iterable[DraftVariable]) -> ServerDraft:
    """The draft with these of its variables expanded whenever it starts."""
    places = {(variable.source, variable.name): variable.places for variable in agreed}

    def restore(place: str, text: str) -> str:
        return _ESCAPED.sub(
            lambda match: (
                match[1]
                if (key := _parse(match[2])) is not None and place in places.get(key, ())
                else match[0]
            ),
            text,
        )

    return replace(draft, fields=_change_texts(draft.fields, restore))


def _literal(match: re.Match[str], inputs: Collection[str]) -> str:
    # `$${` is how a file writes `${`
    return match[0] if match[0] == "$${" or match[1] in inputs else f"${match[0]}"


def _variables(text: str) -> Iterator[tuple[str, str]]:
    for match in _WHOLE.finditer(text):
        if match[1] is not None and (key := _parse(match[1])) is not None:
            yield key


def _parse(body: str) -> tuple[str, str] | None:
    """The source and the name of a variable; None if the text is not one."""
    try:
        reference = parse_reference(body)
    except ConfigError:
        return None
    return reference.source, reference.name


def _change_texts(fields: Mapping[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    """The fields with every text replaced by `change(dotted name, text)`."""
    return {key: _change(key, value, change) for key, value in fields.items()}


def _change(place: str, value: Any, change: Callable[[str, str], str]) -> Any:
    if isinstance(value, str):
        return change(place, value)
    if is_table(value):
        return {key: _change(f"{place}.{key}", member, change) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_change(place, member, change) for member in value]  # pyright: ignore[reportUnknownVariableType]
    return value
