"""Answers to the inputs of a draft: from the command line, or asked at the prompt."""

import re
import shlex
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import click

from multitap.cli.adding.add_words import AddRequest
from multitap.config.dialects.rewrites import literal
from multitap.config.documents import is_list, is_table
from multitap.config.edit.clear_secrets import Reference, auth_variable
from multitap.config.edit.server_draft import DraftInput, ServerDraft, how_to_give
from multitap.errors import ConfigError
from multitap.printable import printable
from multitap.records import dataclass

_WHOLE = re.compile(r"\$\{input:([^}]+)\}")


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to the inputs of a draft."""

    values: Mapping[str, tuple[str, ...]]
    secrets: Mapping[str, str]
    """The secret ones, by the names that the configuration uses."""


def project_variable(secret: str) -> str:
    """How a project's file refers to a secret: a variable that each user sets."""
    return f"${{{secret.rpartition('/')[2].replace('-', '_').upper()}}}"


def with_options(draft: ServerDraft, request: AddRequest) -> tuple[ServerDraft, AddRequest]:
    """A draft with the variables and headers of `-e` and `-H`, and the inputs that they answer.

    A variable that only passes an input on is that input: its value is checked, and kept as a
    secret if it is one. Inputs that nothing needs are not asked for.
    """
    fields = dict(draft.fields)
    inputs = dict(request.inputs)
    for key, given in (("env", request.env), ("headers", request.headers)):
        present: dict[str, Any] = dict(fields.get(key, {}))
        for name, value in given.items():
            whole = _WHOLE.fullmatch(str(present.get(name, "")))
            # a reference is not an answer: its value is looked up at each start
            if whole and "${" not in value:
                inputs[whole[1]] = (value,)
            else:
                present[name] = value
        if given:
            fields[key] = present
    wanted = {*_input_names(fields)}
    asked = tuple(one for one in draft.inputs if one.name in wanted)
    return replace(draft, fields=fields, inputs=asked), replace(request, inputs=inputs)


def answers_to(
    draft: ServerDraft,
    given: Mapping[str, tuple[str, ...]],
    taken: Collection[str],
    *,
    ask: bool,
    placeholders: bool,
    refer: Reference = auth_variable,
) -> Answers:
    """Collect the answers to the inputs of a draft.

    Args:
        draft: The draft with its inputs.
        given: The typed options.
        taken: Names of stored secrets, which are not replaced.
        ask: Whether to ask for missing answers.
        placeholders: Whether to use placeholders in angle brackets for missing answers.
        refer: Makes the reference to a secret.

    Raises:
        ConfigError: An option is not one of the draft's, or a required answer is missing or wrong.
    """
    _check_options(draft, given)
    values: dict[str, tuple[str, ...]] = {}
    secrets: dict[str, str] = {}
    for one in draft.inputs:
        said = given.get(one.name, ())
        if not said and one.required and (one.default is None or one.secret):
            said = _missing(draft, one, ask=ask, placeholders=placeholders)
        if one.choices and any(value not in one.choices for value in said):
            choices = ", ".join(one.choices)
            raise ConfigError(f"`--{one.name}`: expected one of {choices}", hint=how_to_give(one))
        # the file refers to it by name; the value goes to the vault
        if one.secret and said and not placeholders:
            name = _free(f"{draft.name}/{one.name}", {*taken, *secrets})
            secrets[name] = said[0]
            values[one.name] = (refer(name),)
        else:
            values[one.name] = tuple(map(literal, said))
    return Answers(values, secrets)


def _check_options(draft: ServerDraft, given: Mapping[str, tuple[str, ...]]) -> None:
    known = sorted(one.name for one in draft.inputs)
    if unknown := [name for name in given if name not in known]:
        command = draft.fields.get("command")
        hint = f"its options: `--{'`, `--'.join(known)}`" if known else None
        if command and not known:
            hint = f"`multitap add {draft.name} -- {command} …` takes any arguments"
        # other clients accept an address as `--url`
        if (address := given[unknown[0]][-1]).startswith(("http://", "https://")):
            hint = f"a remote server is added with `multitap add {draft.name} {address}`"
        raise ConfigError(f"{draft.name!r} has no option `--{unknown[0]}`", hint=hint)


def _missing(
    draft: ServerDraft, one: DraftInput, *, ask: bool, placeholders: bool
) -> tuple[str, ...]:
    if placeholders:
        return (f"<{one.name}>",)
    # piped input is not an answer: it may be the snippet itself
    if not ask or not sys.stdin.isatty():
        words = f"{draft.name!r} needs a value for `{one.name}`"
        raise ConfigError(words, hint=how_to_give(one))
    about = f" ({printable(one.description)})" if one.description else ""
    kind = click.Choice(one.choices) if one.choices else click.STRING
    text: str = click.prompt(f"{one.name}{about}", type=kind, hide_input=one.secret, err=True)
    return tuple(shlex.split(text)) if one.multiple else (text,)


def _free(name: str, taken: Collection[str]) -> str:
    """A free name for a secret: `undo` must find every older one unchanged."""
    numbered = (f"{name}-{number}" for number in range(2, len(taken) + 3))
    return next(one for one in (name, *numbered) if one not in taken)


def _input_names(value: Any) -> list[str]:
    """The inputs in a value, nested ones included."""
    if isinstance(value, str):
        return _WHOLE.findall(value)
    if is_table(value):
        return [name for member in value.values() for name in _input_names(member)]
    if is_list(value):
        return [name for member in value for name in _input_names(member)]
    return []
