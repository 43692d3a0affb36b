"""`multitap import`: collects the servers of other clients in one file."""

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from multitap.cli.configuration import problem_lines
from multitap.cli.configuration.chosen_configuration import load_configuration
from multitap.cli.editing.client_table import dialect_named
from multitap.cli.editing.edit_run import run_edits, write_edits
from multitap.cli.editing.edit_target import EditTarget, edit_target
from multitap.cli.editing.pin_edits import pins_to_come
from multitap.cli.exits import Exit
from multitap.cli.options import CommonOptions, EditOptions
from multitap.cli.terminal.output import advise, note, say_json, short_path
from multitap.cli.terminal.tables import table
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
from multitap.config.edit.host_import import HostFile, ImportedServer, arrivals, read_host
from multitap.config.edit.journal import FileEdit
from multitap.config.edit.server_entries import place_finder, write_entry
from multitap.config.hosts import host_file, host_files
from multitap.errors import ConfigError, counted
from multitap.records import dataclass
from multitap.trust.pins.lock_places import places_of
from multitap.trust.projects.project_parts import quote_word
from multitap.trust.secrets.vault import Vault


@dataclass(frozen=True, slots=True)
class ImportOptions(EditOptions):
    """What to import, and how."""

    hosts: tuple[str, ...] = ()
    secrets: str | None = None
    """`vault` or `keep`; by default, asks at a terminal, and keeps them otherwise."""
    yes: bool = False
    as_json: bool = False


def import_servers(options: CommonOptions, how: ImportOptions) -> int:
    """Find servers, show them, and write them."""
    hosts = how.hosts
    where = Surroundings.here()
    wanted = {dialect_named(host) for host in hosts if host != "all"}
    chosen = [
        one
        for one in host_files(where)
        if "all" in hosts or not hosts or (one.dialect or "") in wanted
    ]
    _say_missing(sorted(wanted - {one.dialect for one in chosen}), where)
    target = edit_target(options, project=how.scope == "project")
    files = _own([read_host(source, where.folder) for source in chosen], target)
    vault = Vault()
    # existing servers decide about names and duplicates
    loaded = load_configuration(options)
    present = _present(loaded)
    # before anything is written: afterwards all are duplicates
    in_clear_here = any(next(clear_secrets(one), None) for one in present.values())
    found = arrivals(files, present, vault.value)
    new = [one for one in found if one.is_new]
    in_clear = [one for one in new if any(clear_secrets(one.config))]
    if not how.as_json:
        _show(files, found)
    moving = bool(in_clear) and _moves_secrets(in_clear, how)
    configs, secrets = _prepare(new, vault, moving=moving)
    if how.as_json:
        say_json(_for_programs(files, found, target, secrets))
    if not new:
        note("no servers to import" if not found else "everything is here already")
        if not found:
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
    pins = pins_to_come(places_of(loaded), configs)
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
    strange = [short_path(one.path) for one in files if not one.trusted and one.servers]
    if strange:
        note(f"not imported, because it belongs to this project: {', '.join(strange)}")
        advise("`multitap import --project` collects it in `multitap.toml`, for you to trust")
    return [one for one in files if one.trusted]


def _exit(files: Iterable[HostFile]) -> int:
    """The exit code of an import that added nothing."""
    broken = any(one.severity is Severity.ERROR for file in files for one in file.problems)
    return Exit.CONFIG if broken else Exit.DONE


def _present(loaded: Loaded) -> dict[str, StdioServer | HttpServer]:
    servers = loaded.settings.servers.items()
    return {name: one for name, one in servers if isinstance(one, StdioServer | HttpServer)}


def _moves_secrets(in_clear: Sequence[ImportedServer], how: ImportOptions) -> bool:
    if how.secrets is not None or how.yes or how.dry_run or not sys.stdin.isatty():
        return how.secrets == "vault"
    names = ", ".join(one.name for one in in_clear)
    return click.confirm(
        f"{names}: keys are in plain text. Move them to the vault?", default=True, err=True
    )


