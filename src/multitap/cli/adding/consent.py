"""Asks the person at the terminal before anything of a stranger's is fetched, started or given."""

import shlex
import sys
from collections.abc import Mapping, Sequence

import click

from multitap.cli.terminal.output import note
from multitap.config.edit.foreign_draft import with_given_variables
from multitap.config.edit.server_draft import DraftVariable, ServerDraft
from multitap.config.mask import masked
from multitap.config.provenance import STANDINGS
from multitap.errors import ConfigError
from multitap.records import dataclass
from multitap.trust.projects.project_parts import visible

_FOLDERS: Mapping[str, str] = {
    "userHome": "the path of your home folder",
    "workspaceFolder": "the path of this folder",
    "workspaceFolderBasename": "the name of this folder",
}


@dataclass(frozen=True, slots=True)
class Consent:
    """How the person agrees."""

    yes: bool = False
    """Whether the person agreed beforehand, with `--yes`."""
    is_dry: bool = False
    """Whether nothing is to happen at all."""
    typed: Sequence[str] = ()
    """The words after `multitap add`."""

    @property
    def can_ask(self) -> bool:
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
        shown = masked("args", [*self.typed])
        # never quoted with a key in it, so it may not be complete
        if shown != [*self.typed] or any("\n" in word for word in shown):
            return "look at what is shown above, then repeat your command as `multitap add --yes …`"
        command = shlex.join(["multitap", "add", "--yes", *shown])
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
    """Where a variable would go, in words."""
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
