"""Declares the commands about gateways; see `commands`."""

from pathlib import Path

import click

from multitap.cli.command_group import CommandGroup
from multitap.cli.completion import complete_server
from multitap.cli.exits import Exit
from multitap.cli.options import CommonOptions, json_option, with_config, with_gateway


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
    type=click.Path(path_type=Path),
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
@click.option("--no-console", is_flag=True, help="Serve no web page at /console")
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
    show_envvar=True,
    help="Act as one gateway with all others on this Redis: redis://HOST, rediss://USER:KEY@HOST",
)
@click.option(
    "--cluster-key-file",
    type=click.Path(path_type=Path),
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
def serve(
    options: CommonOptions,
    *,
    http: str | None,
    token_file: Path | None,
    require_token: bool,
    insecure: bool,
    hosts: tuple[str, ...],
    profile: str | None,
    demo: bool,
    no_console: bool,
    workers: int,
    cluster: str | None,
    cluster_key_file: Path | None,
    advertise: str | None,
    labels: tuple[str, ...],
    allow_drift: bool,
) -> int:
    """Serve all configured servers as one MCP server

    Listens on stdio, for a client that starts it, or on HTTP.
    """
    from multitap.cli.gateways.cluster_serving import ClusterOptions
    from multitap.cli.gateways.serve_command import ServeOptions, serve

    joining = ClusterOptions(
        cluster or "", cluster_key_file, labels, advertise, allow_drift=allow_drift
    )
    serving = ServeOptions(
        http,
        token_file,
        insecure,
        hosts,
        require_token,
        profile=profile,
        demo=demo,
        console=not no_console,
        cluster=None if cluster is None else joining,
        workers=workers,
    )
    return serve(options, serving)


@click.command()
@click.option("--open/--no-open", "opens", default=True, help="Open it in a browser")
@with_gateway
def console(options: CommonOptions, *, opens: bool) -> int:
    """Print a link to the web console of the running gateway

    The link works once, in one browser.
    """
    from multitap.cli.gateways.console_command import console

    return console(options, opens=opens)


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
    show_envvar=True,
    help="The Redis that they share",
)
@json_option
def cluster_status(url: str, *, as_json: bool) -> int:
    """Show the replicas, their versions, what each one runs, and what is wrong"""
    from multitap.cli.gateways.cluster_command import cluster_status

    return cluster_status(url, as_json=as_json)


@click.command()
@with_gateway
@json_option
def stats(options: CommonOptions, *, as_json: bool) -> int:
    """Show calls, errors, times and clients of the running gateway"""
    from multitap.cli.gateways.stats_command import stats

    return stats(options, as_json=as_json)


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
def calls(
    options: CommonOptions, words: tuple[str, ...], *, lines: int, show: str | None, as_json: bool
) -> int:
    """List past calls, or those that match FILTER

    FILTER is made of terms such as server:github, tool:list_*, status:error, client:claude*,
    '>500ms', since:10m and words to find. A minus sign excludes: -status:ok.
    """
    from multitap.cli.gateways.calls_command import CallsOptions, calls

    return calls(options, CallsOptions(words, lines, show, as_json))


@click.command()
@with_gateway
@json_option
def reload(options: CommonOptions, *, as_json: bool) -> int:
    """Reload the configuration of running gateways

    Reloads every gateway that has the same configuration files as this command.
    """
    from multitap.cli.gateways.reload_command import reload

    return reload(options, as_json=as_json)


@click.command()
@click.argument("server", shell_complete=complete_server)
@with_gateway
def restart(options: CommonOptions, server: str) -> int:
    """Restart a server of the running gateway"""
    from multitap.cli.gateways.reload_command import restart

    return restart(options, server)


@click.command()
def demo() -> int:
    """Show a hub at work with the bundled servers"""
    from multitap.cli.running import run_async
    from multitap.demo.__main__ import main

    run_async(main)
    return Exit.DONE
