"""`multitap generate`: writes a typed Python client of a server."""

from pathlib import Path

from multitap.cli.editing.edit_run import run_edits
from multitap.cli.exits import Exit
from multitap.cli.offers.offer_listing import list_offers
from multitap.cli.offers.tools_command import lines_of
from multitap.cli.offers.typed_client import MARK, client_module
from multitap.cli.options import CommonOptions
from multitap.cli.terminal.output import say
from multitap.config.edit.atomic_file import SHARED
from multitap.config.edit.journal import FileEdit
from multitap.errors import ConfigError, counted


def generate(options: CommonOptions, server: str, *, output: Path | None, is_async: bool) -> int:
    """Print a module with the tools of a server, or write it to a file."""
    tools = sorted(
        list_offers(options, lines_of, lambda live: live.tools(), server=server),
        key=lambda tool: tool.tool,
    )
    text = client_module(server, tools, is_async=is_async)
    if output is None:
        say(text.rstrip("\n"))
        return Exit.DONE

    def written(before: str) -> str:
        # a file that a person wrote is never overwritten
        if before and not before.startswith(MARK):
            raise ConfigError(
                f"{output} was not written by `multitap generate`",
                hint="name another file with `-o`, or move this one away",
            )
        return text

    edit = FileEdit(output, written, SHARED)
    done = f"wrote {counted(len(tools), 'tool')} to {output}"
    return run_edits(f"generate {server}", [edit], dry_run=False, done=done)
