"""`multitap undo`: reverts the last change to files."""

import time
from pathlib import Path

import click

from multitap.cli.edits import forget, restore_pins, trusting_own_edits
from multitap.cli.options import json_option
from multitap.cli.terminal import Exit, advise, note, say_json, short_path, table
from multitap.config.edit.journal import Journal, Operation, remove_folders


@click.command()
@click.option(
    "--force", is_flag=True, help="Undo even if files changed since, and discard those changes"
)
@click.option("--all", "everything", is_flag=True, help="Undo every change that --list shows")
@click.option("--list", "listing", is_flag=True, help="Show what can be undone")
@json_option
def undo(*, force: bool, everything: bool, listing: bool, as_json: bool) -> int:
    """Undo the last change to files

    Restores every file of the last add, remove, enable, disable, rename, set, import, export,
    install or uninstall, byte for byte, together with the secrets and pins that it changed. Run it
    again to go further back.
    """
    if listing or as_json:
        return list_operations(as_json=as_json)
    journal = Journal(forget=forget)
    _undo_last(journal, force=force)
    while everything and journal.operations():
        _undo_last(journal, force=force)
    if earlier := journal.operations():
        advise(f"`multitap undo` again undoes `{earlier[0].label}`")
    return Exit.DONE


def _undo_last(journal: Journal, *, force: bool) -> None:
    last = journal.operations()[:1]
    folders = {Path(file.path).parent for change in last for file in change.files}
    with trusting_own_edits(folders={Path.cwd(), *folders}):
        operation = journal.undo(force=force)
    # after the files: a secret must not be deleted while a file refers to it
    restore_pins(operation.pins)
    forget(operation.secrets)
    for file in operation.files:
        if file.before is None:  # a folder may have been kept because of its lock file
            remove_folders(tuple(map(Path, file.folders)))
        note(f"{'removed' if file.before is None else 'restored'} {short_path(Path(file.path))}")
    note(f"undone: {operation.label}")


def list_operations(*, as_json: bool) -> int:
    """Show what can be undone, the latest first."""
    operations = Journal().operations()
    if as_json:
        say_json([_for_programs(operation) for operation in operations])
    elif not operations:
        note("there is nothing to undo")
    else:
        rows = [(_when(operation), operation.label, _files(operation)) for operation in operations]
        table(("WHEN", "WHAT", "FILES"), rows)
    return Exit.DONE


def _for_programs(operation: Operation) -> dict[str, object]:
    return {
        "number": operation.number,
        "label": operation.label,
        "at": operation.at,
        "files": [file.path for file in operation.files],
    }


def _when(operation: Operation) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(operation.at))


def _files(operation: Operation) -> str:
    return ", ".join(short_path(Path(file.path)) for file in operation.files)
