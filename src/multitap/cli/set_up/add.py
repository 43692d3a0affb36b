"""`multitap add`: turns the typed words into a server that is known to work."""

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import msgspec

from multitap.cli.completion import complete_published
from multitap.cli.configuration import load_configuration
from multitap.cli.edits import (
    EditTarget,
    PinEdit,
    check_servers,
    edit_target,
    pins_of_new,
    pins_to_come,
    run_edits,
    trusting_own_edits,
    write_edits,
)
from multitap.cli.options import (
    CommonOptions,
    EditOptions,
    file_options,
    json_option,
    timeout_option,
)
from multitap.cli.set_up.add_request import AddRequest, parse_words, read_launcher_line, resolve
from multitap.cli.set_up.answers import answers_to, project_variable, with_options
from multitap.cli.set_up.consent import Consent, review_lines, settle_variables, show_word
from multitap.cli.set_up.pasted import is_line
from multitap.cli.set_up.trial import Trial, TrialContext, start_once, trial_scope
from multitap.cli.signals import run_async
from multitap.cli.terminal import (
    Exit,
    advise,
    complain,
    is_somebody_there,
    note,
    quote_last_lines,
    say,
    say_json,
    table,
)
from multitap.cli.trust.login import log_in_person
from multitap.config import Document, HttpServer, Loaded, StdioServer, expand_server, masked
from multitap.config.dialects import DIALECTS, Dialect
from multitap.config.documents import is_list
from multitap.config.edit.changes import Change
from multitap.config.edit.clear_secrets import auth_variable, without_secrets
from multitap.config.edit.drafts import ServerDraft, fill, hosts_in, paths_in, with_named_paths
from multitap.config.edit.journal import FileEdit
from multitap.config.edit.servers import entry_place, place_entries, write_entry
from multitap.config.layers import Layer, merge, read_document
from multitap.config.project_bounds import restrain
from multitap.config.provenance import STANDINGS
from multitap.errors import ConfigError
from multitap.events import FailureCode
from multitap.printable import is_seen, printable, skeleton
from multitap.sandbox.levels import MEANINGS, Confinement, confinement_of, support_here
from multitap.sandbox.places import writable_folders
from multitap.trust.pins import LockPlaces, places_of
from multitap.trust.stored_logins import TokenStore
from multitap.trust.vault import Vault

_LONGEST_NAME = 128
_NAME = re.compile(r"\w[\w .@:/+-]*")
"""Names that a stranger may choose: they are quoted in commands for people to copy."""


class AddOptions(EditOptions, frozen=True):
    """How to add."""

    check: bool = True
    yes: bool = False
    as_json: bool = False
    sandbox: bool = False
    """Whether to confine it although the user typed it."""
    browser: bool = True
    """Whether a login opens a browser."""


class Addition(msgspec.Struct, frozen=True, kw_only=True):
    """One server, ready to be tried and written."""

    name: str
    config: StdioServer | HttpServer
    """The configuration to write."""
    secrets: Mapping[str, str]
    """Secrets for the vault, by name."""
    variables: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """Secrets of a project's server, which each user sets; the trial uses the typed values."""
    draft: ServerDraft = ServerDraft(name="", fields={})
    """Where it comes from."""

    def __repr__(self) -> str:
        return f"Addition({self.name!r})"  # it has secrets

    @property
    def is_own(self) -> bool:
        """Whether the person wrote it, and nothing is asked."""
        return STANDINGS[self.draft.provenance].is_own


