"""`multitap pins`: shows tools as first seen, and what has changed since."""

import sys
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from multitap.cli.completion import complete_server
from multitap.cli.configuration import explain_emptiness, load_configuration, require
from multitap.cli.options import (
    CommandGroup,
    CommonOptions,
    config_options,
    gateway_or_server_options,
    json_option,
)
from multitap.cli.target import Target
from multitap.cli.terminal import Colour, Exit, advise, colour_text, note, say, say_json, table
from multitap.cli.use.listing import mention
from multitap.cli.use.status import server_lines
from multitap.config import Loaded, ServerConfig
from multitap.errors import UnknownName, counted
from multitap.printable import printable
from multitap.trust.pin_review import ServerReview, accept, difference, refuse, reset, reviews
from multitap.trust.pins import LockPlaces, pin_mode, places_of
from multitap.trust.scanner import scan

_COLOURS: dict[str, Colour] = {"+": "green", "-": "red"}


@click.group(cls=CommandGroup)
def pins() -> None:
    """Review tools that changed since they were first seen"""


@pins.command("list")
@click.argument("server", required=False, shell_complete=complete_server)
@config_options
@json_option
def list_pins(options: CommonOptions, server: str | None, *, as_json: bool) -> int:
    """List what is pinned, without starting a server"""
    loaded, servers = _choose_servers(options, server)
    places = places_of(loaded.search)
    pinned = {review.server: review for review in reviews(places, servers)}
    if as_json:
        say_json(
            [_describe(places, *server_, pinned.get(server_[0])) for server_ in servers.items()]
        )
        return Exit.DONE
    rows = [(name, pin_mode(config), *_cells(pinned.get(name))) for name, config in servers.items()]
    if rows:
        table(("SERVER", "PIN", "TOOLS", "PACKAGE", "NOTE"), rows, right=("TOOLS",))
    explain_emptiness(loaded)
    _point_out([review for review in pinned.values() if review.is_due])
    return Exit.DONE


@pins.command("review")
@click.argument("server", required=False, shell_complete=complete_server)
@click.option("--accept", "accepting", is_flag=True, help="Accept all changes that are shown")
@gateway_or_server_options
@json_option
def review_pins(
    options: CommonOptions, server: str | None, *, accepting: bool, as_json: bool
) -> int:
    """Show what changed, and accept it

    Asks on a terminal; elsewhere it only shows, unless --accept is given. Exits with code 1 if
    changes remain.
    """
    loaded, servers = _choose_servers(options, server)
    places = places_of(loaded.search)
    # looking at the servers records what they offer now
    target = Target(options, loaded)
    state = target.look(lambda control: control.state(), server=server)
    due = [review for review in reviews(places, servers) if review.is_due]
    for line in server_lines(target, state):
        if line.name in servers:
            # what was seen earlier can be reviewed without the server
            mention(line, alone=server is not None and not due, done="compared")
    if as_json:
        say_json([_difference_of(review, tool) for review in due for tool in review.pins.waiting])
    elif not due:
        note("everything is as pinned")
    left = [review for review in due if not _reviewed(places, review, accepting, as_json)]
    if left and not as_json:
        _point_out(left)
    return Exit.FAILED if left else Exit.DONE


@pins.command("reset")
@click.argument("server", shell_complete=complete_server)
@config_options
def reset_pins(options: CommonOptions, server: str) -> int:
    """Forget the pins of a server, so that its next list is pinned"""
    loaded, servers = _choose_servers(options, server)
    if not reset(places_of(loaded.search), server, servers[server]):
        raise UnknownName(f"nothing is pinned for {server!r}", hint="`multitap pins list` shows it")
    note(f"forgot the pins of {server!r}; its next list of tools is pinned")
    return Exit.DONE


def _choose_servers(
    options: CommonOptions, server: str | None
) -> tuple[Loaded, dict[str, ServerConfig]]:
    loaded = load_configuration(options)
    if server is not None:
        require(loaded, server)
    elif not loaded.settings.servers:
        loaded.check()
    servers = loaded.settings.servers.items()
    return loaded, {name: config for name, config in servers if server in {None, name}}


def _reviewed(places: LockPlaces, review: ServerReview, accepting: bool, as_json: bool) -> bool:  # noqa: FBT001 - its only caller passes what it has
    """Show one server's differences; returns whether they are accepted."""
    if not as_json:
        for line in _show(review):
            say(line)
    if not accepting:
        if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            return False
        if not click.confirm(f"Accept these changes of {printable(review.server)}?", err=True):
            refuse(review)
            return False
    accept(places, review)
    count = counted(len(review.pins.waiting), "change")
    note(f"accepted {count} of {review.server!r} as shown")
    return True


def _show(review: ServerReview) -> Iterator[str]:
    if (now := review.pins.pending_package) is not None:
        yield f"{printable(review.server)}: package {review.pins.package} is now {now}"
    for tool, pin in review.pins.waiting.items():
        before = review.before(tool)
        what = "changed" if before else "new"
        yield f"{printable(review.server)}: {printable(tool)} ({what})"
        for line in difference(before, pin):
            yield f"  {colour_text(line, _COLOURS.get(line[:1]), sys.stdout)}"
        for finding in scan(pin.definition or {}):
            yield f"  {colour_text('!', 'yellow', sys.stdout)} {finding.words}"


def _difference_of(review: ServerReview, tool: str) -> dict[str, Any]:
    before, now = review.before(tool), review.pins.waiting[tool]
    return {
        "server": review.server,
        "tool": tool,
        "change": "changed" if before else "new",
        "before": before and before.definition,
        "after": now.definition,
        "sha256": now.sha256,
        "findings": [finding.words for finding in scan(now.definition or {})],
    }


def _describe(
    places: LockPlaces, server: str, config: ServerConfig, review: ServerReview | None
) -> dict[str, Any]:
    own, project = places.of(config)
    pins = review and review.pins
    return {
        "server": server,
        "pin": pin_mode(config),
        "lock": str((project or own).path),
        "package": msgspec.to_builtins(pins and pins.package),
        "tools": {raw: pin.sha256 for raw, pin in pins.tools.items()} if pins else {},
        "pending": sorted(pins.waiting) if pins else [],
    }


def _cells(review: ServerReview | None) -> tuple[str, str, str]:
    if review is None:
        return "-", "-", "not seen yet"
    pins = review.pins
    waiting = len(pins.waiting) + bool(pins.pending_package)
    return (
        str(len(pins.tools)),
        str(pins.package) if pins.package else "-",
        f"{waiting} to review" if waiting else "as pinned",
    )


def _point_out(due: list[ServerReview]) -> None:
    if due:
        which = f" {due[0].server}" if len(due) == 1 else ""
        advise(f"`multitap pins review{which}` shows what changed; `--accept` pins it")
