"""Drafts that somebody else wrote: their variables are text, and they loosen nothing."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from multitap.config.documents import is_table
from multitap.config.edit.server_draft import DraftVariable, ServerDraft
from multitap.config.scope import parse_reference
from multitap.errors import ConfigError

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
