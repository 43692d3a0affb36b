"""`multitap remove`, `enable`, `disable`, `rename` and `set`: change existing servers."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from multitap.cli.configuration.chosen_configuration import load_configuration
from multitap.cli.editing.edit_run import run_edits, write_edits
from multitap.cli.editing.edit_target import (
    EditTarget,
    EntryPlace,
    check_servers,
    edit_target,
    entry_places,
)
from multitap.cli.editing.pin_edits import pins_renamed, pins_without
from multitap.cli.editing.setting_words import Assignment, assignment
from multitap.cli.exits import Exit
from multitap.cli.options import CommonOptions, EditOptions
from multitap.cli.terminal.output import note
from multitap.config import Document, HttpServer, Loaded, StdioServer
from multitap.config.dialects import DIALECTS, Dialect
from multitap.config.documents import is_list
from multitap.config.edit.changes import (
    Change,
    RemoveValue,
    RenameKey,
    SetValue,
    apply_changes,
    differences,
)
from multitap.config.edit.clear_secrets import without_secrets
from multitap.config.edit.journal import FileEdit
from multitap.config.edit.server_entries import entry_place, write_entry
from multitap.config.layers import Layer, merge
from multitap.config.loading import read_document
from multitap.config.models import OAuth
from multitap.errors import ConfigError, counted
from multitap.names import plain_name
from multitap.sandbox.plan import own_folder
from multitap.trust.secrets.vault import Vault


def remove(options: CommonOptions, names: Sequence[str], how: EditOptions) -> int:
    """Remove servers from their file."""
    loaded = load_configuration(options)
    edits: list[FileEdit] = []
    for name in names:
        places = _places(loaded, name, how)
        if not places:
            raise _defined_in_folder(loaded, name)
        # from the end, because removing an entry renumbers those after it
        edits += (_dropping(place, name) for place in reversed(places))
        note(f"{name}: in {', '.join(dict.fromkeys(one.target.name for one in places))}")
    label, done = f"remove {' '.join(names)}", f"removed {', '.join(names)}"
    # if an entry in another file remains, the server stays, and so do its pins
    pins = pins_without(loaded, names) if how.scope is None else ()
    code = run_edits(label, edits, dry_run=how.dry_run, done=done, pins=pins)
    if code == Exit.DONE and how.scope is None and not how.dry_run:
        # the next server of that name must not find what this one left
        for name in names:
            if (folder := _sandbox_folder(loaded, name, name)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
    return code


def _sandbox_folder(loaded: Loaded, server: str, name: str) -> Path | None:
    """The folder that a server has to itself if it is confined, under this name."""
    config = loaded.settings.servers.get(server)
    if not isinstance(config, StdioServer):
        return None
    return own_folder(loaded.state_directory, name, config, loaded.search.folder)


def switch(options: CommonOptions, names: Sequence[str], how: EditOptions, *, on: bool) -> int:
    """Enable or disable servers."""
    verb = "enable" if on else "disable"
    loaded = load_configuration(options)
    wanted = [Assignment(("enabled",), on)]
    edits = [_setting(loaded, name, wanted, options, how) for name in names]
    label = f"{verb} {' '.join(names)}"
    return run_edits(label, edits, dry_run=how.dry_run, done=f"{verb}d {', '.join(names)}")


def set_settings(
    options: CommonOptions, name: str, settings: Sequence[str], how: EditOptions
) -> int:
    """Change settings of a server from `key=value` words."""
    return assign(options, name, [assignment(word) for word in settings], how)


def assign(
    options: CommonOptions, name: str, assignments: Sequence[Assignment], how: EditOptions
) -> int:
    """Change settings of a server."""
    loaded = load_configuration(options)
    edit = _setting(loaded, name, assignments, options, how)
    keys = ", ".join(".".join(one.path) for one in assignments)
    return run_edits(f"set {name} {keys}", [edit], dry_run=how.dry_run, done=f"set {keys}")


def rename(options: CommonOptions, old: str, new: str, how: EditOptions) -> int:
    """Give a server another name, also where profiles and agents mention it."""
    loaded = load_configuration(options)
    if new in loaded.merged.servers:
        raise ConfigError(f"there is a server named {new!r} already", hint="choose another name")
    places = _places(loaded, old, how)
    if not places:
        raise _defined_in_folder(loaded, old)
    edits = [_renaming(place, new) for place in places]
    edits += _following(loaded, old, new)
    # before the file: the server may restart as soon as its new name is written
    if not how.dry_run:
        _widen_secrets(old, new)
    label, done = f"rename {old} {new}", f"{old} is now {new}"
    pins = pins_renamed(loaded, old, new)
    code = run_edits(label, edits, dry_run=how.dry_run, done=done, pins=pins)
    if code == Exit.DONE and not how.dry_run:
        folder, renamed = (_sandbox_folder(loaded, old, name) for name in (old, new))
        if folder is not None and renamed is not None:
            with suppress(OSError):  # it has none
                folder.rename(renamed)
    return code


def move_secrets(options: CommonOptions, names: Sequence[str], *, dry_run: bool) -> int:
    """Move plain-text keys to the vault, of some servers or of all."""
    loaded = load_configuration(options)
    loaded.check()
    for name in names:
        entry_places(loaded, name)  # an unknown name is an error
    vault = Vault()
    known = {name: value for name in vault.secrets() if (value := vault.value(name))}
    moved: dict[str, str] = {}
    edits: list[FileEdit] = []
    for name, config in loaded.settings.servers.items():
        if (names and name not in names) or not isinstance(config, StdioServer | HttpServer):
            continue
        if config.provenance == "project":
            continue  # others use that file, and do not have this vault
        changed_fields, found = without_secrets(name, config, {**known, **moved})
        if changed_fields:
            moved |= found
            edits.append(_setting(loaded, name, [*_leaves(changed_fields)], options, EditOptions()))
            note(f"{name}: {', '.join(found) or 'keys that the vault has already'}")
    if not edits:
        note("there are no keys in plain text")
        return Exit.DONE
    if dry_run:
        return run_edits("", edits, dry_run=True, done="")
    write_edits(f"secret move {' '.join(names)}".strip(), edits, secrets=moved)
    note(f"moved {counted(len(moved), 'key')} to the vault; `multitap undo` reverts it")
    return Exit.DONE


def _leaves(fields: Mapping[str, Any]) -> Iterator[Assignment]:
    """The values to set, with the members of a table one by one."""
    for key, value in fields.items():
        if isinstance(value, OAuth):
            yield Assignment((key, "client_secret"), value.client_secret)
        elif isinstance(value, Mapping):
            members: Mapping[str, object] = value  # pyright: ignore[reportUnknownVariableType]
            yield from (Assignment((key, name), member) for name, member in members.items())
        else:
            yield Assignment((key,), [*value] if isinstance(value, tuple) else value)


def _places(loaded: Loaded, name: str, how: EditOptions) -> tuple[EntryPlace, ...]:
    places = entry_places(loaded, name)
    wanted = {"user": False, "project": True}
    if how.scope is None or not places:
        return places
    chosen = tuple(one for one in places if one.target.is_project is wanted[how.scope])
    if not chosen:
        other = ", ".join(dict.fromkeys(one.target.name for one in places))
        raise ConfigError(f"{name!r} is not in the {how.scope}'s file", hint=f"it is in {other}")
    return chosen


def _defined_in_folder(loaded: Loaded, name: str) -> ConfigError:
    place = loaded.place(name)
    hint = f"delete {place.file.parent}, or run `multitap disable {name}`" if place else None
    return ConfigError(f"no file names {name!r}: it was found in a folder", hint=hint)


def _dropping(place: EntryPlace, name: str) -> FileEdit:
    def changes(document: Document, found: Dialect) -> list[Change]:
        listed = isinstance(place.key[-1], int)  # its index may have changed by then
        return [RemoveValue(entry_place(found, document, name) if listed else place.key)]

    return place.target.edit(changes)


def _renaming(place: EntryPlace, new: str) -> FileEdit:
    def changes(document: Document, found: Dialect) -> list[Change]:
        key = found.writing.name_key
        made: list[Change] = [RenameKey(place.key, new)]
        if key is not None and found.writing.listed:
            made = [SetValue((*place.key, key), new)]
        # checked as it would be read: a dialect may not allow the name
        after = Document(document.path, apply_changes(document.data, made), document.format)
        check_servers(after, found, [new])
        return made

    return place.target.edit(changes)


def _setting(
    loaded: Loaded,
    name: str,
    assignments: Sequence[Assignment],
    options: CommonOptions,
    how: EditOptions,
) -> FileEdit:
    """The edit of a server's own entry, or of our own file if the server has none."""
    places = _places(loaded, name, how)
    if not places:
        target = edit_target(options, project=how.scope == "project")
        puts = [SetValue(("servers", name, *one.path), one.value) for one in assignments]
        return target.edit(lambda _document, _dialect: puts)
    # the last one takes effect, so it has to change
    place = places[-1]

    def changes(document: Document, found: Dialect) -> list[Change]:
        made = _make_changes(document, found, place, name, assignments)
        after = Document(document.path, apply_changes(document.data, made), document.format)
        typed = [".".join(one.path) for one in assignments if one.value is not None]
        check_servers(after, found, [name], given=typed)
        return made

    return place.target.edit(changes)


