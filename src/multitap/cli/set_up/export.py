"""`multitap export`: writes the servers in another client's format."""

from collections.abc import Sequence
from pathlib import Path

import click

from multitap.cli.completion import complete_dialect, complete_server
from multitap.cli.configuration import explain_emptiness, load_configuration, require
from multitap.cli.edits import EditTarget, run_edits
from multitap.cli.options import FILE, CommonOptions, config_options, dry_run_option
from multitap.cli.terminal import Exit, note, say
from multitap.config import Document, HttpServer, StdioServer
from multitap.config.dialects import Dialect, dialect
from multitap.config.edit.changes import Change, apply_edits
from multitap.config.edit.servers import WrittenEntry, place_entries, write_entry
from multitap.errors import counted


@click.command()
@click.argument("name", metavar="CLIENT", shell_complete=complete_dialect)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_server)
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="FILE",
    help="Add the servers to FILE instead of printing them",
)
@dry_run_option
@config_options
def export(
    options: CommonOptions,
    name: str,
    names: Sequence[str],
    *,
    output: Path | None,
    dry_run: bool,
) -> int:
    """Write your servers in another client's format

    Says for each server what CLIENT cannot express. CLIENT is a name as for import.
    """
    target_dialect = dialect(name)
    loaded = load_configuration(options)
    # the servers of a file that cannot be read would be missing without a word
    loaded.check()
    for server in names:
        require(loaded, server)
    entries = {
        server: write_entry(server, config, target_dialect)
        for server, config in loaded.settings.servers.items()
        if isinstance(config, StdioServer | HttpServer) and (not names or server in names)
    }
    explain_emptiness(loaded)
    is_lost = _report(entries)
    whole = {name: written.entry for name, written in entries.items() if written.entry is not None}

    def changes(document: Document, _: Dialect) -> list[Change]:
        return place_entries(target_dialect, document, whole)

    code = Exit.CONFIG if is_lost else Exit.DONE
    if output is None:
        # nothing is written there: the suffix decides about JSON, TOML or YAML
        path = Path("export").with_suffix(target_dialect.writing.suffix)
        say(
            apply_edits(
                "",
                path,
                changes(EditTarget(path, target_dialect.name).document(""), target_dialect),
            ).rstrip("\n")
        )
        return code
    target = EditTarget(output.absolute(), target_dialect.name)
    count = counted(len(whole), "server")
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
