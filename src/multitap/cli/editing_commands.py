"""Declares the commands that change configurations, ours and other clients'; see `commands`."""

from functools import wraps
from typing import Any

import click

from multitap.cli.completion import (
    complete_client,
    complete_dialect,
    complete_published,
    complete_server,
    complete_setting,
)
from multitap.cli.options import (
    FILE,
    CommonOptions,
    EditOptions,
    Work,
    json_option,
    runs,
    timeout_option,
    with_config,
)

# Written out: importing the dialects takes longer than all of `--help`.
_TARGETS = (
    *("claude", "claude-code", "cursor", "vscode", "windsurf", "zed", "cline", "codex", "gemini"),
    *("goose", "continue", "opencode", "kode", "otter", "agent-core", "excelmanus"),
)

_user_option = click.option(
    "--user", "scope", flag_value="user", help="Change your own configuration"
)
_project_option = click.option(
    "--project", "scope", flag_value="project", help="Change the project's configuration"
)
_dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would change, and write nothing"
)
_yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask")


def _choosing_file(command: Work) -> Work:
    return _user_option(_project_option(_dry_run_option(with_config(command))))


def _editing(command: Work) -> Work:
    @wraps(command)
    def work(options: CommonOptions, *, scope: str | None, dry_run: bool, **given: Any) -> int:
        return command(options, how=EditOptions(scope, dry_run), **given)

    return _choosing_file(work)


