"""`multitap rename`: renames a server, also where profiles and agents mention it."""

from collections.abc import Iterator
from contextlib import suppress

import click

from multitap.cli.change.entries import chosen_places, found_in_folder, sandbox_folder
from multitap.cli.completion import complete_server
from multitap.cli.configuration import load_configuration
from multitap.cli.edits import EditTarget, EntryPlace, check_servers, pins_renamed, run_edits
from multitap.cli.options import CommonOptions, EditOptions, edit_options
from multitap.cli.terminal import Exit
from multitap.config import Document, Loaded
from multitap.config.dialects import Dialect
from multitap.config.documents import is_list
from multitap.config.edit.changes import Change, RenameKey, SetValue, apply_changes
from multitap.config.edit.journal import FileEdit
from multitap.errors import ConfigError
from multitap.names import plain_name
from multitap.trust.vault import Vault


@click.command()
@click.argument("old", shell_complete=complete_server)
@click.argument("new")
@edit_options
def rename(options: CommonOptions, old: str, new: str, how: EditOptions) -> int:
    """Rename a server, also where profiles and agents mention it"""
    return rename_server(options, old, new, how)


def rename_server(options: CommonOptions, old: str, new: str, how: EditOptions) -> int:
    """Rename a server, with its pins, secrets and the folder of its sandbox."""
    loaded = load_configuration(options)
    if new in loaded.merged.servers:
        raise ConfigError(f"there is a server named {new!r} already", hint="choose another name")
    places = chosen_places(loaded, old, how)
    if not places:
        raise found_in_folder(loaded, old)
    edits = [_renaming(place, new) for place in places]
    edits += _following(loaded, old, new)
    # before the file: the server may restart as soon as its new name is written
    if not how.dry_run:
        _widen_secrets(old, new)
    label, done = f"rename {old} {new}", f"{old} is now {new}"
    pins = pins_renamed(loaded, old, new)
    code = run_edits(label, edits, dry_run=how.dry_run, done=done, pins=pins)
    if code == Exit.DONE and not how.dry_run:
        folder, renamed = (sandbox_folder(loaded, old, name) for name in (old, new))
        if folder is not None and renamed is not None:
            with suppress(OSError):  # it has none
                folder.rename(renamed)
    return code


def _renaming(place: EntryPlace, new: str) -> FileEdit:
    def changes(document: Document, dialect: Dialect) -> list[Change]:
        key = dialect.writing.name_key
        edits: list[Change] = [RenameKey(place.key, new)]
        if key is not None and dialect.writing.listed:
            edits = [SetValue((*place.key, key), new)]
        # checked as it would be read: a dialect may not allow the name
        after = Document(
            path=document.path, data=apply_changes(document.data, edits), format=document.format
        )
        check_servers(after, dialect, [new])
        return edits

    return place.target.edit(changes)


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
                    after = [new if name == old else name for name in node.value]
                else:
                    after = [_rename(glob, *prefixes) for glob in node.value]
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
