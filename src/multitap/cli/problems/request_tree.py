"""Prints where the time of a recorded request went, as a tree."""

import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from multitap.cli.configuration import load_configuration
from multitap.cli.options import CommonOptions
from multitap.cli.target import choose_gateway
from multitap.cli.terminal import Exit, advise, complain, note, say, say_json, table
from multitap.printable import printable

if TYPE_CHECKING:
    from multitap.telemetry.spans import Span, SpanEvent

TRACE_ID = re.compile(r"[0-9a-f]{8,32}")
_SHOWN = 16  # digits of an id in the list: enough to find it


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
