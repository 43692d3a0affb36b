"""`multitap trace`: shows the messages to and from a server, or the tree of a recorded request."""

import sys
import time
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec import Raw

from multitap.cli.configuration import load_configuration, require
from multitap.cli.options import CommonOptions, ServerCommand, gateway_or_server_options
from multitap.cli.problems.request_tree import TRACE_ID, print_request
from multitap.cli.questions import TerminalUser, prompt_handlers
from multitap.cli.signals import run_async
from multitap.cli.target import RunningGateway, choose_gateway
from multitap.cli.terminal import (
    Exit,
    colour_text,
    complain,
    cut,
    note,
    one_line,
    say,
)
from multitap.cli.use.call import filler
from multitap.config import Loaded
from multitap.control.methods import Control
from multitap.errors import Unavailable

if TYPE_CHECKING:
    from multitap.upstream.tracing import TracedMessage

LOOK = 1.0
"""Seconds between two checks that a gateway is still running."""
LAST_WORDS = 0.5
"""Seconds for messages that come after the answer to a call."""
_WIDTH = 400
"""Characters of a line without a terminal."""


class TraceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to follow, and how to show it."""

    server: str | None
    """The server; None for the typed one."""
    tool: str | None
    """The tool to call meanwhile; None to only follow messages."""
    arguments: tuple[str, ...]
    full: bool
    as_json: bool


@click.command(cls=ServerCommand)
@click.argument("typed", nargs=-1, metavar="[SERVER] [TOOL [ARGUMENTS]...]")
@click.option("--full", is_flag=True, help="Print long messages in full")
@click.option(
    "--requests", is_flag=True, help="List the last recorded requests, with the ids of their traces"
)
@gateway_or_server_options
@click.option("--json", "as_json", is_flag=True, help="Print messages as lines of JSON")
def trace(
    options: CommonOptions, typed: tuple[str, ...], *, full: bool, requests: bool, as_json: bool
) -> int:
    """Print the messages to and from a server as they pass

    Follows a running gateway with the same configuration files until Ctrl-C. Without one, starts
    the server, calls TOOL if one is given, and ends. After a COMMAND, SERVER is left out.

    With the id of a TRACE instead of a server (8 digits are enough), prints where the time of that
    request went; the gateway has to record traces.
    """
    if requests or (options.typed is None and len(typed) == 1 and TRACE_ID.fullmatch(typed[0])):
        return print_request(options, "" if requests else typed[0], as_json=as_json)
    if options.typed is None and not typed:
        raise click.UsageError("Missing argument 'SERVER'.")
    named, call = (None, typed) if options.typed else (typed[0], typed[1:])
    traced = TraceOptions(
        server=named,
        tool=call[0] if call else None,
        arguments=call[1:],
        full=full,
        as_json=as_json,
    )
    loaded = load_configuration(options)
    server = traced.server or next(iter(loaded.settings.servers))
    live = choose_gateway(options, loaded)
    if live is None:
        require(loaded, server)
        run_async(lambda: _trace(loaded, options, server, traced))
        return Exit.DONE
    return _follow(live, options, server, traced)


def _follow(
    live: RunningGateway, options: CommonOptions, server: str, traced: TraceOptions
) -> Exit:
    # before the call, so that its first message is seen
    with live.trace(server) as following:
        if traced.tool is not None:
            live.ask(lambda control: _call(control, traced, options.timeout))
            for message in following.within(LAST_WORDS):
                show(message, traced)
            return Exit.DONE
        note(f"following {server}; Ctrl-C ends it")
        while not following.ended:
            for message in following.within(LOOK):
                show(message, traced)
    complain("the gateway has ended")
    return Exit.UNAVAILABLE


async def _trace(loaded: Loaded, options: CommonOptions, server: str, traced: TraceOptions) -> None:
    """Start the server, call the tool if there is one, and show all messages."""
    import anyio  # noqa: PLC0415 - like the hub

    from multitap.cli.own_hub import OwnHub, adapt, all_awake, open_command_hub  # noqa: PLC0415 - half a second

    settings = adapt(loaded, options, all_awake, only=server)
    unwritten: list[OSError] = []

    def on_message(message: "TracedMessage") -> None:
        # not raised here, where it would count as a failure of the server
        try:
            show(message, traced)
        except OSError as exc:
            unwritten.append(exc)
            scope.cancel()

    with anyio.CancelScope() as scope:
        async with open_command_hub(loaded, settings, prompt_handlers()) as hub:
            # before the server starts, because most people want to see the handshake
            with hub.tracings[server].follow(on_message):
                await hub.settled()
                failure = hub.snapshot().server(server).failure
                if failure is not None:
                    raise Unavailable.because(server, failure, "it is down")
                if traced.tool is not None:
                    await _call(OwnHub(hub, loaded, options), traced, options.timeout)
    if unwritten:
        raise unwritten[0]


async def _call(control: Control, traced: TraceOptions, timeout: float | None) -> None:
    tool = await control.tool(traced.tool or "", timeout)
    arguments = Raw(msgspec.json.encode(filler(traced.arguments)(tool.input_schema)))
    await control.call(tool.name, arguments, timeout, person=TerminalUser())


def show(message: "TracedMessage", traced: TraceOptions) -> None:
    """One message on one line."""
    if traced.as_json:
        say(msgspec.json.encode(message).decode())
        return
    text = line(message)
    if not traced.full:
        text = cut(text, _room())
    is_bad = message.kind in {"error", "lost"}
    say(colour_text(text, "red" if is_bad else None, sys.stdout))


def line(message: "TracedMessage") -> str:
    """A message as text: time, direction, request, content, duration."""
    at = time.localtime(message.at)
    clock = f"{time.strftime('%H:%M:%S', at)}.{int(message.at % 1 * 1000):03}"
    arrow = "->" if message.way == "out" else "<-"
    number = "" if message.number is None else f"#{message.number}"
    what = message.method if message.kind in {"request", "notification"} else message.kind
    took = "" if message.seconds is None else f" ({message.seconds * 1000:.1f} ms)"
    return f"{clock} {arrow} {number:<5} {what}{took} {one_line(message.text)}".rstrip()


def _room() -> int:
    if not sys.stdout.isatty():
        return _WIDTH
    import shutil  # noqa: PLC0415 - only for a terminal

    return shutil.get_terminal_size().columns
