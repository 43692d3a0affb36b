"""From a catalog name to an answer."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from msgspec import Raw

from multitap.catalog import Catalog, Tool
from multitap.config import ServerConfig
from multitap.config.models import CheckArguments
from multitap.content import ToolResult
from multitap.errors import BadArguments, NotAllowed, ServerError, UnknownName, quoted
from multitap.upstream.caller import CallContext
from multitap.vetting import is_large, vet, vet_large
from multitap.wire import envelope
from multitap.wire.deadline import Deadline


@dataclass(frozen=True, slots=True)
class CallDefaults:
    """What holds for a call where the configuration of its server does not say."""

    check_arguments: CheckArguments = "refuse"
    timeout: float | None = None
    """Seconds to wait for an answer; None: the default of the configuration."""

    def deadline(
        self, config: ServerConfig, *, context: CallContext, since: float, tool: str = ""
    ) -> Deadline:
        """When a call has to be over: by the caller's limits, else the tool's, else the server's.

        Args:
            config: The server's.
            context: The caller's.
            since: When the time begins, by the loop's clock.
            tool: The server's own name of the tool, if it is one.
        """
        timeout = context.timeout or config.timeouts.get(tool)
        if timeout is None:
            is_given = self.timeout is None or "timeout" in config.model_fields_set
            timeout = config.timeout if is_given else self.timeout
        hard_timeout = max(context.hard_timeout or config.hard_timeout, timeout or 0.0)
        return Deadline(timeout, hard_timeout, since)


LIBRARY = CallDefaults()


@dataclass(slots=True)
class Call:
    """One call on its way through the middleware."""

    tool: Tool
    arguments: Mapping[str, Any] | Raw
    context: CallContext
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What else the request says, besides name and arguments."""
    defaults: CallDefaults = LIBRARY
    since: float | None = None
    """When its time began, by the loop's clock; None: it begins when the call is sent."""
    deadline: Deadline | None = None
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
    tool = look_up(catalog, name)
    if tool is None:
        raise unknown(catalog.tools, name)
    return tool


def look_up(
    catalog: Catalog,
    name: str,
    *,
    shows: Callable[[Tool], bool] = lambda _: True,
    prefers: Callable[[Tool], bool] = lambda _: False,
) -> Tool | None:
    """The tool that callers know as `name`, or the only one that its server calls so.

    Args:
        catalog: What there is.
        name: Which one.
        shows: Whether a caller may see a tool, for names that have to be the only ones.
        prefers: Whether a caller rather means a tool than others that are called the same.

    Raises:
        NotAllowed: A filter hides it.
    """
    tool = catalog.tools.get(name) or catalog.absent.get(name)
    if tool is not None:
        return tool
    if name in catalog.hidden:
        raise NotAllowed(
            f"the tool {quoted(name)} is hidden by a filter", hint="change the server's `filter`"
        )
    alike = [tool for tool in catalog.named(name) if shows(tool)]
    if len(alike) > 1:
        alike = [tool for tool in alike if prefers(tool)]
    return alike[0] if len(alike) == 1 else None


def unknown(tools: Iterable[str], name: str) -> UnknownName:
    """That there is no such tool, and which one may be meant of those that the caller sees."""
    near = get_close_matches(name, tools, n=1)
    hint = f"did you mean {quoted(near[0])}? " if near else ""
    return UnknownName(
        f"no tool named {quoted(name)}", hint=f"{hint}`multitap tools` lists what there is"
    )


async def forward(call: Call) -> ToolResult:
    """Send the call to its server; an error it answers with is a failed result."""
    tool = call.tool
    try:
        return await pass_on(call)
    except ServerError as exc:
        return ToolResult.from_error(
            f"{exc.server}: {exc.words}",
            code=exc.code,
            data=exc.data,
            server=tool.server,
            tool=tool.raw_name,
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
        deadline=call.deadline,
        on_progress=context.on_progress,
        call=context,
        repeatable=is_repeatable(tool),
    )
    return await vet_large(tool, result) if is_large(tool, result) else vet(tool, result)


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
