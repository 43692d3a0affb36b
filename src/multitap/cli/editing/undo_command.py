"""`multitap undo`: reverts the last change to files."""

import time
from pathlib import Path

from multitap.cli.editing.edit_run import forget
from multitap.cli.exits import Exit
from multitap.cli.terminal.json_output import say_json
from multitap.cli.terminal.output import note
from multitap.cli.terminal.tables import table
from multitap.config.edit.journal import Journal, Operation


def undo(*, force: bool) -> int:
    """Restore the files of the last operation."""
    operation = Journal().undo(force=force)
    forget(operation.secrets)
    for one in operation.files:
        note(f"{'removed' if one.before is None else 'restored'} {one.path}")
    note(f"undone: {operation.label}")
    return Exit.DONE


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
    here = Path.home()
    paths = (Path(file.path) for file in one.files)
    return ", ".join(
        f"~/{path.relative_to(here)}" if path.is_relative_to(here) else str(path) for path in paths
    )
