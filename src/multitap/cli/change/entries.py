"""Changes of a server's entry, in the file and the dialect that it is written in."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from multitap.cli.configuration import load_configuration
from multitap.cli.edits import (
    EditTarget,
    EntryPlace,
    check_servers,
    edit_target,
    entry_places,
    run_edits,
)
from multitap.cli.options import CommonOptions, EditOptions
from multitap.config import Document, HttpServer, Loaded, StdioServer
from multitap.config.dialects import DIALECTS, Dialect
from multitap.config.edit.changes import Change, RemoveValue, SetValue, apply_changes, differences
from multitap.config.edit.journal import FileEdit
from multitap.config.edit.servers import write_entry
from multitap.config.layers import Layer, merge, read_document
from multitap.errors import ConfigError
from multitap.sandbox.plan import own_folder


class Assignment(msgspec.Struct, frozen=True):
    """A setting and its new value."""

    path: tuple[str, ...]
    value: Any
    """The value in the file; None to unset it."""


def sandbox_folder(loaded: Loaded, server: str, name: str) -> Path | None:
    """The folder that a server has to itself if it is confined, under this name."""
    config = loaded.settings.servers.get(server)
    if not isinstance(config, StdioServer):
        return None
    return own_folder(loaded.state_directory, name, config, loaded.search.folder)


def assign(
    options: CommonOptions, name: str, assignments: Sequence[Assignment], how: EditOptions
) -> int:
    """Change settings of a server."""
    loaded = load_configuration(options)
    edit = setting_edit(loaded, name, assignments, options, how)
    keys = ", ".join(".".join(assignment.path) for assignment in assignments)
    return run_edits(f"set {name} {keys}", [edit], dry_run=how.dry_run, done=f"set {keys}")


def chosen_places(loaded: Loaded, name: str, how: EditOptions) -> tuple[EntryPlace, ...]:
    places = entry_places(loaded, name)
    is_project = {"user": False, "project": True}
    if how.scope is None or not places:
        return places
    matching = tuple(place for place in places if place.target.is_project is is_project[how.scope])
    if not matching:
        other = ", ".join(dict.fromkeys(place.target.name for place in places))
        raise ConfigError(f"{name!r} is not in the {how.scope}'s file", hint=f"it is in {other}")
    return matching


def found_in_folder(loaded: Loaded, name: str) -> ConfigError:
    place = loaded.place(name)
    hint = f"delete {place.file.parent}, or run `multitap disable {name}`" if place else None
    return ConfigError(f"no file names {name!r}: it was found in a folder", hint=hint)


def setting_edit(
    loaded: Loaded,
    name: str,
    assignments: Sequence[Assignment],
    options: CommonOptions,
    how: EditOptions,
) -> FileEdit:
    """The edit of a server's own entry, or of our own file if the server has none."""
    places = chosen_places(loaded, name, how)
    if not places:
        target = edit_target(options, project=how.scope == "project")
        puts = [
            SetValue(("servers", name, *assignment.path), assignment.value)
            for assignment in assignments
        ]
        return target.edit(lambda _document, _dialect: puts)
    # the last one takes effect, so it has to change
    place = places[-1]

    def changes(document: Document, dialect: Dialect) -> list[Change]:
        edits = _make_changes(document, dialect, place, name, assignments)
        after = Document(
            path=document.path, data=apply_changes(document.data, edits), format=document.format
        )
        typed = [
            ".".join(assignment.path) for assignment in assignments if assignment.value is not None
        ]
        # as it would be read, so that nothing is written that the next start refuses
        check_servers(after, dialect, [name], typed=typed)
        return edits

    return place.target.edit(changes)


def _make_changes(
    document: Document,
    dialect: Dialect,
    place: EntryPlace,
    name: str,
    assignments: Sequence[Assignment],
) -> list[Change]:
    if dialect is DIALECTS["multitap"]:
        return [*_native_changes(document, place, assignments)]
    before = _model(document, dialect, name)
    # settings have our names: changed in our dialect, then written in the file's own
    entry = write_entry(name, before, DIALECTS["multitap"]).entry
    native = Document(path=document.path, data={"servers": {name: dict(entry or {})}})
    root = EntryPlace(EditTarget(document.path), ("servers", name), complete=True)
    native_after = apply_changes(native.data, _native_changes(native, root, assignments))
    after = _model(Document(path=document.path, data=native_after), DIALECTS["multitap"], name)
    written = write_entry(name, after, dialect)
    losses = {loss.key: loss.reason for loss in written.losses}
    for assignment in assignments:
        key = ".".join(assignment.path)
        if key in losses or written.entry is None:
            raise ConfigError(f"`{key}`: {losses.get(key, 'cannot be expressed')}")
    old = write_entry(name, before, dialect).entry or {}
    # only what differs, so that comments and unknown keys of the entry stay
    edits = differences(old, written.entry)
    return [_move(change, place) for change in edits]


def _move(change: Change, place: EntryPlace) -> Change:
    path = (*place.key, *change.path)
    return SetValue(path, change.value) if isinstance(change, SetValue) else RemoveValue(path)


def _model(document: Document, dialect: Dialect, name: str) -> StdioServer | HttpServer:
    check_servers(document, dialect, [name])
    reading = read_document(document, document.path.parent, dialect_name=dialect.name)
    config = merge([Layer(reading)]).settings.servers.get(name)
    if not isinstance(config, StdioServer | HttpServer):
        raise ConfigError(f"{document.path}: {name!r} cannot be changed in place")
    return config


def _native_changes(
    document: Document, place: EntryPlace, assignments: Sequence[Assignment]
) -> Iterator[Change]:
    for assignment in assignments:
        path = (*place.key, *assignment.path)
        if assignment.value is not None:
            yield SetValue(path, assignment.value)
        elif document.root.find(*map(str, path)) is not None:
            yield RemoveValue(path)
