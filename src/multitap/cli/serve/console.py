"""`multitap console`: a link to the page of a running gateway."""

import click

from multitap.cli.browser import open_page
from multitap.cli.configuration import load_configuration
from multitap.cli.options import CommonOptions, gateway_options
from multitap.cli.target import (
    RunningGateway,
    choose_gateway,
    gateways,
    join_background,
    nobody_serves,
)
from multitap.cli.terminal import Exit, note, say
from multitap.config import Loaded


@click.command()
@click.option("--open/--no-open", "opens", default=True, help="Open it in a browser")
@gateway_options
def console(options: CommonOptions, *, opens: bool) -> int:
    """Print a link to the web console of the running gateway

    The link works once, in one browser.
    """
    loaded = load_configuration(options)
    live = choose_gateway(options, loaded) or _only_one(loaded) or join_background(options, loaded)
    if live is None:
        return nobody_serves()
    link = live.console()
    # always printed: the user's browser may be on another machine
    say(link)
    if opens and open_page(link):
        note("opened it in a browser; the link does not work again")
    else:
        note("the link works once, in one browser")
    return Exit.DONE


def _only_one(loaded: Loaded) -> RunningGateway | None:
    """The only gateway over HTTP, whatever its files."""
    running = [live for live in gateways(loaded.state_directory) if live.about.url is not None]
    return running[0] if len(running) == 1 else None
