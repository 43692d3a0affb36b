"""The program: its commands, how one is run, and what its failures become."""

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.exceptions import NoArgsIsHelpError, NoSuchCommand

from multitap.cli.signals import Terminated, on_signal, stop
from multitap.cli.terminal import Exit, complain, drop_lost_output, exit_for, quote_last_lines
from multitap.errors import MultitapError, Unavailable
from multitap.version import VERSION

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_HELP = {"help_option_names": ["-h", "--help"]}


class _Command(NamedTuple):
    """Where a command is, and its line in a list of commands."""

    module: str
    summary: str


# A command's own file takes longer to import than a small one to run, and there are dozens: lists
# and completion need only these lines. A section has a folder of its name, a command the file in
# the second column. They are in the order in which users need them.
_TABLE = """
Set up
  import     import_    Import the servers of other clients
  search     search     Find servers to add, in the catalog and the registry
  add        add        Add a server
  install    install    Add Multitap to other clients
  uninstall  install    Remove Multitap from other clients
  export     export     Write your servers in another client's format
  self       self       Manage this installation of Multitap
Change
  enable     enable     Enable servers
  disable    enable     Disable servers, and keep their entries
  rename     rename     Rename a server, also where profiles and agents mention it
  set        set        Change settings of a server
  remove     remove     Remove servers
  undo       undo       Undo the last change to files
Use
  status     status     Show the state of each server
  tools      tools      List the tools, or those that match PATTERN
  call       call       Call a tool
  tasks      tasks      List calls that run by themselves, or print the result of one
  resources  resources  List the resources and resource templates
  read       resources  Print a resource
  prompts    prompts    List the prompts and their arguments
  prompt     prompts    Fill in a prompt and print it
  tokens     tokens     Show what each tool costs in a model's context
  generate   generate   Write a typed Python client for a server
  chat       chat       Talk to a model that uses the tools of your servers
  demo       demo       Show a hub at work with the bundled servers
Serve
  serve      serve      Serve all configured servers as one MCP server
  console    console    Print a link to the web console of the running gateway
  cluster    cluster    Show the gateways of a cluster
  stats      stats      Show calls, errors, times and clients of the running gateway
  calls      calls      List past calls, or those that match FILTER
  reload     reload     Reload the configuration of running gateways
  restart    reload     Restart a server of the running gateway, or the gateway itself
  stop       reload     Stop the gateway in the background
  token      token      Manage the tokens that let clients use the gateway over HTTP
Problems
  doctor     doctor     Diagnose problems and say how to fix them
  help       help       Explain a failure code, an error message or a command
  logs       logs       Print a server's stderr, or the event log
  trace      trace      Print the messages to and from a server as they pass
  config     config     Inspect the configuration
  state      state      Back up configuration and state, restore and check them
Trust
  trust      trust      Review what the project in PATH would run and send, and trust it
  login      login      Log in to a server
  logout     login      Forget the login to a server
  secret     secret     Store secrets for `${auth:NAME}` in a configuration
  vault      vault      Show the accounts that people connected, and change their key
  pins       pins       Review tools that changed since they were first seen
  sandbox    sandbox    Choose how strictly a server is confined, and what it may use
  policy     policy     Show which calls are allowed, asked about or denied
  access     access     Show who may use a shared gateway, and why; revoke access
  audit      audit      Show who called what and what was decided, newest first
"""


def _read(table: str) -> Mapping[str, Mapping[str, _Command]]:
    sections: dict[str, dict[str, _Command]] = {}
    section: dict[str, _Command] = {}
    folder = ""
    for line in table.strip().splitlines():
        if not line.startswith(" "):
            section = sections[line] = {}
            folder = line.lower().replace(" ", "_")
            continue
        name, file, summary = line.split(maxsplit=2)
        section[name] = _Command(f"multitap.cli.{folder}.{file}", summary)
    return sections


SECTIONS = _read(_TABLE)
COMMANDS: Mapping[str, _Command] = {
    name: command for section in SECTIONS.values() for name, command in section.items()
}
EVERYDAY = (
    *("import", "search", "add", "install", "status", "tools", "call", "chat", "serve"),
    *("doctor", "login", "trust"),
)
"""The commands that `--help` shows; with the rest it fills a terminal of 24 lines."""
ALIASES = {"list": "status", "ls": "status", "ps": "status", "rm": "remove"}
"""Names of commands in other programs; no list shows them."""


@click.command("version", hidden=True)
def _version() -> None:
    """Print the version"""
    click.echo(f"multitap {VERSION}")


