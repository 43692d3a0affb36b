"""The way of a call through the hub: permitted, checked, limited in time, sent, vetted, counted."""

import asyncio
from collections.abc import Callable, Mapping
from time import perf_counter, time
from typing import Any

import msgspec
from msgspec import Raw

from multitap.catalog import Tool, allowed
from multitap.config import ToolFilter
from multitap.content import ToolResult
from multitap.errors import (
    BadArguments,
    CallTimeout,
    MultitapError,
    NotAllowed,
    Overloaded,
    ServerError,
    quoted,
)
from multitap.events import Outcome
from multitap.router import Route
from multitap.store import CallRecord
from multitap.tasks import LightTask, in_task
from multitap.upstream.caller import CallContext
from multitap.vetting import SMALL, is_large, vet, vet_large
from multitap.wire.deadline import Deadline
from multitap.wire.envelope import encode
from multitap.wire.request import Request

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_LONGEST_ERROR = 4096  # characters of a tool's own words; to decode all could take long

CHECKED = 256 * 1024
"""Bytes of undecoded arguments up to which they are checked; the server checks longer ones."""


class Calls:
    """Makes calls, each counted once, whatever becomes of it.

    Args:
        filters: What each agent may call.
        done: Told of every call that has ended.
    """

    def __init__(
        self, filters: Callable[[], Mapping[str, ToolFilter]], done: Callable[[CallRecord], None]
    ) -> None:
        self._filters = filters
        self._done = done
        self._clock = asyncio.get_running_loop().time

    async def make(  # noqa: PLR0917 - each name would cost every call a little
        self,
        route: Route,
        arguments: Mapping[str, Any] | Raw,
        context: CallContext,
        deadline: Deadline | None = None,
        light: LightTask | None = None,
        meta: bytes = b"",
        extra: bytes = b"",
    ) -> ToolResult:
        """Call a tool.

        Args:
            route: The way to it.
            arguments: What it is given.
            context: On whose behalf.
            deadline: When it has to be over; by the limits of the caller, tool or server, from
                now on, if not given.
            light: What the call runs in, if that is no task.
            meta: Members of the request's `_meta`, as JSON.
            extra: Members of its parameters besides name and arguments, as JSON, each after a
                comma.

        Raises:
            NotAllowed: The agent may not use the tool.
            BadArguments: The arguments do not fit its schema, and such calls are refused.
            UpstreamError: The server could not answer; which one says why.
        """
        started = perf_counter()
        result: ToolResult | None = None
        outcome, error, size = Outcome.CANCELLED, None, 0
        try:
            if context.agent_id is not None:
                self._permit(context.agent_id, route.tool)
            if route.check != "off":
                _check(route, arguments)
            given = arguments if isinstance(arguments, Raw) else _encoded(arguments)
            size = len(given)
            guest = context.guest
            raw = await route.link.request(
                Request(
                    "tools/call",
                    b"%b%b%b" % (route.head, given, extra),
                    deadline or route.deadline(context, self._clock()),
                    route.tool.raw_name,
                    context,
                    None if guest is None else guest.rival,
                    light,
                    context.on_progress,
                    meta,
                    route.repeatable,
                )
            )
            if len(raw) <= SMALL or not is_large(route.tool, raw):
                result = vet(route, raw)
            else:
                await in_task(light)
                result = await vet_large(route, raw)
            outcome = Outcome.ERROR if result.is_error_known else Outcome.OK
        except MultitapError as exc:
            if not isinstance(exc, ServerError) or not route.errors_are_results:
                outcome, error = _outcome(exc), route.link.redacted(str(exc))
                raise
            outcome, result = Outcome.ERROR, _failed(exc, route.tool)
        finally:
            seconds, received = perf_counter() - started, 0
            if result is not None:
                result.seconds, received = seconds, len(result.raw)
                if outcome is Outcome.ERROR:
                    error = _told(result, route)
            self._done(
                CallRecord(
                    time(),
                    route.tool.server,
                    route.tool.raw_name,
                    seconds,
                    outcome,
                    received,
                    size,
                    error,
                    context.agent_id,
                    context.session_id,
                )
            )
        return result  # pyright: ignore[reportReturnType] - or something was raised

    def _permit(self, agent: str, tool: Tool) -> None:
        """Policy: an agent calls only what its filter shows."""
        filter_ = self._filters().get(agent)
        if filter_ is not None and not allowed(tool.name, filter_):
            raise NotAllowed(
                f"agent {quoted(agent)} may not use {quoted(tool.name)}",
                hint=f"change the filter of agent {quoted(agent)}",
            )


def cap_of(tool: Tool, default: int) -> int:
    """Characters of a tool's text after which it is cut."""
    config = tool.link.config
    return config.result_caps.get(tool.raw_name) or config.result_cap or default


def _check(route: Route, arguments: Mapping[str, Any] | Raw) -> None:
    """Let arguments pass that fit the tool's schema, or that the server is to judge.

    Raises:
        BadArguments: They do not fit, and such calls are refused.
    """
    try:
        size = None
        if isinstance(arguments, Raw):
            size = len(arguments)
            if size > CHECKED:  # looking through it would hold up everybody
                return
            arguments = _decoded(arguments)
        route.tool.checker.check(arguments, size=size)
    except BadArguments as exc:
        if route.check == "refuse":
            raise
        route.link.note_misfit(route.tool.raw_name, str(exc))


def _decoded(arguments: Raw) -> Mapping[str, Any]:
    try:
        return _decode(arguments)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise BadArguments(f"the arguments can not be read: {exc}", path="") from None


def _encoded(arguments: Mapping[str, Any]) -> bytes:
    try:
        return encode(arguments)
    except (TypeError, ValueError, RecursionError) as exc:
        raise BadArguments(
            f"the arguments can not be sent as JSON: {exc}", path="", hint="use plain values"
        ) from None


def _failed(exc: ServerError, tool: Tool) -> ToolResult:
    """An error that a server answers with, as a failed result."""
    return ToolResult.from_error(
        f"{exc.server}: {exc.words}",
        code=exc.code,
        data=exc.data,
        server=tool.server,
        tool=tool.raw_name,
    )


def _told(became: ToolResult, route: Route) -> str:
    """What a tool says went wrong."""
    return route.link.redacted(became.beginning(_LONGEST_ERROR) or became.error or "")


def _outcome(exc: MultitapError) -> Outcome:
    match exc:
        case CallTimeout():
            return Outcome.TIMEOUT
        case NotAllowed() | BadArguments() | Overloaded():
            return Outcome.REFUSED
        case _:
            return Outcome.FAILED
