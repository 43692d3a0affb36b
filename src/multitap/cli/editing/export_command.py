"""`multitap export`: writes the servers in another client's format."""

from collections.abc import Sequence
from pathlib import Path

from multitap.cli.configuration.chosen_configuration import (
    explain_emptiness,
    load_configuration,
    require,
)
from multitap.cli.editing.client_table import CLIENTS
from multitap.cli.editing.edit_run import run_edits
from multitap.cli.editing.edit_target import EditTarget
from multitap.cli.exits import Exit
from multitap.cli.options import CommonOptions
from multitap.cli.terminal.output import note, say
from multitap.config import Document, HttpServer, StdioServer
from multitap.config.dialects import Dialect, dialect
from multitap.config.edit.changes import Change
from multitap.config.edit.edited_text import apply_edits
from multitap.config.edit.server_entries import WrittenEntry, place_entries, write_entry
from multitap.errors import counted


def export(
    options: CommonOptions,
    name: str,
    names: Sequence[str],
    *,
    output: Path | None,
    dry_run: bool,
) -> int:
    """Print servers in a dialect, or add them to a file, and report losses."""
    client = CLIENTS.get(name)
    found = dialect((client.dialect if client else None) or name)
    loaded = load_configuration(options)
    loaded.check()
    for one in names:
        require(loaded, one)
    entries = {
        one: write_entry(one, config, found)
        for one, config in loaded.settings.servers.items()
        if isinstance(config, StdioServer | HttpServer) and (not names or one in names)
    }
    explain_emptiness(loaded)
    lost = _report(entries)
    told = found.name

    whole = {one: written.entry for one, written in entries.items() if written.entry is not None}

    def changes(document: Document, _: Dialect) -> list[Change]:
        return place_entries(found, document, whole)

    code = Exit.CONFIG if lost else Exit.DONE
    if output is None:
        path = Path("export").with_suffix(found.writing.suffix)
        say(apply_edits("", path, changes(EditTarget(path, told).document(""), found)).rstrip("\n"))
        return code
    target = EditTarget(output.absolute(), told)
    count = counted(sum(one.entry is not None for one in entries.values()), "server")
    run_edits(
        f"export {name}", [target.edit(changes)], dry_run=dry_run, done=f"wrote {count} to {output}"
    )
    return code


def _report(entries: dict[str, WrittenEntry]) -> bool:
    """Report losses; returns whether a whole server is lost."""
    for name, written in entries.items():
        for loss in written.losses:
            note(f"{name}: `{loss.key}`: {loss.reason}")
        if written.entry is None:
            note(f"{name}: not exported")
    return any(written.entry is None for written in entries.values())