class AddCommand(click.Command):
    """Accepts a command after `--`, and a line for another program or a launcher, unparsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["typed"] = tuple(args)
        if (start := self._line_start(args)) is not None:
            ctx.meta["line"] = args[start:]
            return super().parse_args(ctx, args[:start])
        if "--" in args:
            at = args.index("--")
            ctx.meta["command"] = args[at + 1 :]
            if not ctx.meta["command"]:
                raise click.UsageError("a command is expected after `--`", ctx)
            args = args[:at]
        return super().parse_args(ctx, args)

    def _line_start(self, args: list[str]) -> int | None:
        """Where a line for another program begins: options after that are its own."""
        options = [option for option in self.params if isinstance(option, click.Option)]
        flags = {"-h", "--help"}
        flags.update(name for option in options if option.is_flag for name in option.opts)
        index = 0
        # after `--` is the server's own command, which may itself be `claude`
        while index < len(args) and args[index] != "--":
            word = args[index]
            if word.startswith("-") and word != "-":
                # `-eKEY=VALUE` has its value in the same word
                is_whole = word.startswith("--") or len(word) == len("-x")
                index += 2 if is_whole and "=" not in word and word not in flags else 1
                continue
            if is_line(args[index : index + 2]) or read_launcher_line(args[index:]):
                return index
            index += 1
        return None


# options that we do not have are inputs of a published server
@click.command(cls=AddCommand, context_settings={"ignore_unknown_options": True})
@click.argument(
    "arguments",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[NAME] [URL | TEXT | -] [-- COMMAND...]",
    shell_complete=complete_published,
)
@click.option("-e", "--env", multiple=True, metavar="KEY=VALUE", help="Set a variable for it")
@click.option("-H", "--header", multiple=True, metavar="'KEY: VALUE'", help="Send a header to it")
@click.option(
    "-t",
    "--transport",
    type=click.Choice(["http", "streamable-http", "sse"]),
    help="Transport of URL; detected if not given",
)
@click.option(
    "--no-check", "check", flag_value=False, default=True, help="Add it without starting it first"
)
@click.option(
    "--no-browser",
    "browser",
    flag_value=False,
    default=True,
    help="For a login: print the address to open, and ask for the one where the browser ends",
)
@click.option("--sandbox", is_flag=True, help="Try it and run it under `strict`")
@click.option("-y", "--yes", is_flag=True, help="Agree to what others wrote, and do not ask")
@timeout_option
@file_options
@json_option
def add(
    options: CommonOptions,
    arguments: tuple[str, ...],
    *,
    env: tuple[str, ...],
    header: tuple[str, ...],
    transport: str | None,
    **how: Any,
) -> int:
    """Add a server

    \b
    add NAME -- COMMAND...        a program
    add [NAME] URL                a remote server
    add [NAME] npx -y PACKAGE     a line of npx, uvx, bunx, pipx run, docker run, ... as it is
    add claude mcp add ...        a line for another client, as it is
    add '{"mcpServers": ...}'     a snippet from a README; - reads it from standard input
    add [NAME] filesystem         a name that `multitap search` finds
    add [NAME] @scope/package     a package: npm:NAME, pypi:NAME, oci:IMAGE, nuget:NAME
    add [NAME] FILE               a client's file, a server.json, or an .mcpb bundle
    add 'cursor://...'            the link behind an install button

    Put options before such a line: everything after its first word belongs to it.
    Give the inputs of a published server as --NAME VALUE, or with -e for a variable; you are asked
    for missing ones. What others wrote is shown first, and nothing of it starts or is sent before
    you agree. The server is started once, and added only if it works; if it wants a login, you log
    in now.
    """  # noqa: D301 - click's mark for lines that stay as they are
    typed = click.get_current_context().meta
    if not arguments and not typed.keys() & {"line", "command"}:
        raise click.UsageError("name a server: `multitap add NAME -- COMMAND`, or a URL")
    options_ = AddOptions(**how)
    request = parse_words(
        arguments,
        command=typed.get("command", ()),
        line=typed.get("line", ()),
        env=env,
        headers=header,
        transport=transport,
        # bounded: a file that is piped by mistake may have no end
        piped=sys.stdin.read(1024 * 1024) if "-" in arguments else "",
        consent=Consent(options_.yes, options_.dry_run, typed.get("typed", ())),
    )
    return _add(options, request, options_)


def _add(options: CommonOptions, request: AddRequest, how: AddOptions) -> int:
    drafts = [with_options(draft, request) for draft in resolve(request)]
    # a bundle is unpacked to be read; it must not stay if the server is not added
    with ExitStack() as leftovers:
        for draft, _ in drafts:
            if draft.unpacked is not None:
                leftovers.callback(shutil.rmtree, draft.unpacked, ignore_errors=True)
        code = _add_drafts(options, drafts, how)
        if code == Exit.DONE and not how.dry_run:
            leftovers.pop_all()
        return code


def _add_drafts(
    options: CommonOptions, drafts: Sequence[tuple[ServerDraft, AddRequest]], how: AddOptions
) -> int:
    target = edit_target(options, project=how.scope == "project")
    loaded = load_configuration(options)
    additions = [make_addition(draft, request, target, how) for draft, request in drafts]
    label = f"add {' '.join(addition.name for addition in additions)}"
    for addition, (draft, request) in zip(additions, drafts, strict=True):
        if draft.name not in request.arguments:
            check_name(addition, loaded)
        for line in review_of(addition, loaded):
            note(line)
    if how.dry_run:
        edits = [_writing(target, addition) for addition in additions]
        return run_edits(label, edits, dry_run=True, done="")
    # before the trial: refusing the name after a start would waste a minute
    for addition in additions:
        check_free(addition.name, loaded, target)
    _confirm(additions, drafts[0][1].consent, how)
    trials: dict[str, Trial] = {}
    if how.check:
        trials = {each.name: _try_start(loaded, each, options, how) for each in additions}
    # all or none: a snippet with two servers is one change, which `undo` reverts as one
    failed = [name for name, trial in trials.items() if trial.reason]
    if failed:
        return _explain_failure(failed[0], trials[failed[0]])
    additions = [confine(addition, trials.get(addition.name)) for addition in additions]
    write(label, additions, trials, target, loaded)
    _report(additions, trials, target, loaded, as_json=how.as_json)
    return Exit.DONE


def write(
    label: str,
    additions: Sequence[Addition],
    trials: Mapping[str, Trial],
    target: EditTarget,
    loaded: Loaded,
) -> None:
    edits = [_writing(target, addition) for addition in additions]
    secrets = {name: value for addition in additions for name, value in addition.secrets.items()}
    places, names = places_of(loaded.search), [addition.name for addition in additions]
    pins = [
        edit
        for name in names
        for edit in pins_after(places, name, trials.get(name), project=target.is_project)
    ]
    with trusting_own_edits(names if target.is_project else ()):
        write_edits(label, edits, secrets=secrets, pins=pins)


def pins_after(
    places: LockPlaces, name: str, trial: Trial | None, *, project: bool
) -> tuple[PinEdit, ...]:
    # without a trial, the first list that the server sends is pinned later
    if trial is None or trial.pins is None:
        return () if project else pins_to_come(places, [name])
    return pins_of_new(places, name, trial.pins, project=project)


def make_addition(
    draft: ServerDraft, request: AddRequest, target: EditTarget, how: AddOptions
) -> Addition:
    consent, vault = request.consent, Vault()
    _introduce(draft, consent)
    draft = settle_variables(draft, consent)
    answers = answers_to(
        draft,
        request.inputs,
        () if how.scope == "project" else vault.secrets(),
        ask=not how.yes,
        placeholders=how.dry_run,
        refer=project_variable if how.scope == "project" else auth_variable,
    )
    draft = with_named_paths(draft, answers.values)
    fields = fill(draft, answers.values)
    # stored, because the origin of a program decides whether it is confined
    if not STANDINGS[draft.provenance].is_own:
        fields["provenance"] = draft.provenance
        if "command" in fields and (rules := _rules(draft, fields, answers.values)):
            fields["sandbox_rules"] = rules
    if how.sandbox:
        if "command" not in fields:
            raise ConfigError(
                f"{draft.name!r} is not a program of this machine: nothing confines it"
            )
        fields["sandbox"] = "strict"
    if how.scope == "project" and fields.get("cwd") == str(target.path.parent):
        del fields["cwd"]  # a project's servers run in its folder, which is elsewhere for others
    config = _read(draft.name, fields, target)
    if how.scope == "project":
        return _for_project(draft, config, answers.secrets)
    stored = {name: value for name in vault.secrets() if (value := vault.value(name))}
    # keys in a pasted command line go to the vault as well, not to the file
    changes, pasted = without_secrets(draft.name, config, {**stored, **answers.secrets})
    secrets = {**answers.secrets, **pasted}
    return Addition(name=draft.name, config=config.replace(**changes), secrets=secrets, draft=draft)


def _rules(
    draft: ServerDraft, fields: Mapping[str, Any], answers: Mapping[str, tuple[str, ...]]
) -> dict[str, list[str]]:
    """The initial sandbox rules of a published program: known hosts, and the user's answers."""
    declared: Mapping[str, Any] = fields.get("sandbox_rules", {})
    hosts = dict.fromkeys((*declared.get("hosts", ()), *hosts_in(draft, answers)))
    rules = {"write": [*paths_in(draft, answers)], "hosts": [*hosts]}
    return {key: values for key, values in rules.items() if values}


