"""Every command with a line about it; its options are declared when it is used.

A new command is a line here and a function in one of the `*_commands` modules.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import click
from click.exceptions import NoSuchCommand

from multitap.cli.options import CommonOptions, config_option
from multitap.version import VERSION

_HELP = {"help_option_names": ["-h", "--help"]}


class _Command(NamedTuple):
    """Where a command is declared, and its line in `--help`."""

    module: str
    words: str


# Declaring a command takes longer than running a small one, and there are dozens: `--help` needs
# only these lines. They are in the order in which users need them.
_TABLE = """
Set up
  import     editing        Import the servers of other clients
  search     offer          Find servers to add, in the catalog and the registry
  add        editing        Add a server
  install    editing        Add Multitap to other clients
  uninstall  editing        Remove Multitap from other clients
  export     editing        Write your servers in another client's format
Change
  enable     editing        Enable servers
  disable    editing        Disable servers, and keep their entries
  rename     editing        Rename a server, also where profiles and agents mention it
  set        editing        Change settings of a server
  remove     editing        Remove servers
  undo       editing        Undo the last change to files
Use
  status     server         Show the state of each server
  tools      offer          List the tools, or those that match PATTERN
  call       offer          Call a tool
  resources  offer          List the resources and resource templates
  read       offer          Print a resource
  prompts    offer          List the prompts and their arguments
  prompt     offer          Fill in a prompt and print it
  tokens     offer          Show what each tool costs in a model's context
  generate   offer          Write a typed Python client for a server
  chat       offer          Talk to a model that uses the tools of your servers
Serve
  serve      serving        Serve all configured servers as one MCP server
  console    serving        Print a link to the web console of the running gateway
  cluster    serving        Show the gateways that act as one
  stats      serving        Show calls, errors, times and clients of the running gateway
  calls      serving        List past calls, or those that match FILTER
  reload     serving        Reload the configuration of running gateways
  restart    serving        Restart a server of the running gateway
  token      trust          Manage the tokens that let clients use the gateway over HTTP
Find problems
  doctor     server         Diagnose problems and say how to fix them
  help       server         Explain a failure code, an error message or a command
  logs       server         Print a server's stderr, or the event log
  trace      server         Print the messages to and from a server as they pass
  config     configuration  Inspect the configuration
Trust
  trust      trust          Review what the project in PATH would run and send, and trust it
  login      server         Log in to a server
  logout     server         Forget the login to a server
  secret     trust          Keep secrets for `${auth:NAME}` in a configuration
  pins       trust          Review tools that changed since they were first seen
  sandbox    trust          Choose how much a server is confined, and what it may use
  policy     trust          Show which calls are allowed, asked about or denied
  audit      trust          Show who called what and what was decided, newest first
Multitap
  demo       serving        Show a hub at work with the bundled servers
  self       configuration  Manage this installation of Multitap
"""


def _read(table: str) -> Mapping[str, Mapping[str, _Command]]:
    sections: dict[str, dict[str, _Command]] = {}
    section: dict[str, _Command] = {}
    for line in table.strip().splitlines():
        if not line.startswith(" "):
            section = sections[line] = {}
            continue
        name, module, words = line.split(maxsplit=2)
        section[name] = _Command(f"multitap.cli.{module}_commands", words)
    return sections


SECTIONS = _read(_TABLE)
COMMANDS: Mapping[str, _Command] = {
    name: home for section in SECTIONS.values() for name, home in section.items()
}


class CommandTable(click.Group):
    """The commands above, each imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        home = COMMANDS.get(cmd_name)
        if home is None:
            return None
        declared = vars(import_module(home.module))
        # `import_`, where Python has the word for itself
        found: click.Command = declared.get(cmd_name) or declared[f"{cmd_name}_"]
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise NoSuchCommand(args[0], possibilities=[*COMMANDS], ctx=ctx)  # suggests a near one
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, home.words) for name, home in section.items()])


@click.group(cls=CommandTable, context_settings=_HELP, invoke_without_command=True)
@config_option
@click.version_option(
    VERSION,
    "-V",
    "--version",
    message="%(prog)s %(version)s",
    help="Print the version",
)
@click.pass_context
def multitap(ctx: click.Context, files: tuple[Path, ...]) -> int | None:
    """Every MCP server you use, in one place

    Without a command, at a terminal: open the screen.
    """
    if ctx.invoked_subcommand is not None:
        return None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        click.echo(ctx.get_help())
        return None
    from multitap.cli.gateways.screen_command import screen

    return screen(CommonOptions(files))
