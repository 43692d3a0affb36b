"""Declares the commands about gateways; see `commands`."""

import click

from multitap.cli.completion import complete_server
from multitap.cli.exits import Exit
from multitap.cli.options import (
    FILE,
    CommandGroup,
    json_option,
    runs,
    with_config,
    with_gateway,
)


@click.command()
@click.option(
    "--http",
    is_flag=False,
    flag_value="",
    metavar="[[HOST:]PORT]",
    help="Listen on HTTP instead of stdio; default address: 127.0.0.1:3000",
)
@click.option(
    "--token-file",
    type=FILE,
    metavar="FILE",
    help="Require a bearer token from FILE or from `multitap token`",
)
@click.option("--require-token", is_flag=True, help="Require a token on this machine, too")
@click.option("--insecure", is_flag=True, help="Accept every client without a token")
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="Also accept this Host name"
)
@click.option("--profile", metavar="NAME", help="Serve only what this profile shows")
@click.option("--demo", is_flag=True, help="Serve the bundled example servers")
@click.option(
    "--no-console", "console", flag_value=False, default=True, help="Serve no web page at /console"
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    metavar="N",
    help="Use N processes on this machine, as one gateway",
)
@click.option(
    "--cluster",
    metavar="URL",
    envvar="MULTITAP_CLUSTER",
    help="Act as one gateway with all others on this Redis: redis://HOST, rediss://USER:KEY@HOST"
    "  [env: MULTITAP_CLUSTER]",
)
@click.option(
    "--cluster-key-file",
    type=FILE,
    metavar="FILE",
    help="Key that all replicas share; by default the cluster creates one",
)
@click.option(
    "--advertise", metavar="HOST:PORT", help="Address at which other replicas reach this one"
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    help="Run servers whose `placement` asks for this label",
)
@click.option("--allow-drift", is_flag=True, help="Join a cluster with another configuration")
@with_config
@runs("gateways.serve_command.serve", given_as="ServeOptions")
def serve() -> None:
    """Serve all configured servers as one MCP server

    Listens on stdio, for a client that starts it, or on HTTP.
    """


@click.command()
@click.option("--open/--no-open", "opens", default=True, help="Open it in a browser")
@with_gateway
@runs("gateways.console_command.console")
def console() -> None:
    """Print a link to the web console of the running gateway

    The link works once, in one browser.
    """


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Show the gateways that act as one"""


@cluster.command("status")
@click.option(
    "--cluster",
    "url",
    metavar="URL",
    required=True,
    envvar="MULTITAP_CLUSTER",
    help="The Redis that they share  [env: MULTITAP_CLUSTER]",
)
@json_option
@runs("gateways.cluster_command.cluster_status")
def cluster_status() -> None:
    """Show the replicas, their versions, what each one runs, and what is wrong"""


@click.command()
@with_gateway
@json_option
@runs("gateways.stats_command.stats")
def stats() -> None:
    """Show calls, errors, times and clients of the running gateway"""


@click.command()
@click.argument("words", nargs=-1, metavar="[FILTER]...")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    metavar="N",
    help="Only the last N calls",
)
@click.option("--show", metavar="ID", help="Print the request and response of a recorded call")
@with_config
@json_option
@runs("gateways.calls_command.calls")
def calls() -> None:
    """List past calls, or those that match FILTER

    FILTER is made of terms such as server:github, tool:list_*, status:error, client:claude*,
    '>500ms', since:10m and words to find. A minus sign excludes: -status:ok.
    """


@click.command()
@with_gateway
@json_option
@runs("gateways.reload_command.reload")
def reload() -> None:
    """Reload the configuration of running gateways

    Reloads every gateway that has the same configuration files as this command.
    """


@click.command()
@click.argument("server", shell_complete=complete_server)
@with_gateway
@runs("gateways.reload_command.restart")
def restart() -> None:
    """Restart a server of the running gateway"""


@click.command()
def demo() -> int:
    """Show a hub at work with the bundled servers"""
    from multitap.cli.running import run_async
    from multitap.demo.__main__ import main

    run_async(main)
    return Exit.DONE
