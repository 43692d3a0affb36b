"""`multitap import`: collects the servers of other clients in one file."""

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from multitap.cli import configuration
from multitap.cli.completion import complete_client
from multitap.cli.configuration import load_configuration
from multitap.cli.edits import EditTarget, edit_target, pins_to_come, run_edits, write_edits
from multitap.cli.options import CommonOptions, EditOptions, file_options, json_option, yes_option
from multitap.cli.set_up.clients import dialect_named
from multitap.cli.terminal import Exit, advise, note, say_json, short_path, table
from multitap.config import (
    Document,
    HttpServer,
    Loaded,
    Severity,
    StdioServer,
    Surroundings,
    masked,
)
from multitap.config.dialects import Dialect, dialect
from multitap.config.edit.changes import Change, SetValue
from multitap.config.edit.clear_secrets import clear_secrets, without_secrets
from multitap.config.edit.journal import FileEdit
from multitap.config.edit.servers import (
    HostFile,
    ImportedServer,
    arrivals,
    place_finder,
    read_host,
    write_entry,
)
from multitap.config.sources import host_file, host_files
from multitap.errors import ConfigError, counted
from multitap.trust.pins import places_of
from multitap.trust.project_parts import quote_word
from multitap.trust.vault import Vault


class ImportOptions(EditOptions, frozen=True):
    """What to import, and how."""

    hosts: tuple[str, ...] = ()
    secrets: str | None = None
    """`vault` or `keep`; by default, asks at a terminal, and keeps them otherwise."""
    yes: bool = False
    as_json: bool = False


@click.command("import")
@click.argument(
    "hosts",
    nargs=-1,
    metavar="[CLIENT... | all]",
    shell_complete=complete_client,
)
@click.option(
    "--secrets",
    type=click.Choice(["vault", "keep"]),
    help="Move plain-text keys to the vault, or keep them where they are",
)
@yes_option
@file_options
@json_option
def import_(options: CommonOptions, **typed: Any) -> int:
    """Import the servers of other clients

    Finds their configuration files on this machine, shows what is in them, and adds the servers to
    yours. The files stay as they are. CLIENT is one or more of claude (Desktop), claude-code,
    cursor, vscode, windsurf, zed, cline, codex, gemini, goose, continue, opencode, kode, otter,
    agent-core and excelmanus; all of them by default.
    """
    how = ImportOptions(**typed)
    hosts = how.hosts
    where = Surroundings.here()
    dialects = {dialect_named(host) for host in hosts if host != "all"}
    sources = [
        source
        for source in host_files(where)
        if "all" in hosts or not hosts or (source.dialect or "") in dialects
    ]
    _say_missing(sorted(dialects - {source.dialect for source in sources}), where)
    target = edit_target(options, project=how.scope == "project")
    files = _own([read_host(source, where.folder) for source in sources], target)
    vault = Vault()
    # existing servers decide about names and duplicates
    loaded = load_configuration(options)
    present = _present(loaded)
    # before anything is written: afterwards all are duplicates
    in_clear_here = any(next(clear_secrets(server), None) for server in present.values())
    servers = arrivals(files, present, vault.value)
    new = [server for server in servers if server.is_new]
    in_clear = [server for server in new if any(clear_secrets(server.config))]
    if not how.as_json:
        _show(files, servers)
    moving = bool(in_clear) and _moves_secrets(in_clear, how)
    configs, secrets = _prepare(new, vault, moving=moving)
    if how.as_json:
        say_json(_for_programs(files, servers, target, secrets))
    if not new:
        note("no servers to import" if not servers else "everything is here already")
        if not servers:
            advise("`multitap add NAME -- COMMAND` adds one, `multitap search WORD` finds some")
        elif how.secrets == "vault" and in_clear_here:
            advise("`multitap secret move` moves plain-text keys to the vault")
        return _exit(files)
    label = f"import {' '.join(hosts) or 'all'}"
    edits = [_writing(target, configs)]
    if how.dry_run:
        run_edits(label, edits, dry_run=True, done="")
        return _exit(files)
    if not how.yes and sys.stdin.isatty():
        question = f"Add {counted(len(new), 'server')} to {target.name}?"
        click.confirm(question, default=True, abort=True, err=True)
    pins = pins_to_come(places_of(loaded.search), configs)
    write_edits(label, edits, secrets=secrets, pins=pins)
    _conclude(new, in_clear, secrets, target)
    return Exit.DONE


def _say_missing(dialects: Sequence[str], where: Surroundings) -> None:
    for name in dialects:
        if (path := host_file(name, where)) is not None:
            note(f"{dialect(name).title} has no servers here: there is no {short_path(path)}")


def _own(files: Sequence[HostFile], target: EditTarget) -> list[HostFile]:
    """The files that may be imported: a project's servers would become the user's own.

    They are not trusted yet, so they go only to the project's own file.
    """
    if target.is_project:
        return [*files]
    # in the home folder, a client's own file is that of a project as well
    own = {file.path for file in files if file.trusted}
    strange = [
        short_path(file.path)
        for file in files
        if not file.trusted and file.servers and file.path not in own
    ]
    if strange:
        note(f"not imported, because it belongs to this project: {', '.join(strange)}")
        advise("`multitap import --project` collects it in `multitap.toml`, for you to trust")
    return [file for file in files if file.trusted]


def _exit(files: Iterable[HostFile]) -> int:
    """The exit code of an import that added nothing."""
    broken = any(problem.severity is Severity.ERROR for file in files for problem in file.problems)
    return Exit.CONFIG if broken else Exit.DONE


def _present(loaded: Loaded) -> dict[str, StdioServer | HttpServer]:
    servers = loaded.settings.servers.items()
    return {
        name: server for name, server in servers if isinstance(server, StdioServer | HttpServer)
    }