def _prepare(
    new: Iterable[ImportedServer], vault: Vault, *, moving: bool
) -> tuple[dict[str, StdioServer | HttpServer], dict[str, str]]:
    """The servers to write, and the secrets for the vault."""
    configs: dict[str, StdioServer | HttpServer] = {}
    secrets: dict[str, str] = {}
    kept = (
        {name: value for name in vault.secrets() if (value := vault.value(name))} if moving else {}
    )
    for one in new:
        update: Mapping[str, Any] = {}
        if moving:
            update, found = without_secrets(one.name, one.config, kept | secrets)
            secrets |= found
        if not one.origin.trusted:
            # stored, otherwise the import would make it the user's own
            update = {**update, "provenance": "project"}
        configs[one.name] = one.config.model_copy(update=update)
    return configs, secrets


def _writing(target: EditTarget, configs: Mapping[str, StdioServer | HttpServer]) -> FileEdit:
    def changes(document: Document, found: Dialect) -> list[Change]:
        puts: list[Change] = []
        find_place = place_finder(found, document)
        for name, config in configs.items():
            written = write_entry(name, config, found)
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
            index = [len(puts)] if found.writing.listed else []
            shifted = (*place[:-1], int(place[-1]) + index[0]) if index else place
            puts.append(SetValue(shifted, dict(written.entry)))
        return puts

    return target.edit(changes)


def _show(files: Sequence[HostFile], found: Sequence[ImportedServer]) -> None:
    for file in files:
        count = counted(len(file.servers) + len(file.broken), "server")
        whose = "" if file.trusted else ", of this project"
        note(f"{short_path(file.path)} ({file.title}{whose}): {count}")
    if not files:
        note("found no configuration of an MCP client")
    rows = [(one.old_name, one.origin.title, _what(one), _fate(one)) for one in found]
    rows += [
        (name, file.title, "-", "broken, not imported") for file in files for name in file.broken
    ]
    if rows:
        table(("SERVER", "FROM", "WHAT", "NOTE"), rows)
    for file in files:
        problem_lines.show(
            one
            for one in file.problems
            # further problems of an entry that is not imported would only distract
            if one.server not in file.broken or one.severity is Severity.ERROR
        )
        if any(one.severity is Severity.ERROR for one in file.problems):
            advise(
                f"correct {short_path(file.path)}, then run `multitap import {file.dialect}` again"
            )


def _what(one: ImportedServer) -> str:
    if isinstance(one.config, HttpServer):
        return str(masked("url", one.config.url))
    words = [one.config.command, *masked("args", [*one.config.args])]
    return " ".join(map(quote_word, words))


def _fate(one: ImportedServer) -> str:
    notes: list[str] = []
    if one.same_as is not None:
        return f"same as {one.same_as}" if one.same_as != one.old_name else "already there"
    if one.clash:
        notes.append(f"becomes {one.name}: {one.clash}")
    if not one.config.enabled:
        notes.append("disabled")
    if any(clear_secrets(one.config)):
        notes.append("keys in plain text")
    if missing := _missing_program(one):
        notes.append(missing)
    return "; ".join(notes)


def _missing_program(one: ImportedServer) -> str:
    config = one.config
    if not isinstance(config, StdioServer) or "${" in config.command:
        return ""
    if shutil.which(os.path.expanduser(config.command)):  # noqa: PTH111 - a name is not a path
        return ""
    return f"program not found; `multitap set {one.name} command=…`"


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
        names = ", ".join(one.name for one in in_clear)
        note(f"keys of {names} are in plain text; `multitap secret move` moves them to the vault")
    advise(
        "`multitap install CLIENT` connects a client to all of them, `multitap doctor` tries them"
    )


def _for_programs(
    files: Sequence[HostFile],
    found: Sequence[ImportedServer],
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
                "problems": [problem_lines.for_programs(one) for one in file.problems],
            }
            for file in files
        ],
        "servers": [
            {
                "name": one.name,
                "old_name": one.old_name,
                "from": str(one.origin.path),
                "same_as": one.same_as,
                "renamed_because": one.clash,
                "keys_in_the_clear": any(clear_secrets(one.config)),
            }
            for one in found
        ],
        "secrets": sorted(secrets),
    }
