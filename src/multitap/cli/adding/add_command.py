"""`multitap add`: turns what was typed into a server that is known to work."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from multitap.cli.adding.add_words import AddRequest, resolve
from multitap.cli.adding.trial_start import Trial, start_once
from multitap.cli.configuration.chosen import load_configuration
from multitap.cli.editing.edit_run import run_edits, write_with_secrets
from multitap.cli.editing.edit_target import EditTarget, checked, edit_target
from multitap.cli.editing.own_edits import trusting_own_edits
from multitap.cli.exits import Exit
from multitap.cli.options import CommonOptions
from multitap.cli.running import run_async
from multitap.cli.terminal.json_output import say_json
from multitap.cli.terminal.output import complain, note, say
from multitap.cli.terminal.tables import table
from multitap.config import Document, HttpServer, Loaded, StdioServer, masked
from multitap.config.dialects import DIALECTS, Dialect
from multitap.config.dialects.rewrites import literal
from multitap.config.edit.changes import Change, Put
from multitap.config.edit.clear_secrets import auth_variable, without_secrets
from multitap.config.edit.journal import FileEdit
from multitap.config.edit.server_draft import DraftInput, ServerDraft, filled, how_to_give, paths_in
from multitap.config.edit.server_entries import entry_place, written_entry
from multitap.config.layers import Layer, merge
from multitap.config.loading import read_document
from multitap.errors import ConfigError
from multitap.printable import printable
from multitap.records import dataclass
from multitap.trust.secrets.vault import Vault


@dataclass(frozen=True, slots=True)
class AddOptions:
    """How to add."""

    project: bool = False
    check: bool = True
    dry_run: bool = False
    yes: bool = False
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Addition:
    """One server, ready to be tried and written."""

    name: str
    config: StdioServer | HttpServer
    secrets: Mapping[str, str]
    """Those that the vault gets, by name."""


def add(options: CommonOptions, request: AddRequest, how: AddOptions) -> int:
    """Add servers: say what they are, ask what is missing, start them once, write them down."""
    drafts = [_with_options(draft, request) for draft in resolve(request)]
    target = edit_target(options, project=how.project)
    loaded = load_configuration(options)
    additions = [_addition(draft, request, target, how) for draft in drafts]
    label = f"add {' '.join(one.name for one in additions)}"
    for one, draft in zip(additions, drafts, strict=True):
        _show(one, draft)
    if how.dry_run:
        edits = [_writing(target, one) for one in additions]
        return run_edits(label, edits, dry_run=True, done="")
    for one in additions:
        _check_free(one.name, loaded, target)
    if any(draft.provenance != "user" for draft in drafts):
        _confirm(how)
    trials = {one.name: _tried(loaded, one, options) for one in additions} if how.check else {}
    failed = [name for name, trial in trials.items() if trial.reason]
    if failed:
        return _explain_failure(failed[0], trials[failed[0]])
    additions = [_confined(one, trials.get(one.name)) for one in additions]
    edits = [_writing(target, one) for one in additions]
    secrets = {name: value for one in additions for name, value in one.secrets.items()}
    with trusting_own_edits([one.name for one in additions] if target.is_project else ()):
        write_with_secrets(label, edits, secrets)
    _report(additions, trials, target, as_json=how.as_json)
    return Exit.DONE


def _with_options(draft: ServerDraft, request: AddRequest) -> ServerDraft:
    """A draft with the variables and headers that were given besides."""
    fields = dict(draft.fields)
    for key, given in (("env", request.env), ("headers", request.headers)):
        if given:
            fields[key] = {**fields.get(key, {}), **given}
    return replace(draft, fields=fields)


def _addition(
    draft: ServerDraft, request: AddRequest, target: EditTarget, how: AddOptions
) -> Addition:
    answers, secrets = _answers(draft, request, how)
    fields = filled(draft, answers)
    if draft.provenance != "user":
        fields["provenance"] = draft.provenance
        if (paths := paths_in(draft, answers)) and "command" in fields:
            fields["sandbox_rules"] = {"write": [*paths]}
    document = Document(target.path, {"servers": {draft.name: fields}})
    checked(document, DIALECTS["multitap"], [draft.name])
    reading = read_document(document, target.path.parent, told="multitap")
    config = merge([Layer(reading)]).settings.servers[draft.name]
    if not isinstance(config, StdioServer | HttpServer):  # no file describes any other
        raise ConfigError(f"{draft.name!r} cannot be written down")
    if how.project:
        return _for_project(draft.name, config, secrets)
    kept = {name: value for name in Vault().secrets() if (value := Vault().value(name))}
    changed, found = without_secrets(draft.name, config, kept | secrets)
    return Addition(draft.name, config.model_copy(update=changed), {**secrets, **found})


def _for_project(
    name: str, config: StdioServer | HttpServer, secrets: Mapping[str, str]
) -> Addition:
    """A project's file is for others too: it names variables, never secrets."""
    changed, found = without_secrets(name, config, {}, refer=_variable)
    for one in (*secrets, *found):
        note(f"set the variable {_variable(one)[2:-1]} where the server is started")
    return Addition(name, config.model_copy(update=changed), {})


def _variable(secret: str) -> str:
    return f"${{{secret.rpartition('/')[2].replace('-', '_').upper()}}}"