def _make_changes(
    document: Document,
    found: Dialect,
    place: EntryPlace,
    name: str,
    assignments: Sequence[Assignment],
) -> list[Change]:
    if found is DIALECTS["multitap"]:
        return [*_native_changes(document, place, assignments)]
    before = _model(document, found, name)
    # settings have our names: changed in our dialect, then written in the file's own
    entry = write_entry(name, before, DIALECTS["multitap"]).entry
    native = Document(document.path, {"servers": {name: dict(entry or {})}})
    root = EntryPlace(EditTarget(document.path), ("servers", name), complete=True)
    wanted = apply_changes(native.data, _native_changes(native, root, assignments))
    after = _model(Document(document.path, wanted), DIALECTS["multitap"], name)
    written = write_entry(name, after, found)
    lost = {loss.key: loss.reason for loss in written.losses}
    for one in assignments:
        key = ".".join(one.path)
        if key in lost or written.entry is None:
            raise ConfigError(f"`{key}`: {lost.get(key, 'cannot be expressed')}")
    old = write_entry(name, before, found).entry or {}
    # only what differs, so that comments and unknown keys of the entry stay
    made = differences(old, written.entry)
    return [_move(change, place) for change in made]


def _move(change: Change, place: EntryPlace) -> Change:
    path = (*place.key, *change.path)
    return SetValue(path, change.value) if isinstance(change, SetValue) else RemoveValue(path)


