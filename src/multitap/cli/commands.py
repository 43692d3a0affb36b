"""Every command with its options; what it does is imported when it is run."""

from pathlib import Path

import click

from multitap.cli.asked import (
    Asked,
    config_option,
    json_option,
    live_option,
    no_live_option,
    with_config,
    with_either,
    with_gateway,
    with_servers,
)
from multitap.cli.completion import complete_server, complete_tool
from multitap.cli.exits import Exit
from multitap.cli.stopping import Terminated
from multitap.version import VERSION

_HELP = {"help_option_names": ["-h", "--help"]}


class Ordered(click.Group):
    """A group that lists its commands in the order in which a person comes to need them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [*self.commands]


@click.group(cls=Ordered, context_settings=_HELP, invoke_without_command=True)
@config_option
@click.version_option(
    VERSION,
    "-V",
    "--version",
    message="%(prog)s %(version)s",
    help="Print the version",
)
@click.pass_context
def multitap(ctx: click.Context, files: tuple[Path, ...]) -> None:  # noqa: ARG001 - see `asked`
    """Every MCP server you use, in one place"""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@multitap.command()
@click.option(
    "--http",
    is_flag=False,
    flag_value="",
    metavar="[[HOST:]PORT]",
    help="Listen there instead of on the own pipes; at 127.0.0.1:3000 if not given",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Let only clients in that have a bearer token of this file",
)
@click.option("--insecure", is_flag=True, help="Let other machines in without a token")
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="Be called by this name too"
)
@click.option("--profile", metavar="NAME", help="Show only what this profile shows")
@click.option("--demo", is_flag=True, help="Serve the bundled example servers")
@with_config
def serve(
    asked: Asked,
    *,
    http: str | None,
    token_file: Path | None,
    insecure: bool,
    hosts: tuple[str, ...],
    profile: str | None,
    demo: bool,
) -> int:
    """Be one MCP server that has everything of all of them

    Speaks on its own pipes, as a client that starts it expects, or over HTTP.
    """
    try:
        from multitap.cli.serve import Serving, serve

        return serve(asked, Serving(http, token_file, insecure, hosts, profile, demo))
    except Terminated:
        return Exit.DONE  # it serves until it is told to stop


@multitap.command()
@with_either
@json_option
def status(asked: Asked, *, as_json: bool) -> int:
    """Say how each server is doing

    A running gateway with the same files is asked, if there is one.
    """
    from multitap.cli.status import status

    return status(asked, as_json=as_json)


@multitap.command()
@click.argument("pattern", required=False)
@click.option("-s", "--server", shell_complete=complete_server, help="Only tools of this server")
@click.option("--schema", is_flag=True, help="Show what each tool takes")
@with_either
@json_option
def tools(
    asked: Asked, pattern: str | None, *, server: str | None, schema: bool, as_json: bool
) -> int:
    """List the tools, those with PATTERN in name or description

    PATTERN may be a shell-style glob, which the whole name has to fit. A running gateway with the
    same files is asked, if there is one.
    """
    from multitap.cli.tools import tools

    return tools(asked, pattern, server=server, schema=schema, as_json=as_json)


@multitap.command()
@click.argument("name", shell_complete=complete_tool)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE | KEY:=JSON | JSON | -]...")
@click.option("--full", is_flag=True, help="Print a long result to its end")
@click.option(
    "--save", type=click.Path(path_type=Path), metavar="DIR", help="Save images and files there"
)
@with_either
@json_option
def call(
    asked: Asked,
    name: str,
    arguments: tuple[str, ...],
    *,
    full: bool,
    save: Path | None,
    as_json: bool,
) -> int:
    """Call a tool

    KEY=VALUE is understood as the tool's schema says; KEY=@FILE takes the value from a file,
    KEY:=JSON is JSON whatever the schema says. A key given several times makes a list. A JSON
    object, or - for one on standard input, gives all arguments at once.
    """
    from multitap.cli.call import Show, call

    return call(asked, name, arguments, Show(full=full, save=save, as_json=as_json))


@multitap.command()
@click.argument("pattern", required=False)
@click.option("-s", "--server", shell_complete=complete_server, help="Only those of this server")
@with_either
@json_option
def resources(asked: Asked, pattern: str | None, *, server: str | None, as_json: bool) -> int:
    """List the resources and resource templates"""
    from multitap.cli.resources import resources

    return resources(asked, pattern, server=server, as_json=as_json)


@multitap.command()
@click.argument("uri")
@click.option("-s", "--server", shell_complete=complete_server, help="Where several have the same")
@click.option("--save", type=click.Path(path_type=Path), metavar="DIR", help="Save it there")
@with_either
@json_option
def read(asked: Asked, uri: str, *, server: str | None, save: Path | None, as_json: bool) -> int:
    """Print a resource"""
    from multitap.cli.resources import read

    return read(asked, uri, server=server, save=save, as_json=as_json)


@multitap.command()
@click.argument("pattern", required=False)
@click.option("-s", "--server", shell_complete=complete_server, help="Only those of this server")
@with_either
@json_option
def prompts(asked: Asked, pattern: str | None, *, server: str | None, as_json: bool) -> int:
    """List the prompts and what they take"""
    from multitap.cli.prompts import prompts

    return prompts(asked, pattern, server=server, as_json=as_json)


@multitap.command()
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@with_either
@json_option
def prompt(asked: Asked, name: str, arguments: tuple[str, ...], *, as_json: bool) -> int:
    """Fill in a prompt

    KEY=@FILE takes the value from a file.
    """
    from multitap.cli.prompts import prompt

    return prompt(asked, name, arguments, as_json=as_json)


@multitap.group(cls=Ordered)
def config() -> None:
    """Look at the configuration"""


@config.command()
@with_config
@json_option
def check(asked: Asked, *, as_json: bool) -> int:
    """Say what is wrong with the configuration, and where

    Ends with 3 if there are errors or warnings.
    """
    from multitap.cli.configuration import check

    return check(asked, as_json=as_json)


@config.command()
@click.argument("server", required=False, shell_complete=complete_server)
@with_config
@json_option
def show(asked: Asked, server: str | None, *, as_json: bool) -> int:
    """Show what is in force, of all files together and with secrets masked"""
    from multitap.cli.configuration import show

    return show(asked, server, as_json=as_json)


@config.command()
@click.argument("server", required=False, shell_complete=complete_server)
@with_config
@json_option
def explain(asked: Asked, server: str | None, *, as_json: bool) -> int:
    """Show where each value of a server is written, and what it overrode

    Without a server: those of the hub itself.
    """
    from multitap.cli.configuration import explain

    return explain(asked, server, as_json=as_json)


@config.command()
def schema() -> int:
    """Print the JSON Schema of multitap.toml, for editors"""
    from multitap.cli.configuration import schema

    return schema()


@multitap.command()
@click.argument("server", required=False, shell_complete=complete_server)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes from now on")
@click.option("-n", "--lines", type=click.IntRange(min=0), help="Only the last so many lines")
@live_option
@no_live_option
@with_config
@click.option("--json", "as_json", is_flag=True, help="Print what happens as lines of JSON")
def logs(
    asked: Asked, server: str | None, *, follow: bool, lines: int | None, as_json: bool
) -> int:
    """Print what a server wrote to its standard error

    With -f, what happens to it at a running gateway is told too: what it logs, its states, calls.
    Without SERVER, that of all servers.
    """
    if not follow and (server is None or as_json):
        raise click.UsageError("name a server, or say -f to follow the gateway")
    from multitap.cli.logs import Wanted, logs

    return logs(asked, server, Wanted(follow, lines, as_json))


@multitap.command()
@with_gateway
@json_option
def stats(asked: Asked, *, as_json: bool) -> int:
    """Count calls, errors, times and clients of the running gateway"""
    from multitap.cli.stats import stats

    return stats(asked, as_json=as_json)


@multitap.command()
@click.argument("server", required=False, shell_complete=complete_server)
@with_servers
@json_option
def doctor(asked: Asked, server: str | None, *, as_json: bool) -> int:
    """Find out what is wrong, and what to do about it

    Lazy servers are started too.
    """
    from multitap.cli.doctor import doctor

    return doctor(asked, server, as_json=as_json)


@multitap.command()
@with_gateway
@json_option
def reload(asked: Asked, *, as_json: bool) -> int:
    """Have running gateways read their files anew

    All that have the same files as this command.
    """
    from multitap.cli.reload import reload

    return reload(asked, as_json=as_json)


@multitap.command()
@click.argument("server", shell_complete=complete_server)
@with_gateway
def restart(asked: Asked, server: str) -> int:
    """Have the running gateway start a server anew"""
    from multitap.cli.reload import restart

    return restart(asked, server)


@multitap.command()
def demo() -> int:
    """Show a hub at work on bundled servers"""
    from multitap.cli.demo import demo

    return demo()
