"""`multitap undo`: reverts the last change to files."""

import time
from pathlib import Path

from multitap.cli.editing.edit_run import forget
from multitap.cli.editing.own_edits import trusting_own_edits
from multitap.cli.editing.pin_edits import restore_pins
from multitap.cli.exits import Exit
from multitap.cli.terminal.output import advise, note, say_json, short_path
from multitap.cli.terminal.tables import table
from multitap.config.edit.atomic_file import remove_folders
from multitap.config.edit.journal import Journal, Operation


def undo(*, force: bool, everything: bool, listing: bool, as_json: bool) -> int:
    """Restore the files of the last operation, or of all recorded ones."""
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
    folders = {Path(file.path).parent for one in last for file in one.files}
    with trusting_own_edits(folders={Path.cwd(), *folders}):
        operation = journal.undo(force=force)
    # after the files: a secret must not be deleted while a file refers to it
    restore_pins(operation.pins)
    forget(operation.secrets)
    for one in operation.files:
        if one.before is None:  # a folder may have been kept because of its lock file
            remove_folders(tuple(map(Path, one.folders)))
        note(f"{'removed' if one.before is None else 'restored'} {short_path(Path(one.path))}")
    note(f"undone: {operation.label}")


def list_operations(*, as_json: bool) -> int:
    """Show what can be undone, the latest first."""
    operations = Journal().operations()
    if as_json:
        say_json([_for_programs(one) for one in operations])
    elif not operations:
        note("there is nothing to undo")
    else:
        rows = [(_when(one), one.label, _files(one)) for one in operations]
        table(("WHEN", "WHAT", "FILES"), rows)
    return Exit.DONE


def _for_programs(one: Operation) -> dict[str, object]:
    return {
        "number": one.number,
        "label": one.label,
        "at": one.at,
        "files": [file.path for file in one.files],
    }


def _when(one: Operation) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.at))


def _files(one: Operation) -> str:
    return ", ".join(short_path(Path(file.path)) for file in one.files)