def _answers(
    draft: ServerDraft, request: AddRequest, how: AddOptions
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """What stands for each input, and the secrets among them by name."""
    known = {one.name for one in draft.inputs}
    if unknown := [name for name in request.inputs if name not in known]:
        words = f"`--{'`, `--'.join(sorted(known))}`" if known else "none"
        raise ConfigError(
            f"{draft.name!r} takes no option `--{unknown[0]}`", hint=f"its options: {words}"
        )
    answers: dict[str, tuple[str, ...]] = {}
    secrets: dict[str, str] = {}
    for one in draft.inputs:
        given = request.inputs.get(one.name) or _asked(draft, one, how)
        if one.choices and any(value not in one.choices for value in given):
            choices = ", ".join(one.choices)
            raise ConfigError(f"`--{one.name}`: expected one of {choices}", hint=how_to_give(one))
        if one.secret and given:
            name = f"{draft.name}/{one.name}"
            secrets[name] = given[0]
            answers[one.name] = (_variable(name) if how.project else auth_variable(name),)
        else:
            answers[one.name] = tuple(map(literal, given))
    return answers, secrets


def _asked(draft: ServerDraft, one: DraftInput, how: AddOptions) -> tuple[str, ...]:
    """What the person types; nothing for what need not be asked."""
    if not one.required or (one.default is not None and not one.secret):
        return ()
    if how.yes or how.dry_run or not sys.stdin.isatty():
        if how.dry_run:
            return (f"<{one.name}>",)
        words = f"{draft.name!r} needs a value for `{one.name}`"
        raise ConfigError(words, hint=how_to_give(one))
    about = f" ({printable(one.description)})" if one.description else ""
    text: str = click.prompt(f"{one.name}{about}", hide_input=one.secret, err=True)
    return tuple(shlex.split(text)) if one.multiple else (text,)


def _confirm(how: AddOptions) -> None:
    if how.yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(
            "this would run a program that somebody else published",
            hint="look at the command above, then add `--yes` to run it without a question",
        )
    click.confirm("Start it now?", default=True, abort=True, err=True)


def _show(one: Addition, draft: ServerDraft) -> None:
    """What would run, to the last word; secrets aside."""
    config = one.config
    if isinstance(config, StdioServer):
        args = masked("args", [*config.args])
        note(f"{one.name}: {shlex.join([config.command, *args])}")
        names = ", ".join(config.env)
    else:
        note(f"{one.name}: {masked('url', config.url)}")
        names = ", ".join(config.headers)
    for words in filter(None, (names and f"  with {names}", draft.note and f"  {draft.note}")):
        note(words)
    for warning in draft.warnings:
        note(f"  warning: {warning}")


def _writing(target: EditTarget, one: Addition) -> FileEdit:
    def changes(document: Document, found: Dialect) -> list[Change]:
        place = entry_place(found, document, one.name)
        if document.root.find(*map(str, place)) is not None:
            raise _taken(one.name, target)
        written = written_entry(one.name, one.config, found)
        if written.entry is None:
            raise ConfigError(f"{target.path}: {written.losses[0].reason}")
        for loss in written.losses:
            note(f"  warning: `{loss.key}`: {loss.reason}")
        return [Put(place, dict(written.entry))]

    return target.edit(changes)


def _check_free(name: str, loaded: Loaded, target: EditTarget) -> None:
    """Do not start what could not be written."""
    place = loaded.place(name)
    if place is not None and place.file == target.path:
        raise _taken(name, target)


def _taken(name: str, target: EditTarget) -> ConfigError:
    return ConfigError(
        f"{target.path}: there is a server named {name!r} already",
        hint=f"choose another name, or `multitap remove {name}` first",
    )


def _confined(one: Addition, trial: Trial | None) -> Addition:
    """The same with what it reached when it was tried among the rules of its sandbox."""
    if trial is None or not trial.hosts or not isinstance(one.config, StdioServer):
        return one
    note(f"{one.name} may reach {', '.join(trial.hosts)}: `multitap sandbox show {one.name}`")
    rules = one.config.sandbox_rules.model_copy(update={"hosts": trial.hosts})
    return replace(one, config=one.config.model_copy(update={"sandbox_rules": rules}))


def _tried(loaded: Loaded, one: Addition, options: CommonOptions) -> Trial:
    wait = options.timeout or one.config.connect_timeout
    return run_async(lambda: start_once(loaded, one.name, one.config, one.secrets, wait=wait))


def _explain_failure(name: str, trial: Trial) -> int:
    hint = trial.failure.hint if trial.failure else "`--timeout 5m` gives it more time"
    complain(f"{name!r} does not start: {trial.reason}", hint)
    for words in trial.failure.stderr.strip().splitlines()[-5:] if trial.failure else ():
        note(f"  | {words}")
    note("nothing was written; `--no-check` adds it all the same")
    return Exit.UNAVAILABLE


def _report(
    additions: list[Addition], trials: Mapping[str, Trial], target: EditTarget, *, as_json: bool
) -> None:
    if as_json:
        say_json([_for_programs(one, trials.get(one.name), target.path) for one in additions])
        return
    for name, trial in trials.items():
        rows = [(tool, f"{tokens:,}") for tool, tokens in sorted(trial.tools.items())]
        if rows:
            table(("TOOL", "TOKENS"), rows)
        say(printable(f"{name}: {trial.summary}"))
    names = ", ".join(one.name for one in additions)
    note(f"added {names} to {target.name}; `multitap undo` takes it back")


def _for_programs(one: Addition, trial: Trial | None, path: Path) -> dict[str, Any]:
    return {
        "name": one.name,
        "file": str(path),
        "secrets": sorted(one.secrets),
        "tools": None if trial is None else dict(trial.tools),
    }
