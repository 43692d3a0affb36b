"""`multitap enable` and `disable`: switch servers on and off in their files."""

from collections.abc import Sequence

import click

from multitap.cli.change.entries import Assignment, setting_edit
from multitap.cli.completion import complete_server
from multitap.cli.configuration import load_configuration
from multitap.cli.edits import run_edits
from multitap.cli.options import CommonOptions, EditOptions, edit_options


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_server)
@edit_options
def enable(options: CommonOptions, names: Sequence[str], how: EditOptions) -> int:
    """Enable servers"""
    return switch(options, names, how, on=True)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_server)
@edit_options
def disable(options: CommonOptions, names: Sequence[str], how: EditOptions) -> int:
    """Disable servers, and keep their entries"""
    return switch(options, names, how, on=False)


def switch(options: CommonOptions, names: Sequence[str], how: EditOptions, *, on: bool) -> int:
    """Enable or disable servers."""
    verb = "enable" if on else "disable"
    loaded = load_configuration(options)
    assignments = [Assignment(("enabled",), on)]
    edits = [setting_edit(loaded, name, assignments, options, how) for name in names]
    label = f"{verb} {' '.join(names)}"
    return run_edits(label, edits, dry_run=how.dry_run, done=f"{verb}d {', '.join(names)}")