class LazyGroup(click.Group):
    """The commands of the table, each imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name == _version.name:
            return _version
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        names = vars(import_module(COMMANDS[cmd_name].module))
        # `import_`, where Python has the word for itself
        command: click.Command = names.get(f"{cmd_name}_") or names[cmd_name]
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        typed = args[0]
        names = {*COMMANDS, *ALIASES, _version.name}
        if typed not in names and not typed.startswith("-") and not ctx.resilient_parsing:
            raise NoSuchCommand(typed, possibilities=COMMANDS, ctx=ctx)  # suggests near ones
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NoArgsIsHelpError as exc:  # a group alone; here, because click handles a closed pipe
            click.echo(exc.format_message())
            return Exit.DONE

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only a shell asks

        # click's own imports every command that fits, for its help
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=COMMANDS[name].summary) for name in names]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section(f"Commands (`multitap help commands` lists all {len(COMMANDS)})"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in EVERYDAY])


@click.group(cls=LazyGroup, context_settings=_HELP, invoke_without_command=True)
@click.option(
    "-c",
    "--config",
    "files",
    type=click.Path(readable=False, path_type=Path),  # reported better by the command
    multiple=True,
    metavar="FILE",
    help="Use only FILE; any client's format  [env: MULTITAP_CONFIG]",
)
@click.version_option(
    VERSION,
    "-V",
    "--version",
    message="%(prog)s %(version)s",
    help="Print the version",
)
@click.pass_context
def multitap(ctx: click.Context, files: tuple[Path, ...]) -> int | None:
    """Every MCP server you use, in one place; without a command, open the screen"""
    if ctx.invoked_subcommand is not None:
        return None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        click.echo(ctx.get_help())
        return None
    from multitap.cli.options import CommonOptions  # noqa: PLC0415 - not for `--help`
    from multitap.cli.serve.screen import screen  # noqa: PLC0415 - a whole program

    return screen(CommonOptions(files=files))


def start() -> None:
    """Run the command that was typed, and exit."""
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # replacement characters are better than a traceback
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run the command of these arguments; returns the exit code.

    Raises:
        Terminated: SIGTERM or SIGHUP ended it; it has the exit code too.
    """
    try:
        with on_signal(stop):
            code = multitap.main([*arguments], "multitap", standalone_mode=False) or Exit.DONE
            sys.stdout.flush()
    except click.UsageError as exc:
        code = _explain_usage(exc)
    except click.ClickException as exc:
        complain(_words(exc))
        code = Exit.FAILED
    except MultitapError as exc:
        if isinstance(exc, Unavailable) and _is_server_typed(arguments):
            _explain_typed(exc)
        else:
            complain(str(exc), exc.hint)
        code = exit_for(exc)
    except Terminated:
        # a stopped gateway exits with 0, even if it was stopped before it began
        if _command(arguments) != "serve":
            raise
        code = Exit.DONE
    except (KeyboardInterrupt, click.Abort):
        code = Exit.INTERRUPTED
    except OSError as exc:
        if exc.errno not in _FULL:
            raise
        drop_lost_output()
        complain(f"the output cannot be written: {exc.strerror}")
        code = Exit.FAILED
    return code


def _explain_usage(exc: click.UsageError) -> Exit:
    complain(_words(exc), _advice(exc))
    return Exit.USAGE


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Why a write fails that was right: the disk, the quota or the terminal is at an end."""


def _command(arguments: Sequence[str]) -> str:
    """The name of the typed command; empty if there is none."""
    return next((argument for argument in arguments if argument in COMMANDS), "")


def _is_server_typed(arguments: Sequence[str]) -> bool:
    """Whether the only server was typed."""
    return any(word == "--" or word.startswith("--url") for word in arguments)


def _explain_typed(exc: Unavailable) -> None:
    """Show the server's stderr, because its log is not kept."""
    # other commands cannot find the server, because no file has it
    complain(str(exc), None if "`multitap " in (exc.hint or "") else exc.hint)
    quote_last_lines(exc.failure.stderr if exc.failure else "")


def _open_missing_streams() -> None:
    """Open the null device for a closed standard stream, as after `<&-`.

    Otherwise the next opened file takes its descriptor, and gets the stream's data.
    """
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, mode, encoding="utf-8", closefd=False))


def _words(exc: click.ClickException) -> str:
    """Click's message in our style."""
    text = (exc.message if isinstance(exc, _MISSPELT) else exc.format_message()).rstrip(".")
    return text[:1].lower() + text[1:]


def _advice(exc: click.UsageError) -> str:
    path = exc.ctx.command_path if exc.ctx else "multitap"
    if isinstance(exc, NoSuchCommand) and exc.possibilities:
        return f"did you mean {_likeliest(exc.command_name, exc.possibilities)!r}?"
    if isinstance(exc, click.NoSuchOption) and exc.possibilities:
        return f"did you mean {exc.possibilities[0]!r}?"
    return f"run `{path} --help` for usage"


def _likeliest(typed: str, near: Sequence[str]) -> str:
    """The command that was meant: two letters swapped, then an everyday one, then the nearest."""
    return min(near, key=lambda name: (sorted(name) != sorted(typed), name not in EVERYDAY))


_MISSPELT = (click.NoSuchCommand, click.NoSuchOption)
