"""`multitap remove`: removes servers from their files."""

import shutil
from collections.abc import Sequence

import click

from multitap.cli.change.entries import chosen_places, found_in_folder, sandbox_folder
from multitap.cli.completion import complete_server
from multitap.cli.configuration import load_configuration
from multitap.cli.edits import EntryPlace, pins_without, run_edits
from multitap.cli.options import CommonOptions, EditOptions, edit_options
from multitap.cli.terminal import Exit, note
from multitap.config import Document
from multitap.config.dialects import Dialect
from multitap.config.edit.changes import Change, RemoveValue
from multitap.config.edit.journal import FileEdit
from multitap.config.edit.servers import entry_place


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_server)
@edit_options
def remove(options: CommonOptions, names: Sequence[str], how: EditOptions) -> int:
    """Remove servers"""
    return remove_servers(options, names, how)


def remove_servers(options: CommonOptions, names: Sequence[str], how: EditOptions) -> int:
    """Remove servers, with their pins and the folders of their sandboxes."""
    loaded = load_configuration(options)
    edits: list[FileEdit] = []
    for name in names:
        places = chosen_places(loaded, name, how)
        if not places:
            raise found_in_folder(loaded, name)
        # from the end, because removing an entry renumbers those after it
        edits += (_dropping(place, name) for place in reversed(places))
        note(f"{name}: in {', '.join(dict.fromkeys(place.target.name for place in places))}")
    label, done = f"remove {' '.join(names)}", f"removed {', '.join(names)}"
    # if an entry in another file remains, the server stays, and so do its pins
    pins = pins_without(loaded, names) if how.scope is None else ()
    code = run_edits(label, edits, dry_run=how.dry_run, done=done, pins=pins)
    if code == Exit.DONE and how.scope is None and not how.dry_run:
        # the next server of that name must not find what this one left
        for name in names:
            if (folder := sandbox_folder(loaded, name, name)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
    return code


def _dropping(place: EntryPlace, name: str) -> FileEdit:
    def changes(document: Document, dialect: Dialect) -> list[Change]:
        listed = isinstance(place.key[-1], int)  # its index may have changed by then
        return [RemoveValue(entry_place(dialect, document, name) if listed else place.key)]

    return place.target.edit(changes)
