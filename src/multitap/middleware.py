"""What happens around every call, each as one small function.

What only looks at a call before it goes on is no coroutine: each of those costs every call.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from multitap.catalog import Tool, allowed
from multitap.config import ToolFilter
from multitap.content import KeptResults, ToolResult
from multitap.errors import BadArguments, CallTimeout, MultitapError, NotAllowed, Overloaded, quoted
from multitap.events import CallDone, Outcome
from multitap.router import Call, Handler, Middleware
from multitap.wire.deadline import Deadline

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_LONGEST_ERROR = 4096  # characters of a tool's own words; to decode all could take long

CHECKED = 256 * 1024
"""Bytes of undecoded arguments up to which they are checked; the server checks longer ones."""


def permitted(filters: Callable[[], Mapping[str, ToolFilter]]) -> Middleware:
    """Policy: an agent calls only what its filter shows."""

    def wrap(following: Handler) -> Handler:
        def handle(call: Call) -> Awaitable[ToolResult]:
            agent = call.context.agent_id
            if agent is not None:
                filter_ = filters().get(agent)
                if filter_ is not None and not allowed(call.tool.name, filter_):
                    raise NotAllowed(
                        f"agent {quoted(agent)} may not use {quoted(call.tool.name)}",
                        hint=f"change the filter of agent {quoted(agent)}",
                    )
            return following(call)

        return handle

    return wrap


def checked(following: Handler) -> Handler:
    """Arguments that do not fit the tool's schema do not leave, where they are checked."""

    def handle(call: Call) -> Awaitable[ToolResult]:
        check(call)
        return following(call)

    return handle


def check(call: Call) -> None:
    """Let a call pass whose arguments fit the tool's schema, or whose server is to judge them.

    Raises:
        BadArguments: They do not, and such calls are refused.
    """
    link = call.tool.link
    mode = link.config.check_arguments or call.defaults.check_arguments
    if mode == "off":
        return
    try:
        _fit(call)
    except BadArguments as exc:
        if mode == "refuse":
            raise
        link.note_misfit(call.tool.raw_name, str(exc))


def _fit(call: Call) -> None:
    arguments, size = call.arguments, None
    if isinstance(arguments, Raw):
        size = len(arguments)
        if size > CHECKED:  # looking through it would hold up everybody
            return
        arguments = _decoded(arguments)
    call.tool.checker.check(arguments, size=size)


def deadline(following: Handler) -> Handler:
    """A call ends in time, however often it is tried."""

    def handle(call: Call) -> Awaitable[ToolResult]:
        limit(call)
        return following(call)

    return handle


def limit(call: Call) -> Deadline:
    """Say when a call has to be over."""
    since = asyncio.get_running_loop().time() if call.since is None else call.since
    call.deadline = call.defaults.deadline(
        call.tool.link.config, context=call.context, since=since, tool=call.tool.raw_name
    )
    return call.deadline


def measured(done: Callable[[Call, CallDone], None]) -> Middleware:
    """Every call is timed and told of, whatever becomes of it."""

    def wrap(following: Handler) -> Handler:
        async def handle(call: Call) -> ToolResult:
            event: CallDone | None = None
            started = time.perf_counter()
            try:
                result = await following(call)
                event = done_with(call, started, result)
                result.seconds = event.seconds
            except MultitapError as exc:
                event = done_with(call, started, exc)
                raise
            else:
                return result
            finally:
                done(call, event or done_with(call, started, None))

        return handle

    return wrap


def done_with(call: Call, started: float, became: ToolResult | MultitapError | None) -> CallDone:
    """How a call went.

    Args:
        call: Which one.
        started: When it began, by `time.perf_counter`.
        became: Its result, or why there is none; None: it was cancelled.

    Raises:
        BadAnswer: The result can not be read.
    """
    outcome, error, size = Outcome.CANCELLED, None, 0
    if isinstance(became, ToolResult):
        outcome, size = Outcome.OK, len(became.raw)
        if became.is_error:
            outcome, error = Outcome.ERROR, became.beginning(_LONGEST_ERROR) or became.error
    elif became is not None:
        outcome, error = _outcome(became), str(became)
    tool, context = call.tool, call.context
    return CallDone(
        tool.server,
        tool.raw_name,
        time.perf_counter() - started,
        outcome,
        size,
        error,
        context.agent_id,
        context.session_id,
    )


def _decoded(arguments: Raw) -> Mapping[str, Any]:
    try:
        return _decode(arguments)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise BadArguments(f"the arguments can not be read: {exc}", path="") from None


def _outcome(exc: MultitapError) -> Outcome:
    match exc:
        case CallTimeout():
            return Outcome.TIMEOUT
        case NotAllowed() | BadArguments() | Overloaded():
            return Outcome.REFUSED
        case _:
            return Outcome.FAILED


def capped(kept: KeptResults, default: Callable[[], int]) -> Middleware:
    """A long text is cut, and the whole kept to be paged."""

    def wrap(following: Handler) -> Handler:
        async def handle(call: Call) -> ToolResult:
            return (await following(call)).capped(cap_of(call.tool, default()), kept)

        return handle

    return wrap


def cap_of(tool: Tool, default: int) -> int:
    """Characters of a tool's text after which it is cut."""
    config = tool.link.config
    return config.result_caps.get(tool.raw_name) or config.result_cap or default