def _read(name: str, fields: Mapping[str, Any], target: EditTarget) -> StdioServer | HttpServer:
    """The server as it would be read from the file.

    Raises:
        ConfigError: It is not valid there; a project may set less than its user.
    """
    # read back through the dialect, so that nothing is written that a later start would refuse
    document = Document(path=target.path, data={"servers": {name: dict(fields)}})
    check_servers(document, DIALECTS["multitap"], [name])
    reading = read_document(document, target.path.parent, dialect_name="multitap")
    config = merge([Layer(reading)]).settings.servers[name]
    # other kinds cannot be described in a file
    if not isinstance(config, StdioServer | HttpServer):
        raise ConfigError(f"{name!r} cannot be written to a file")
    if target.is_project:
        root = target.path.parent
        _, problems = restrain(config, reading.entries[0], root, root)
        for problem in problems:
            raise ConfigError(problem.message, hint="add it without `--project` if it needs that")
    return config


def _for_project(
    draft: ServerDraft, config: StdioServer | HttpServer, secrets: Mapping[str, str]
) -> Addition:
    """Warn that a project's file refers to variables: it is for others, too, and has no secrets."""
    changes, pasted = without_secrets(draft.name, config, {}, refer=project_variable)
    values = {**secrets, **pasted}
    variables = {project_variable(secret)[2:-1]: value for secret, value in values.items()}
    for variable in variables:
        note(f"set the variable {variable} where the server is started")
    written = config.replace(**changes)
    return Addition(name=draft.name, config=written, secrets={}, variables=variables, draft=draft)


