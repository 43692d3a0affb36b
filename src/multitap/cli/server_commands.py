"""Declares the commands about servers: state, logs, diagnosis; see `commands`."""

import click

from multitap.cli.completion import complete_code, complete_server
from multitap.cli.options import (
    CommonOptions,
    ServerCommand,
    json_option,
    live_option,
    no_live_option,
    with_config,
    with_either,
    with_servers,
)


@click.command(cls=ServerCommand)
@with_either
@json_option
def status(options: CommonOptions, *, as_json: bool) -> int:
    """Show the state of each server

    Asks a running gateway with the same configuration files, if there is one.
    """
    from multitap.cli.servers.status_command import status

    return status(options, as_json=as_json)


@click.command()
@click.argument("server", required=False, shell_complete=complete_server)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines")
@click.option(
    "--filter",
    "text",
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
def logs(
    options: CommonOptions,
    server: str | None,
    *,
    follow: bool,
    text: str | None,
    lines: int | None,
    as_json: bool,
) -> int:
    """Print what a server wrote to stderr, or what happened

    With --filter, print past events instead: log messages, state changes and calls. With -f, also
    print events at a running gateway as they happen. Without SERVER, follow all servers.
    """
    if not follow and text is None and (server is None or as_json):
        raise click.UsageError("name a server, or use -f or --filter to see what happens")
    from multitap.cli.servers.logs_command import LogsOptions, logs

    return logs(options, server, LogsOptions(follow, lines, as_json, text))


@click.command(cls=ServerCommand)
@click.argument("words", nargs=-1, metavar="[SERVER] [TOOL [ARGUMENTS]...]")
@click.option("--full", is_flag=True, help="Print long messages in full")
@with_either
@click.option("--json", "as_json", is_flag=True, help="Print messages as lines of JSON")
def trace(options: CommonOptions, words: tuple[str, ...], *, full: bool, as_json: bool) -> int:
    """Print the messages to and from a server as they pass

    Follows a running gateway with the same configuration files until Ctrl-C. Without one, starts
    the server, calls TOOL if one is given, and ends. After a COMMAND, SERVER is left out.
    """
    server = None
    if options.typed is None:
        if not words:
            raise click.UsageError("Missing argument 'SERVER'.")
        server, words = words[0], words[1:]
    from multitap.cli.offers.trace_command import TraceOptions, trace

    tool, arguments = (words[0], words[1:]) if words else (None, ())
    return trace(options, TraceOptions(server, tool, arguments, full, as_json))


@click.command(cls=ServerCommand)
@click.argument("server", required=False, shell_complete=complete_server)
@with_servers
@json_option
def doctor(options: CommonOptions, server: str | None, *, as_json: bool) -> int:
    """Diagnose problems and say how to fix them

    Starts lazy servers too.
    """
    from multitap.cli.servers.doctor_command import doctor

    return doctor(options, server, as_json=as_json)


@click.command()
@click.argument("server", shell_complete=complete_server)
@click.option(
    "--no-browser", is_flag=True, help="Print the address to visit, and read the one it leads to"
)
@click.option("--scope", metavar="SCOPES", help="Ask for these rights, separated by spaces")
@with_config
def login(options: CommonOptions, server: str, *, no_browser: bool, scope: str | None) -> int:
    """Log in to a server

    Opens a browser, and waits until you have agreed there. The login is kept, renewed when it
    expires, and used by running gateways at once.
    """
    from multitap.cli.servers.login_command import login

    return login(options, server, browser=not no_browser, scope=scope)


@click.command()
@click.argument("server", shell_complete=complete_server)
@click.option("--revoke", is_flag=True, help="Also revoke the tokens at the authorization server")
@with_config
def logout(options: CommonOptions, server: str, *, revoke: bool) -> int:
    """Forget the login to a server"""
    from multitap.cli.servers.login_command import logout

    return logout(options, server, revoke=revoke)


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
