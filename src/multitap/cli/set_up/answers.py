"""Answers to the inputs of a draft: from the command line, or asked at the prompt."""

import re
import shlex
import sys
from collections.abc import Collection, Mapping
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from multitap.cli.set_up.add_request import AddRequest
from multitap.config.dialects.draft import literal
from multitap.config.documents import is_list, is_table
from multitap.config.edit.clear_secrets import Reference, auth_variable
from multitap.config.edit.drafts import DraftInput, ServerDraft, how_to_give
from multitap.errors import ConfigError
from multitap.printable import printable

_WHOLE = re.compile(r"\$\{input:([^}]+)\}")


class Answers(msgspec.Struct, frozen=True):
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
    for key, values in (("env", request.env), ("headers", request.headers)):
        present: dict[str, Any] = dict(fields.get(key, {}))
        for name, value in values.items():
            whole = _WHOLE.fullmatch(str(present.get(name, "")))
            # a reference is not an answer: its value is looked up at each start
            if whole and "${" not in value:
                inputs[whole[1]] = (value,)
            else:
                present[name] = value
        if values:
            fields[key] = present
    names = {*_input_names(fields)}
    inputs_ = tuple(input_ for input_ in draft.inputs if input_.name in names)
    return replace(draft, fields=fields, inputs=inputs_), msgspec.structs.replace(
        request, inputs=inputs
    )


def answers_to(
    draft: ServerDraft,
    typed: Mapping[str, tuple[str, ...]],
    stored: Collection[str],
    *,
    ask: bool,
    placeholders: bool,
    refer: Reference = auth_variable,
) -> Answers:
    """Collect the answers to the inputs of a draft.

    Secrets that are `stored` are not replaced. In a dry run, `placeholders` stand for missing
    answers.

    Raises:
        ConfigError: An option is not one of the draft's, or a required answer is missing or wrong.
    """
    _check_options(draft, typed)
    values: dict[str, tuple[str, ...]] = {}
    secrets: dict[str, str] = {}
    for input_ in draft.inputs:
        answer = typed.get(input_.name, ())
        if not answer and input_.required and (input_.default is None or input_.secret):
            answer = _missing(draft, input_, ask=ask, placeholders=placeholders)
        if input_.choices and any(value not in input_.choices for value in answer):
            choices = ", ".join(input_.choices)
            raise ConfigError(
                f"`--{input_.name}`: expected one of {choices}", hint=how_to_give(input_)
            )
        # the file refers to it by name; the value goes to the vault
        if input_.secret and answer and not placeholders:
            name = _free(f"{draft.name}/{input_.name}", {*stored, *secrets})
            secrets[name] = answer[0]
            values[input_.name] = (refer(name),)
        else:
            values[input_.name] = tuple(map(literal, answer))
    return Answers(values, secrets)


def _check_options(draft: ServerDraft, typed: Mapping[str, tuple[str, ...]]) -> None:
    names = sorted(input_.name for input_ in draft.inputs)
    if unknown := [name for name in typed if name not in names]:
        command = draft.fields.get("command")
        hint = f"its options: `--{'`, `--'.join(names)}`" if names else None
        if command and not names:
            hint = f"`multitap add {draft.name} -- {command} …` takes any arguments"
        # other clients accept an address as `--url`
        if (address := typed[unknown[0]][-1]).startswith(("http://", "https://")):
            hint = f"a remote server is added with `multitap add {draft.name} {address}`"
        raise ConfigError(f"{draft.name!r} has no option `--{unknown[0]}`", hint=hint)


def _missing(
    draft: ServerDraft, input_: DraftInput, *, ask: bool, placeholders: bool
) -> tuple[str, ...]:
    if placeholders:
        return (f"<{input_.name}>",)
    # piped input is not an answer: it may be the snippet itself
    if not ask or not sys.stdin.isatty():
        problem = f"{draft.name!r} needs a value for `{input_.name}`"
        raise ConfigError(problem, hint=how_to_give(input_))
    about = f" ({printable(input_.description)})" if input_.description else ""
    kind = click.Choice(input_.choices) if input_.choices else click.STRING
    text: str = click.prompt(f"{input_.name}{about}", type=kind, hide_input=input_.secret, err=True)
    return tuple(shlex.split(text)) if input_.multiple else (text,)


def _free(name: str, used: Collection[str]) -> str:
    """A free name for a secret: `undo` must find every older one unchanged."""
    numbered = (f"{name}-{number}" for number in range(2, len(used) + 3))
    return next(candidate for candidate in (name, *numbered) if candidate not in used)


def _input_names(value: Any) -> list[str]:
    """The inputs in a value, nested ones included."""
    if isinstance(value, str):
        return _WHOLE.findall(value)
    if is_table(value):
        return [name for member in value.values() for name in _input_names(member)]
    if is_list(value):
        return [name for member in value for name in _input_names(member)]
    return []