def _confirm(additions: Sequence[Addition], consent: Consent, how: AddOptions) -> None:
    """Ask before anything of a stranger's starts, is connected to or is written."""
    foreign = [addition for addition in additions if not addition.is_own]
    if not foreign:
        return
    author = STANDINGS[foreign[0].draft.provenance].author
    names = ", ".join(addition.name for addition in foreign)
    verb = "supplies the program of" if foreign[0].draft.is_typed else "describes"
    question = question_about(foreign) if how.check else "Add it?"
    consent.confirm(f"{author} {verb} {names}, and nobody has agreed to it", question)


def question_about(additions: Sequence[Addition]) -> str:
    """What a person agrees to with yes."""
    if any(isinstance(addition.config, StdioServer) for addition in additions):
        return "Start it once, and add it if it works?"
    return "Connect to it once, and add it if it works?"


def _introduce(draft: ServerDraft, consent: Consent) -> None:
    """Say who asks, before the person is asked for anything."""
    standing = STANDINGS[draft.provenance]
    if standing.is_own or consent.is_dry or not (draft.inputs or draft.variables):
        return
    command = [
        draft.fields.get("url") or draft.fields.get("command"),
        *draft.fields.get("args", ()),
    ]
    # an option with its value is a list of its own
    flat = [str(part) for word in command for part in (word if is_list(word) else [word])]
    line = " ".join(map(show_word, masked("args", flat)))
    note(f"{standing.author} describes {show_word(draft.name)}: {line}")


