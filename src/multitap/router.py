"""From a catalog name to an answer."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from msgspec import Raw

from multitap.catalog import Catalog, Tool
from multitap.content import ToolResult
from multitap.errors import BadArguments, NotAllowed, ServerError, UnknownName
from multitap.upstream.caller import CallContext
from multitap.wire import envelope


@dataclass(slots=True)
class Call:
    """One call on its way through the middleware."""

    tool: Tool
    arguments: Mapping[str, Any] | Raw
    context: CallContext
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What else the request says, besides name and arguments."""
    timeout: float | None = None
    hard_timeout: float | None = None
    size: int = 0
    """Bytes of the arguments, once they are encoded."""


Handler = Callable[[Call], Awaitable[ToolResult]]
Middleware = Callable[[Handler], Handler]
"""Behaviour around a call: takes the next handler, returns one that does more."""


def chain(middleware: tuple[Middleware, ...], last: Handler) -> Handler:
    """One handler out of many; the first middleware is the outermost."""
    for wrap in reversed(middleware):
        last = wrap(last)
    return last


def find(catalog: Catalog, name: str) -> Tool:
    """The tool that callers know as `name`, even while its server is down.

    Raises:
        NotAllowed: A filter hides it.
        UnknownName: There is none.
    """
    tool = catalog.tools.get(name) or catalog.absent.get(name)
    if tool is not None:
        return tool
    if name in catalog.hidden:
        raise NotAllowed(
            f"the tool {name!r} is hidden by a filter", hint="change the server's `filter`"
        )
    near = get_close_matches(name, catalog.tools, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UnknownName(f"no tool named {name!r}", hint=f"{hint}`multitap tools` lists what there is")


async def forward(call: Call) -> ToolResult:
    """Send the call to its server; an error it answers with is a failed result."""
    tool = call.tool
    try:
        return await pass_on(call)
    except ServerError as exc:
        return ToolResult.from_error(
            str(exc), code=exc.code, data=exc.data, server=tool.server, tool=tool.raw_name
        )


async def pass_on(call: Call) -> ToolResult:
    """Send the call to its server: the innermost handler.

    Raises:
        UpstreamError: Which one says what went wrong.
    """
    tool, context = call.tool, call.context
    result = await tool.link.request(
        "tools/call",
        params_of(call),
        timeout=call.timeout,
        hard_timeout=call.hard_timeout,
        on_progress=context.on_progress,
        call=context,
        repeatable=is_repeatable(tool),
    )
    return ToolResult(result, server=tool.server, tool=tool.raw_name)


def params_of(call: Call) -> Mapping[str, Any]:
    """What the server is told of a call, whose size is known then.

    Raises:
        BadArguments: The arguments are no JSON.
    """
    arguments = call.arguments
    if not isinstance(arguments, Raw):
        arguments = _encoded(arguments)
    call.size = len(arguments)
    return {"name": call.tool.raw_name, "arguments": arguments, **call.extra}


def is_repeatable(tool: Tool) -> bool:
    """Whether a call that got lost may be sent again though the server may have seen it."""
    return tool.repeatable and tool.link.config.retry == "hinted"


def _encoded(arguments: Mapping[str, Any]) -> Raw:
    try:
        return Raw(envelope.encode(arguments))
    except (TypeError, ValueError, RecursionError) as exc:
        raise BadArguments(
            f"the arguments can not be sent as JSON: {exc}", path="", hint="use plain values"
        ) from None