def _moves_secrets(in_clear: Sequence[ImportedServer], how: ImportOptions) -> bool:
    if how.secrets is not None or how.yes or how.dry_run or not sys.stdin.isatty():
        return how.secrets == "vault"
    names = ", ".join(server.name for server in in_clear)
    return click.confirm(
        f"{names}: keys are in plain text. Move them to the vault?", default=True, err=True
    )


def _prepare(
    new: Iterable[ImportedServer], vault: Vault, *, moving: bool
) -> tuple[dict[str, StdioServer | HttpServer], dict[str, str]]:
    """The servers to write, and the secrets for the vault."""
    configs: dict[str, StdioServer | HttpServer] = {}
    secrets: dict[str, str] = {}
    stored = (
        {name: value for name in vault.secrets() if (value := vault.value(name))} if moving else {}
    )
    for server in new:
        update: Mapping[str, Any] = {}
        if moving:
            update, moved = without_secrets(server.name, server.config, stored | secrets)
            secrets |= moved
        if not server.origin.trusted:
            # stored, otherwise the import would make it the user's own
            update = {**update, "provenance": "project"}
        configs[server.name] = server.config.replace(**update)
    return configs, secrets


def _writing(target: EditTarget, configs: Mapping[str, StdioServer | HttpServer]) -> FileEdit:
    def changes(document: Document, dialect_: Dialect) -> list[Change]:
        puts: list[Change] = []
        find_place = place_finder(dialect_, document)
        for name, config in configs.items():
            written = write_entry(name, config, dialect_)
            if written.entry is None:
                raise ConfigError(f"{target.path}: {name!r}: {written.losses[0].reason}")
            place = find_place(name)
            # the file may have changed since it was shown
            if document.root.find(*map(str, place)) is not None:
                raise ConfigError(
                    f"{target.path}: there is a server named {name!r} already",
                    hint="run the import again",
                )
            # computed on one document: each depends on those before it
            index = [len(puts)] if dialect_.writing.listed else []
            shifted = (*place[:-1], int(place[-1]) + index[0]) if index else place
            puts.append(SetValue(shifted, dict(written.entry)))
        return puts

    return target.edit(changes)


def _show(files: Sequence[HostFile], servers: Sequence[ImportedServer]) -> None:
    for file in files:
        count = counted(len(file.servers) + len(file.broken), "server")
        whose = "" if file.trusted else ", of this project"
        note(f"{short_path(file.path)} ({file.title}{whose}): {count}")
    if not files:
        note("found no configuration of an MCP client")
    rows = [
        (server.old_name, server.origin.title, _what(server), _fate(server)) for server in servers
    ]
    rows += [
        (name, file.title, "-", "broken, not imported") for file in files for name in file.broken
    ]
    if rows:
        table(("SERVER", "FROM", "WHAT", "NOTE"), rows)
    for file in files:
        configuration.show_problems(
            problem
            for problem in file.problems
            # further problems of an entry that is not imported would only distract
            if problem.server not in file.broken or problem.severity is Severity.ERROR
        )
        if any(problem.severity is Severity.ERROR for problem in file.problems):
            advise(
                f"correct {short_path(file.path)}, then run `multitap import {file.dialect}` again"
            )


def _what(server: ImportedServer) -> str:
    if isinstance(server.config, HttpServer):
        return str(masked("url", server.config.url))
    command = [server.config.command, *masked("args", [*server.config.args])]
    return " ".join(map(quote_word, command))


def _fate(server: ImportedServer) -> str:
    notes: list[str] = []
    if server.same_as is not None:
        return f"same as {server.same_as}" if server.same_as != server.old_name else "already there"
    if server.clash:
        notes.append(f"becomes {server.name}: {server.clash}")
    if not server.config.enabled:
        notes.append("disabled")
    if any(clear_secrets(server.config)):
        notes.append("keys in plain text")
    if missing := _missing_program(server):
        notes.append(missing)
    return "; ".join(notes)


def _missing_program(server: ImportedServer) -> str:
    config = server.config
    # a variable gets its value only where the server is started
    if not isinstance(config, StdioServer) or "${" in config.command:
        return ""
    if shutil.which(os.path.expanduser(config.command)):  # noqa: PTH111 - a name is not a path
        return ""
    return f"program not found; `multitap set {server.name} command=…`"


def _conclude(
    new: Sequence[ImportedServer],
    in_clear: Sequence[ImportedServer],
    secrets: Mapping[str, str],
    target: EditTarget,
) -> None:
    note(f"added {counted(len(new), 'server')} to {target.name}; `multitap undo` reverts it")
    if secrets:
        note(f"moved {counted(len(secrets), 'key')} to the vault")
    elif in_clear:
        names = ", ".join(server.name for server in in_clear)
        note(f"keys of {names} are in plain text; `multitap secret move` moves them to the vault")
    advise(
        "`multitap install CLIENT` connects a client to all of them, `multitap doctor` tries them"
    )


def _for_programs(
    files: Sequence[HostFile],
    servers: Sequence[ImportedServer],
    target: EditTarget,
    secrets: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "target": str(target.path),
        "files": [
            {
                "path": str(file.path),
                "dialect": file.dialect,
                "servers": [*file.servers],
                "broken": [*file.broken],
                "problems": [configuration.problem_json(problem) for problem in file.problems],
            }
            for file in files
        ],
        "servers": [
            {
                "name": server.name,
                "old_name": server.old_name,
                "from": str(server.origin.path),
                "same_as": server.same_as,
                "renamed_because": server.clash,
                "keys_in_the_clear": any(clear_secrets(server.config)),
            }
            for server in servers
        ],
        "secrets": sorted(secrets),
    }