def check_name(addition: Addition, loaded: Loaded) -> None:
    """Check the name that a stranger chose: it must look like itself, and like no other.

    Raises:
        ConfigError: It does not.
    """
    if addition.is_own:
        return
    name, hint = addition.name, "choose one: `multitap add NAME …`"
    if not (_NAME.fullmatch(name) and is_seen(name) and len(name) <= _LONGEST_NAME):
        # in ASCII: it may look like something else
        raise ConfigError(f"{name[:_LONGEST_NAME]!a} cannot be the name of a server", hint=hint)
    for other in loaded.settings.servers:
        if skeleton(other) == skeleton(name):
            raise ConfigError(
                f"there is a server named {other!a} already, and this one would be {name!a}",
                hint=hint,
            )


def review_of(addition: Addition, loaded: Loaded) -> Sequence[str]:
    """Everything that decides what the server can do, without secrets."""
    confinement = _confinement(addition, loaded)
    config = addition.config
    writable = _writable(config, loaded) if isinstance(config, StdioServer) else ()
    lines = [*review_lines(addition.name, config, addition.draft, confinement, writable=writable)]
    if confinement is not None and confinement.level == "strict":
        later = _later_hosts(config)
        lines.append(f"  while it is tried, it may reach every public host, and later only {later}")
    return lines


def _confinement(addition: Addition, loaded: Loaded) -> Confinement | None:
    """How a program will be confined; None for a remote server."""
    if not isinstance(addition.config, StdioServer):
        return None
    config = addition.config
    program = shutil.which(os.path.expanduser(config.command))  # noqa: PTH111 - a name is not a path
    return confinement_of(config, support_here(), loaded.settings.sandbox, program=program)


def _writable(config: StdioServer, loaded: Loaded) -> tuple[str, ...]:
    """The folders that a confined program may change, besides its own."""
    cwd = [str(config.cwd)] if config.cwd else []
    folders = writable_folders(
        [*config.args, *cwd], config.cwd or Path.cwd(), loaded.state_directory
    )
    return tuple(dict.fromkeys((*map(str, config.sandbox_rules.write), *folders)))


def _is_strict(addition: Addition, loaded: Loaded) -> bool:
    confinement = _confinement(addition, loaded)
    return confinement is not None and confinement.level == "strict"


def _later_hosts(config: StdioServer | HttpServer) -> str:
    hosts = config.sandbox_rules.hosts if isinstance(config, StdioServer) else ()
    if "*" in hosts:
        return "public hosts, which it is made for"
    return ", ".join((*hosts, "the hosts that it reached then"))


def _writing(target: EditTarget, addition: Addition) -> FileEdit:
    def changes(document: Document, dialect: Dialect) -> list[Change]:
        place = entry_place(dialect, document, addition.name)
        if document.root.find(*map(str, place)) is not None:
            raise _name_taken(addition.name, target)
        written = write_entry(addition.name, addition.config, dialect)
        if written.entry is None:
            raise ConfigError(f"{target.path}: {written.losses[0].reason}")
        if not addition.is_own and any(loss.key == "provenance" for loss in written.losses):
            raise ConfigError(
                f"{target.path} cannot say who described {addition.name!r}: it would become your "
                "own",
                hint="add it to your `multitap.toml`, without `--config`",
            )
        for loss in written.losses:
            note(f"  warning: `{loss.key}`: {loss.reason}")
        return place_entries(dialect, document, {addition.name: written.entry})

    return target.edit(changes)


def check_free(name: str, loaded: Loaded, target: EditTarget) -> None:
    """Check that a name is free before anything is started."""
    place = loaded.place(name)
    # another file may have the name: a later layer can redefine it on purpose
    if place is not None and place.file == target.path:
        raise _name_taken(name, target)


def _name_taken(name: str, target: EditTarget) -> ConfigError:
    return ConfigError(
        f"{target.path}: there is a server named {name!r} already",
        hint=f"`multitap add OTHER-NAME …` gives it another, `multitap remove {name}` makes room",
    )


def confine(addition: Addition, trial: Trial | None) -> Addition:
    """The addition with the hosts of its trial in the rules of its sandbox."""
    if trial is None or not trial.hosts or not isinstance(addition.config, StdioServer):
        return addition
    declared = addition.config.sandbox_rules.hosts
    # a server for the whole web has one rule, not a list that would always be incomplete
    hosts = declared if "*" in declared else tuple(sorted({*declared, *trial.hosts}))
    host_names = ", ".join("every public host" if host == "*" else host for host in hosts)
    note(f"{addition.name} may reach {host_names}: `multitap sandbox show {addition.name}`")
    rules = addition.config.sandbox_rules.replace(hosts=hosts)
    config = addition.config.replace(sandbox_rules=rules)
    return msgspec.structs.replace(addition, config=config)