class AddCommand(click.Command):
    """Accepts a command after `--`, and a line for another program or a launcher, unparsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["typed"] = tuple(args)
        if (start := self._line_start(args)) is not None:
            ctx.meta["line"] = args[start:]
            return super().parse_args(ctx, args[:start])
        if "--" in args:
            at = args.index("--")
            ctx.meta["command"] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)

    def _line_start(self, args: list[str]) -> int | None:
        """Where a line for another program begins: options after that are its own."""
        from multitap.cli.adding.launcher_lines import read_launcher_line
        from multitap.cli.adding.pasted_lines import is_line

        options = [option for option in self.params if isinstance(option, click.Option)]
        flags = {"-h", "--help"}
        flags.update(name for option in options if option.is_flag for name in option.opts)
        index = 0
        # after `--` is the server's own command, which may itself be `claude`
        while index < len(args) and args[index] != "--":
            word = args[index]
            if word.startswith("-") and word != "-":
                is_whole = word.startswith("--") or len(word) == len("-x")
                index += 2 if is_whole and "=" not in word and word not in flags else 1
                continue
            if is_line(args[index : index + 2]) or read_launcher_line(args[index:]):
                return index
            index += 1
        return None


@click.command(cls=AddCommand, context_settings={"ignore_unknown_options": True})
@click.argument(
    "words",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[NAME] [URL | TEXT | -] [-- COMMAND...]",
    shell_complete=complete_published,
)
@click.option("-e", "--env", multiple=True, metavar="KEY=VALUE", help="Set a variable for it")
@click.option("-H", "--header", multiple=True, metavar="'KEY: VALUE'", help="Send a header to it")
@click.option(
    "-t",
    "--transport",
    type=click.Choice(["http", "streamable-http", "sse"]),
    help="Transport of URL; detected if not given",
)
@click.option(
    "--no-check", "check", flag_value=False, default=True, help="Add it without starting it first"
)
@click.option("--sandbox", is_flag=True, help="Try it and run it under `strict`")
@click.option("-y", "--yes", is_flag=True, help="Agree to what others wrote, and do not ask")
@timeout_option
@_choosing_file
@json_option
@runs("adding.add_command.add")
def add() -> None:
    """Add a server

    \b
    add NAME -- COMMAND...        a program
    add [NAME] URL                a remote server
    add [NAME] npx -y PACKAGE     a line of npx, uvx, bunx, pipx run, docker run, ... as it is
    add claude mcp add ...        a line for another client, as it is
    add '{"mcpServers": ...}'     a snippet from a README; - reads it from standard input
    add [NAME] filesystem         a name that `multitap search` finds
    add [NAME] @scope/package     a package: npm:NAME, pypi:NAME, oci:IMAGE, nuget:NAME
    add [NAME] FILE               a client's file, a server.json, or an .mcpb bundle
    add 'cursor://...'            the link behind an install button

    Options of this command come before such a line: everything after its first word is its own.
    Give the inputs of a published server as --NAME VALUE, or with -e for a variable; you are asked
    for missing ones. What others wrote is shown first, and nothing of it starts or is sent before
    you agree. The server is started once, and added only if it works.
    """  # noqa: D301 - click's mark for lines that stay as they are


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_server)
@_editing
@runs("editing.edit_command.remove")
def remove() -> None:
    """Remove servers"""


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_server)
@_editing
@runs("editing.edit_command.switch", on=True)
def enable() -> None:
    """Enable servers"""


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_server)
@_editing
@runs("editing.edit_command.switch", on=False)
def disable() -> None:
    """Disable servers, and keep their entries"""


@click.command()
@click.argument("old", shell_complete=complete_server)
@click.argument("new")
@_editing
@runs("editing.edit_command.rename")
def rename() -> None:
    """Rename a server, also where profiles and agents mention it"""


@click.command("set")
@click.argument("name", shell_complete=complete_server)
@click.argument(
    "settings",
    nargs=-1,
    required=True,
    metavar="KEY=VALUE...",
    shell_complete=complete_setting,
)
@_editing
@runs("editing.edit_command.set_settings")
def set_() -> None:
    """Change settings of a server

    KEY is a key of multitap.toml, with dots between levels: env.TOKEN, filter.deny. KEY= without
    a value unsets it. Lists are words as a shell splits them, or JSON.
    """


@click.command()
@click.option(
    "--force", is_flag=True, help="Undo even if files changed since, and discard those changes"
)
@click.option("--all", "everything", is_flag=True, help="Undo every change that --list shows")
@click.option("--list", "listing", is_flag=True, help="Show what can be undone")
@json_option
@runs("editing.undo_command.undo")
def undo() -> None:
    """Undo the last change to files

    Restores every file of the last add, remove, enable, disable, rename, set, import, export,
    install or uninstall, byte for byte, together with the secrets and pins that it changed. Run it
    again to go further back.
    """


@click.command("import")
@click.argument(
    "hosts",
    nargs=-1,
    metavar="[CLIENT... | all]",
    type=click.Choice([*_TARGETS, "claude-desktop", "all"]),
)
@click.option(
    "--secrets",
    type=click.Choice(["vault", "keep"]),
    help="Move plain-text keys to the vault, or keep them where they are",
)
@_yes_option
@_choosing_file
@json_option
@runs("editing.import_command.import_servers", given_as="ImportOptions")
def import_() -> None:
    """Import the servers of other clients

    Finds their configuration files on this machine, shows what is in them, and adds the servers to
    yours. The files stay as they are. CLIENT is one or more of claude (Desktop), claude-code,
    cursor, vscode, windsurf, zed, cline, codex, gemini, goose, continue, opencode, kode, otter,
    agent-core and excelmanus; all of them if not given.
    """


@click.command()
@click.argument("name", metavar="DIALECT", shell_complete=complete_dialect)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_server)
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="FILE",
    help="Add the servers to FILE instead of printing them",
)
@_dry_run_option
@with_config
@runs("editing.export_command.export")
def export() -> None:
    """Write your servers in another client's format

    Says for each server what DIALECT cannot express.
    """


@click.command()
@click.argument(
    "names", nargs=-1, required=True, metavar="CLIENT...", shell_complete=complete_client
)
@click.option(
    "--http",
    "address",
    is_flag=False,
    flag_value="http://127.0.0.1:3000/mcp",
    metavar="[URL]",
    help="Connect to a running gateway; default: http://127.0.0.1:3000/mcp",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Remove the client's own entries for servers that the gateway has",
)
@click.option(
    "-y",
    "--yes",
    is_flag=True,
    expose_value=False,
    help="Accepted for scripts; install does not ask",
)
@_dry_run_option
@with_config
@runs("editing.install_command.install")
def install() -> None:
    """Add Multitap to other clients

    Writes to each client's own configuration file, and shows what changes. CLIENT is a name as
    for import, or all for those that have a file on this machine.
    """


@click.command()
@click.argument(
    "names", nargs=-1, required=True, metavar="CLIENT...", shell_complete=complete_client
)
@_dry_run_option
@runs("editing.install_command.uninstall")
def uninstall() -> None:
    """Remove Multitap from other clients"""
