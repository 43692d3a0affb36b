"""`multitap serve`: serves all servers as one MCP server.

On stdio it is a small relay to the gateway in the background, so it imports little.
"""

import gc
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from multitap.cli.options import FILE, CommonOptions, config_options
from multitap.cli.terminal import Exit, note, null_streams


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `serve`."""

    http: str | None = None
    """`[HOST:]PORT`; empty for the configured address; None to follow the configuration."""
    token_file: Path | None = None
    insecure: bool = False
    hosts: tuple[str, ...] = ()
    require_token: bool = False
    profile: str | None = None
    demo: bool = False
    alone: bool = False
    """Whether it has servers of its own, instead of sharing those of other clients."""
    background: int | None = None
    """For the gateway in the background: the descriptor on which it reports that it listens."""
    edit: bool = False
    """For the gateway in the background: make one change of a client's files instead."""
    console: bool = True
    """Whether the gateway over HTTP has a page for browsers."""
    workers: int = 1
    cluster: str | None = None
    """The address of the cluster's Redis; None for a single gateway."""
    cluster_key_file: Path | None = None
    advertise: str | None = None
    labels: tuple[str, ...] = ()
    allow_drift: bool = False
    cert: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    log_format: Literal["text", "json"] = "text"
    log_levels: Mapping[str, str] = {}


def _log_levels(
    ctx: click.Context, param: click.Parameter, typed: tuple[str, ...]
) -> dict[str, str]:
    from multitap.telemetry.logs import parse_levels  # noqa: PLC0415 - rarely needed

    try:
        return parse_levels(typed)
    except ValueError as exc:
        raise click.BadParameter(str(exc), ctx, param) from None


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
@click.option(
    "--cert", type=FILE, metavar="FILE", help="Use TLS with the certificate in this PEM file"
)
@click.option(
    "--key", type=FILE, metavar="FILE", help="Key of the certificate, if it has a file of its own"
)
@click.option(
    "--client-ca",
    type=FILE,
    metavar="FILE",
    help="Require client certificates that an authority in FILE has signed",
)
@click.option("--profile", metavar="NAME", help="Serve only what this profile shows")
@click.option(
    "--alone",
    is_flag=True,
    envvar="MULTITAP_ALONE",
    help="Start servers of its own, instead of sharing those of other clients"
    "  [env: MULTITAP_ALONE]",
)
@click.option("--background", type=int, metavar="FD", hidden=True)
@click.option("--edit", is_flag=True, hidden=True)
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
@click.option(
    "--allow-drift", is_flag=True, help="Join a cluster although the configuration differs"
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Write the log as lines of text, or as one JSON object per line",
)
@click.option(
    "--log-level",
    "log_levels",
    multiple=True,
    callback=_log_levels,
    metavar="[LOGGER=]LEVEL",
    help="Log from this level on: debug, info, warning (default), error; for one logger, as in"
    " multitap.cluster=debug",
)
@config_options
def serve(options: CommonOptions, **typed: Any) -> int:
    """Serve all configured servers as one MCP server

    Listens on stdio, for a client that starts it, or on HTTP. On stdio, all clients of a user
    share one gateway in the background, which the first one starts.
    """
    serving = ServeOptions(**typed)
    if serving.background is not None:
        _import_without_collector()
        from multitap.cli.serve.background import serve_background  # noqa: PLC0415 - a gateway

        return serve_background(serving.background)
    if serving.edit:
        from multitap.cli.serve.file_editor import edit_once  # noqa: PLC0415 - seldom needed

        return edit_once(options)
    if _is_shared(options, serving) and _relay(options, serving.profile):
        return Exit.DONE
    _import_without_collector()
    from multitap.cli.serve.gateway import serve_here  # noqa: PLC0415 - a gateway

    return serve_here(options, serving)


def _import_without_collector() -> None:
    """Collect no garbage until `tune_memory` switches the collector on again."""
    gc.disable()  # imports leave no garbage, and looking for it takes a tenth of a start's CPU time


def _is_shared(options: CommonOptions, serving: ServeOptions) -> bool:
    """Whether a client may share the servers of others: nothing is asked that is only its own."""
    own = ServeOptions(profile=serving.profile)
    # what is trusted for one run must not be used by another one
    is_plain = serving == own and not options.trust
    # without a client's pipes there is nothing to relay, and the gateway itself says so
    return is_plain and not sys.stdin.isatty() and not null_streams()


def _relay(options: CommonOptions, profile: str | None) -> bool:
    """Relay to the gateway in the background; False if the configuration does not allow it."""
    from multitap.control.joining import JoinRequest, join  # noqa: PLC0415 - only on stdio
    from multitap.control.relay import relay  # noqa: PLC0415 - the same

    request = JoinRequest(
        folder=str(Path.cwd()),
        files=tuple(map(str, options.files)),
        dialect=options.dialect,
        profile=profile,
    )
    joined = join(request, starts=True)
    if joined is None or joined.reply.is_alone:
        return False
    for line in joined.reply.notes:
        note(line)
    relay(request, joined)
    return True
