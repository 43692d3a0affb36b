"""Declares the commands about servers: state, logs, diagnosis; see `commands`."""

import click

from multitap.cli.completion import complete_code, complete_server
from multitap.cli.options import (
    ServerCommand,
    json_option,
    live_option,
    no_live_option,
    runs,
    with_config,
    with_either,
    with_project,
    with_servers,
)


@click.command(cls=ServerCommand)
@with_either
@json_option
@runs("servers.status_command.status")
def status() -> None:
    """Show the state of each server

    Asks a running gateway with the same configuration files, if there is one.
    """


@click.command()
@click.argument("server", required=False, shell_complete=complete_server)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines")
@click.option(
    "--filter",
    "filter",
    metavar="FILTER",
    help="Print events that match, as in `multitap calls`; also level:warning and kind:state",
)
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines"
)
@live_option
@no_live_option
@with_config
@click.option("--json", "as_json", is_flag=True, help="Print events as lines of JSON")
@runs("servers.logs_command.logs", given_as="LogsOptions")
def logs() -> None:
    """Print a server's stderr, or the event log

    With --filter, print past events instead: log messages, state changes and calls. With -f, also
    print events at a running gateway as they happen. Without SERVER, follow all servers.
    """


@click.command(cls=ServerCommand)
@click.argument("words", nargs=-1, metavar="[SERVER] [TOOL [ARGUMENTS]...]")
@click.option("--full", is_flag=True, help="Print long messages in full")
@with_either
@click.option("--json", "as_json", is_flag=True, help="Print messages as lines of JSON")
@runs("offers.trace_command.trace")
def trace() -> None:
    """Print the messages to and from a server as they pass

    Follows a running gateway with the same configuration files until Ctrl-C. Without one, starts
    the server, calls TOOL if one is given, and ends. After a COMMAND, SERVER is left out.
    """


@click.command(cls=ServerCommand)
@click.argument("server", required=False, shell_complete=complete_server)
@with_servers
@json_option
@runs("servers.doctor_command.doctor")
def doctor() -> None:
    """Diagnose problems and say how to fix them

    Starts lazy servers too.
    """


@click.command()
@click.argument("name", metavar="SERVER", shell_complete=complete_server)
@click.option(
    "--no-browser",
    "browser",
    flag_value=False,
    default=True,
    help="Print the address to visit, and read the one it leads to",
)
@click.option("--scope", metavar="SCOPES", help="Ask for these rights, separated by spaces")
@with_project
@runs("servers.login_command.login")
def login() -> None:
    """Log in to a server

    Opens a browser, and waits until you have agreed there. The login is kept, renewed when it
    expires, and used by running gateways at once.
    """


@click.command()
@click.argument("name", metavar="SERVER", shell_complete=complete_server)
@click.option("--revoke", is_flag=True, help="Also revoke the tokens at the authorization server")
@with_config
@runs("servers.login_command.logout")
def logout() -> None:
    """Forget the login to a server"""


@click.command(name="help")
@click.argument("words", nargs=-1, metavar="[CODE|MESSAGE|COMMAND]", shell_complete=complete_code)
def help_(words: tuple[str, ...]) -> int | None:
    """Explain a failure code, an error message or a command

    Works without a network. Without an argument, list all codes.
    """
    from multitap.cli.commands import COMMANDS, multitap
    from multitap.cli.servers.help_command import explain, explanations

    # a code wins: `multitap COMMAND --help` is another way to the rest
    if words and words[0] in COMMANDS and words[0] not in {one.code for one in explanations()}:
        help_words = [*words, "--help"]
        return multitap.main(help_words, "multitap", standalone_mode=False)  # type: ignore[no-any-return]
    return explain(" ".join(words) or None)