def _try_start(
    loaded: Loaded, addition: Addition, options: CommonOptions, how: AddOptions
) -> Trial:
    """Start it as it will be started later: a project's server is already confined."""
    wait = options.timeout or addition.config.connect_timeout
    config = addition.config
    if how.scope == "project":
        config = config.replace(provenance="project")
    context = TrialContext(addition.secrets, addition.variables)

    def start() -> Trial:
        return run_async(lambda: start_once(loaded, addition.name, config, context, wait=wait))

    trial = start()
    if not isinstance(config, HttpServer) or not _can_log_in(config, trial):
        return trial
    scope = trial_scope(loaded, addition.name, config, context)
    target = expand_server(config, scope)
    if not isinstance(target, HttpServer):
        raise TypeError("a remote server stays one")
    note(f"{addition.name!r} wants a login")
    log_in_person(addition.name, target, browser=how.browser)
    trial = start()
    if trial.reason:  # it is not added, and leaves nothing behind
        TokenStore().remove(target.login_name(addition.name), target.url)
    return trial


def _can_log_in(config: HttpServer, trial: Trial) -> bool:
    """Whether a server asks for a login, and a person is there for it."""
    wants = trial.failure is not None and trial.failure.code is FailureCode.AUTH
    by_person = not config.oauth or config.oauth.grant == "authorization_code"
    return wants and by_person and config.oauth is not False and is_somebody_there()


def _explain_failure(name: str, trial: Trial) -> int:
    slow = "if it is still downloading, check the network; `--timeout 5m` gives it more time"
    hint = trial.failure.hint if trial.failure else slow
    # no server of that name has a log yet: the lines below are all there is
    fix = hint if hint and "`multitap " not in hint else None
    complain(f"{name!r} does not start: {trial.reason}", fix)
    quote_last_lines(trial.failure.stderr if trial.failure else "")
    note("nothing was written; `--no-check` adds it anyway")
    if trial.failure and trial.failure.code is FailureCode.AUTH:
        advise(f"at a terminal, `multitap add` logs in; or: `--no-check`, `multitap login {name}`")
    if trial.level != "off" and (fix is None or trial.failure is None):
        note(f"it ran in a sandbox, under `{trial.level}`: {MEANINGS[trial.level]}")
        advise(
            f"if that is why: add it with `--no-check`, then `multitap sandbox learn {name}`;"
            f" `multitap sandbox set {name} off` lets it run without one"
        )
    return Exit.UNAVAILABLE


def _report(
    additions: list[Addition],
    trials: Mapping[str, Trial],
    target: EditTarget,
    loaded: Loaded,
    *,
    as_json: bool,
) -> None:
    if as_json:
        say_json(
            [
                _for_programs(addition, trials.get(addition.name), target.path)
                for addition in additions
            ]
        )
        return
    for name, trial in trials.items():
        rows = [(tool, f"{tokens:,}") for tool, tokens in sorted(trial.tools.items())]
        if rows:
            table(("TOOL", "TOKENS"), rows, right=("TOKENS",))
        say(printable(f"{name}: {trial.summary}"))
    names = ", ".join(addition.name for addition in additions)
    note(f"added {names} to {target.name}; `multitap undo` reverts it")
    for addition in additions:
        if addition.name not in trials and _is_strict(addition, loaded):
            note(f"{addition.name} runs in a sandbox, which does not know yet what it needs")
            advise(f"`multitap sandbox learn {addition.name}` starts it and finds out")
    if trials:
        advise("`multitap install CLIENT` gives a client all of your servers")


def _for_programs(addition: Addition, trial: Trial | None, path: Path) -> dict[str, Any]:
    return {
        "name": addition.name,
        "file": str(path),
        "secrets": sorted(addition.secrets),
        "tools": None if trial is None else dict(trial.tools),
    }
