"""`multitap trace`: shows the messages to and from a server, or the tree of a recorded request."""

import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec import Raw

from multitap.cli.configuration import load_configuration, require
from multitap.cli.options import CommonOptions, ServerCommand, gateway_or_server_options
from multitap.cli.questions import TerminalUser, prompt_handlers
from multitap.cli.signals import run_async
from multitap.cli.target import RunningGateway, choose_gateway
from multitap.cli.terminal import (
    Exit,
    advise,
    colour_text,
    complain,
    cut,
    note,
    one_line,
    say,
    say_json,
    table,
)
from multitap.cli.use.call import filler
from multitap.config import Loaded
from multitap.control.methods import Control
from multitap.errors import Unavailable
from multitap.printable import printable

if TYPE_CHECKING:
    from multitap.telemetry.spans import Span, SpanEvent
    from multitap.upstream.tracing import TracedMessage

LOOK = 1.0
"""Seconds between two checks that a gateway is still running."""
LAST_WORDS = 0.5
"""Seconds for messages that come after the answer to a call."""
_WIDTH = 400
"""Characters of a line without a terminal."""
TRACE_ID = re.compile(r"[0-9a-f]{8,32}")
_SHOWN = 16  # digits of an id in the list: enough to find it


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


def print_request(options: CommonOptions, trace_id: str, *, as_json: bool) -> Exit:
    """Print the tree of a trace; without an id, the list of the last requests."""
    live = choose_gateway(options, load_configuration(options))
    if live is None:
        complain("no gateway is running with these files", "`multitap serve --http` starts one")
        return Exit.UNAVAILABLE
    spans = live.ask(lambda control: control.spans(trace_id))
    if as_json:
        say_json(msgspec.to_builtins(spans))
    elif not spans and trace_id:
        complain(
            f"no recorded request belongs to the trace {trace_id}",
            "`multitap trace --requests` lists those that the gateway still has",
        )
        return Exit.FAILED
    elif not spans:
        note("no request was recorded yet")
    elif trace_id:
        for text in tree(spans):
            say(printable(text))
        if any(span.name.startswith("tools/call") for span in spans):
            first = spans[0].context.trace_id[:8]
            advise(f"`multitap calls trace:{first}` lists its calls; so does that filter elsewhere")
    else:
        _list(spans)
    return Exit.DONE


def _list(spans: Sequence["Span"]) -> None:
    table(
        ("TIME", "TRACE", "REQUEST", "TOTAL", "ERROR"),
        [
            (
                time.strftime("%H:%M:%S", time.localtime(span.start / 1e9)),
                span.context.trace_id[:_SHOWN],
                span.name,
                _milliseconds(span.seconds),
                str(span.attributes.get("error.type", "")),
            )
            for span in spans
        ],
        right=("TOTAL",),
    )
    advise(f"`multitap trace {spans[-1].context.trace_id[:_SHOWN]}` shows the last one")


def tree(spans: Sequence["Span"]) -> Iterator[str]:
    """The lines of a tree: each span below its parent, with its phases, in order."""
    ids = {span.context.span_id for span in spans}
    children: dict[str, list[Span]] = {}
    for span in spans:
        above = "" if span.parent is None else span.parent.span_id
        # the parent may be a span of the client, which is not recorded here
        children.setdefault(above if above in ids else "", []).append(span)
    roots = children.get("", [])
    for trace_id in dict.fromkeys(span.context.trace_id for span in roots):
        yield f"trace {trace_id}"
        for root in roots:
            if root.context.trace_id == trace_id:
                yield from _branch(root, children, root.start, "")


def _branch(
    span: "Span", children: dict[str, list["Span"]], began: int, indent: str
) -> Iterator[str]:
    yield f"{indent}{_moment(span.start, began)}  {_describe(span)}"
    below: list[tuple[int, Iterator[str]]] = [
        (event.at, iter((f"{indent}  {_moment(event.at, began)}  {_event(event)}",)))
        for event in span.events
    ]
    below += [
        (child.start, _branch(child, children, began, f"{indent}  "))
        for child in children.get(span.context.span_id, [])
    ]
    for _, lines in sorted(below, key=lambda part: part[0]):
        yield from lines


def _event(event: "SpanEvent") -> str:
    seconds = event.attributes.get("multitap.seconds")
    took = f" took {_milliseconds(float(seconds))}" if seconds is not None else ""
    return f"- {event.name.removeprefix('multitap.')}{took}"


def _describe(span: "Span") -> str:
    attributes = span.attributes
    sides = {"server": "from a client", "client": f"to {attributes.get('multitap.server', '?')}"}
    error = f", {attributes['error.type']}" if "error.type" in attributes else ""
    reason = f": {span.error}" if span.error else ""
    return f"{span.name} ({sides[span.kind]}) {_milliseconds(span.seconds)}{error}{reason}"


def _moment(at: int, began: int) -> str:
    return f"{(at - began) / 1e6:+9.2f} ms"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"
