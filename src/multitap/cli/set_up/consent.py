"""What a person is shown and asked before anything of a stranger's is fetched, started or given."""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import msgspec

from multitap.cli.terminal import note
from multitap.config import HttpServer, StdioServer
from multitap.config.edit.drafts import DraftVariable, ServerDraft, with_given_variables
from multitap.config.models import OAuth
from multitap.config.provenance import STANDINGS
from multitap.config.secrets import MASK, in_headers, in_variables, masked, risk_of
from multitap.errors import ConfigError
from multitap.sandbox.containers import objections, parse_container_run
from multitap.sandbox.levels import Confinement
from multitap.trust.project_parts import quote_word, visible

_FOLDERS: Mapping[str, str] = {
    "userHome": "the path of your home folder",
    "workspaceFolder": "the path of this folder",
    "workspaceFolderBasename": "the name of this folder",
}


class Consent(msgspec.Struct, frozen=True):
    """How the person agrees."""

    yes: bool = False
    """Whether the person agreed beforehand, with `--yes`."""
    is_dry: bool = False
    """Whether nothing is to happen at all."""
    typed: Sequence[str] = ()
    """The words after `multitap add`."""

    @property
    def can_ask(self) -> bool:
        # questions go to standard error: the output may be piped
        return not self.yes and sys.stdin.isatty() and sys.stderr.isatty()

    def confirm(self, what: str, question: str) -> None:
        """Ask for a yes; Enter means no.

        Raises:
            ConfigError: There is no terminal, and no `--yes`.
            click.Abort: The person does not agree.
        """
        if self.yes:
            return
        if not self.can_ask:
            raise ConfigError(what, hint=self._how_to_agree())
        click.confirm(question, default=False, abort=True, err=True)

    def _how_to_agree(self) -> str:
        line = masked("args", [*self.typed])
        # never quoted with a key in it, so it may not be complete
        if line != [*self.typed] or any("\n" in word for word in line):
            return "look at what is shown above, then repeat your command as `multitap add --yes …`"
        command = shlex.join(["multitap", "add", "--yes", *line])
        return f"look at what is shown above, then run `{command}`"


def settle_variables(draft: ServerDraft, consent: Consent) -> ServerDraft:
    """The draft with those variables that the person gives it, each after a question of its own."""
    if not draft.variables or consent.is_dry:
        return draft
    author = STANDINGS[draft.provenance].author
    agreed: list[DraftVariable] = []
    for variable in draft.variables:
        what, where = describe_variable(variable), describe_places(draft, variable)
        if consent.can_ask:
            question = visible(f"{author} wants {what} for {draft.name}, {where}: give it?")
            if click.confirm(question, default=False, err=True):
                agreed.append(variable)
                continue
        how = _how_to_give(variable, draft)
        note(visible(f"  {what} is not given to {draft.name}: {how}"))
    return with_given_variables(draft, agreed)


def describe_variable(variable: DraftVariable) -> str:
    match variable.source:
        case "file":
            return f"the content of the file {variable.name}"
        case "auth":
            return f"your secret {variable.name}"
        case "folder":
            return _FOLDERS.get(variable.name, "a path separator")
        case _:
            return f"your variable {variable.name}"


def describe_places(draft: ServerDraft, variable: DraftVariable) -> str:
    """Where a variable would go."""
    target = (
        f"to {masked('url', draft.fields['url'])}" if "url" in draft.fields else "to its program"
    )
    places = [_place(place) for place in variable.places]
    return f"{' and '.join(dict.fromkeys(places))} {target}"


def _place(place: str) -> str:
    table, _, name = place.partition(".")
    match table:
        case "env":
            return f"as the variable {name}"
        case "headers":
            return f"in the header {name}"
        case "args":
            return "as an argument"
        case "url":
            return "in the address"
        case _:
            return f"in `{place}`"


def _how_to_give(variable: DraftVariable, draft: ServerDraft) -> str:
    table, _, name = variable.places[0].partition(".")
    text = with_given_variables(draft, [variable]).fields[table]
    if table == "env":
        return f"`-e {shlex.quote(f'{name}={text[name]}')}` does"
    if table == "headers":
        return f"`-H {shlex.quote(f'{name}: {text[name]}')}` does"
    return f"`multitap set {shlex.quote(draft.name)} {variable.places[0]}=…` can, later"


LONGEST = 4000
"""Characters of one word that are shown; more than any honest command line has."""
# variables or headers; more would scroll the question away
MOST = 60


def review_lines(
    name: str,
    config: StdioServer | HttpServer,
    draft: ServerDraft,
    confinement: Confinement | None,
    *,
    writable: Sequence[str] = (),
) -> Iterator[str]:
    """The lines that a person reads before a server is started for the first time."""
    standing = STANDINGS[draft.provenance]
    if not standing.is_own:
        whose = (
            "is a package of a registry" if draft.is_typed else f"is described by {standing.author}"
        )
        yield f"{name} {whose}"
    if isinstance(config, StdioServer):
        argv = [os.path.expanduser(config.command), *masked("args", [*config.args])]  # noqa: PTH111 - a name is not a path
        yield f"{name}: {' '.join(map(show_word, argv))}"
        yield from (f"  with {line}" for line in _variables(config.env))
        if config.cwd is not None:
            yield f"  in {show_word(str(config.cwd.expanduser()))}"
    else:
        yield f"{name}: {visible(masked('url', config.url))}"
        yield from (f"  with {line}" for line in _headers(config.headers))
        if isinstance(config.oauth, OAuth) and config.oauth.client_id:
            yield f"  it logs in as {visible(config.oauth.client_id)}"
    if draft.note:
        yield f"  {visible(draft.note)}"
    if confinement is not None and not standing.is_own:
        yield f"  {confinement.level}: {confinement.meaning}"
        if confinement.confined:
            yield from (f"  may change {show_word(path)}" for path in writable)
        else:
            yield f"  it is not confined: {confinement.reason}"
    # what a stranger writes must not look like a line of ours
    warnings = map(visible, (*draft.warnings, *_container(config)))
    yield from (f"  warning: {warning}" for warning in warnings)


def show_word(word: str) -> str:
    """A word of a command line, quoted, with nothing invisible in it."""
    if len(word) > LONGEST:
        return f"{quote_word(word[:LONGEST])}… ({len(word) - LONGEST:,} more characters)"
    return quote_word(word)


def _variables(env: Mapping[str, str]) -> Iterator[str]:
    for name, value in [*env.items()][:MOST]:
        risk = risk_of(name)
        text = show_word(_without(value, in_variables({name: value})))
        yield f"{show_word(name)}={text}{f'   ({risk})' if risk else ''}"
    yield from _missing(len(env), "variables")


def _headers(headers: Mapping[str, str]) -> Iterator[str]:
    for name, value in [*headers.items()][:MOST]:
        yield f"{visible(name)}: {visible(_without(value, in_headers({name: value})))}"
    yield from _missing(len(headers), "headers")


def _missing(count: int, what: str) -> Iterator[str]:
    if count > MOST:
        yield f"{count - MOST} more {what} that are not shown"


def _without(text: str, secrets: Iterator[str]) -> str:
    # the longest first, because one may be a part of another
    for secret in sorted(
        {secret for secret in secrets if "${" not in secret}, key=len, reverse=True
    ):
        text = text.replace(secret, MASK)
    return text


def _container(config: StdioServer | HttpServer) -> Iterator[str]:
    """What a container would get of this machine."""
    if not isinstance(config, StdioServer):
        return
    run = parse_container_run((config.command, *config.args))
    if run is not None:
        yield from objections(run, config.cwd or Path.cwd(), config.env)
