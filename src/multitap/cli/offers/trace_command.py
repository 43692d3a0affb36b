"""`multitap trace`: shows the messages to and from a server as they pass."""

import sys
import time
from typing import TYPE_CHECKING

import click
import msgspec

from multitap.cli.configuration.chosen_configuration import load_configuration, require
from multitap.cli.exits import Exit
from multitap.cli.gateways.running_gateways import RunningGateway, choose_gateway
from multitap.cli.offers.call_command import filler
from multitap.cli.offers.server_questions import at_the_prompt
from multitap.cli.options import CommonOptions
from multitap.cli.running import run_async
from multitap.cli.terminal.output import colour_text, complain, note, say
from multitap.cli.terminal.tables import cut, one_line
from multitap.cli.terminal.typed_lines import is_somebody_there
from multitap.config import Loaded
from multitap.errors import Unavailable
from multitap.records import dataclass

if TYPE_CHECKING:
    from multitap.upstream.traced_wire import TracedMessage

LOOK = 1.0
"""Seconds between two checks that a gateway is still running."""
LAST_WORDS = 0.5
"""Seconds for messages that come after the answer to a call."""
_WIDTH = 400
"""Characters of a line without a terminal."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What to follow, and how to show it."""

    server: str | None
    """The server; None for the typed one."""
    tool: str | None
    """The tool to call meanwhile; None to only follow messages."""
    arguments: tuple[str, ...]
    full: bool
    as_json: bool


def trace(options: CommonOptions, words: tuple[str, ...], *, full: bool, as_json: bool) -> int:
    """Show the messages of a running gateway until interrupted, else of a start and a call."""
    if options.typed is None and not words:
        raise click.UsageError("Missing argument 'SERVER'.")
    named, call = (None, words) if options.typed else (words[0], words[1:])
    wanted = TraceOptions(named, call[0] if call else None, call[1:], full, as_json)
    loaded = load_configuration(options)
    server = wanted.server or next(iter(loaded.settings.servers))
    live = choose_gateway(options, loaded)
    if live is None:
        require(loaded, server)
        run_async(lambda: _trace(loaded, options, server, wanted))
        return Exit.DONE
    return _follow(live, options, server, wanted)


def _follow(
    live: RunningGateway, options: CommonOptions, server: str, wanted: TraceOptions
) -> Exit:
    with live.trace(server) as following:
        if wanted.tool is not None:
            schema = live.tool(wanted.tool, options.timeout).input_schema
            live.call(
                wanted.tool,
                filler(wanted.arguments)(schema),
                options.timeout,
                lambda _done, _total, _message: None,
                at_the_prompt(),
                person=is_somebody_there(),
            )
            for message in following.within(LAST_WORDS):
                show(message, wanted)
            return Exit.DONE
        note(f"following {server}; Ctrl-C ends it")
        while not following.ended:
            for message in following.within(LOOK):
                show(message, wanted)
    complain("the gateway has ended")
    return Exit.UNAVAILABLE


async def _trace(loaded: Loaded, options: CommonOptions, server: str, wanted: TraceOptions) -> None:
    """Start the server, call the tool if there is one, and show all messages."""
    from multitap.cli.command_hub import adapt, all_awake, open_command_hub  # noqa: PLC0415
    from multitap.cli.offers.prompt_answers import prompt_handlers  # noqa: PLC0415
    from multitap.upstream.on_behalf_of import CallContext  # noqa: PLC0415

    settings = adapt(loaded, options, all_awake, only=server)
    async with open_command_hub(loaded, settings, prompt_handlers()) as hub:
        # before the server starts, because most people want to see the handshake
        with hub.tracings[server].follow(lambda message: show(message, wanted)):
            await hub.settled()
            failure = hub.snapshot().server(server).failure
            if failure is not None:
                raise Unavailable.because(server, failure, "it is down")
            if wanted.tool is not None:
                context = CallContext(timeout=options.timeout)
                tool = await hub.lookup.find_tool(wanted.tool, context=context)
                given = filler(wanted.arguments)(tool.input_schema)
                await hub.call(tool.name, given, context=context)


def show(message: "TracedMessage", wanted: TraceOptions) -> None:
    """One message on one line."""
    if wanted.as_json:
        say(msgspec.json.encode(message).decode())
        return
    said = line(message)
    if not wanted.full:
        said = cut(said, _room())
    is_bad = message.kind in {"error", "lost"}
    say(colour_text(said, "red" if is_bad else None, sys.stdout))


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
