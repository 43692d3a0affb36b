"""`multitap console`: a link to the page of a running gateway."""

from multitap.cli.configuration.chosen_configuration import load_configuration
from multitap.cli.exits import Exit
from multitap.cli.gateways.running_gateways import (
    RunningGateway,
    choose_gateway,
    gateways,
    nobody_serves,
)
from multitap.cli.options import CommonOptions
from multitap.cli.terminal.browser import open_page
from multitap.cli.terminal.output import note, say
from multitap.config import Loaded


def console(options: CommonOptions, *, opens: bool) -> int:
    """Print a new link, and open it if there is a browser."""
    loaded = load_configuration(options)
    live = choose_gateway(options, loaded) or _only_one(loaded)
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
    found = [live for live in gateways(loaded) if live.about.url is not None]
    return found[0] if len(found) == 1 else None