def _model(document: Document, found: Dialect, name: str) -> StdioServer | HttpServer:
    check_servers(document, found, [name])
    reading = read_document(document, document.path.parent, told=found.name)
    config = merge([Layer(reading)]).settings.servers.get(name)
    if not isinstance(config, StdioServer | HttpServer):
        raise ConfigError(f"{document.path}: {name!r} cannot be changed in place")
    return config


def _native_changes(
    document: Document, place: EntryPlace, assignments: Sequence[Assignment]
) -> Iterator[Change]:
    for one in assignments:
        path = (*place.key, *one.path)
        if one.value is not None:
            yield SetValue(path, one.value)
        elif document.root.find(*map(str, path)) is not None:
            yield RemoveValue(path)


def _following(loaded: Loaded, old: str, new: str) -> Iterator[FileEdit]:
    """Edits of profiles and agents in our own files that mention a server."""
    naming = loaded.settings.naming
    prefixes = plain_name(naming, old, ""), plain_name(naming, new, "")
    for seen in loaded.sources:
        if seen.found and seen.dialect == "multitap":

            def changes(document: Document, _: Dialect) -> list[Change]:
                return [*_references(document, old, new, prefixes)]

            target = EditTarget(seen.source.path, seen.dialect, is_project=not seen.source.trusted)
            yield target.edit(changes)


def _references(
    document: Document, old: str, new: str, prefixes: tuple[str, str]
) -> Iterator[Change]:
    for group in ("profiles", "agents"):
        holders = document.root.find(group)
        for name, holder in holders.members() if holders else ():
            for key, node in holder.members():
                if not is_list(node.value):
                    continue
                if key == "servers":
                    after = [new if one == old else one for one in node.value]
                else:
                    after = [_rename(one, *prefixes) for one in node.value]
                if key in {"servers", "allow", "deny"} and after != node.value:
                    yield SetValue((group, name, key), after)


def _rename(glob: object, old: str, new: str) -> object:
    # with bare names there is no prefix, and nothing to rename
    if isinstance(glob, str) and old and glob.startswith(old):
        return new + glob[len(old) :]
    return glob


def _widen_secrets(old: str, new: str) -> None:
    """Let the server use its secrets under either name, so that `undo` works too."""
    vault = Vault()
    for name, secret in vault.secrets().items():
        if old in secret.servers and new not in secret.servers:
            value = vault.value(name)
            if value is not None:
                servers = (*secret.servers, new)
                vault.set(name, value, servers=servers, origins=secret.origins)
