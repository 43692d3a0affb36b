"""A call that is passed on for a client, without a task as long as all goes well."""

import time
from collections.abc import Callable

from msgspec import Raw

from multitap.content import ToolResult
from multitap.errors import BadArguments, MultitapError
from multitap.events import CallDone
from multitap.middleware import check, done_with, limit
from multitap.router import Call, is_repeatable, params_of
from multitap.tasks import CancelHandle, Tasks
from multitap.upstream.link import Unsettled
from multitap.upstream.session import AskedBack
from multitap.vetting import is_large, vet, vet_large
from multitap.wire.wire import RpcError, UnderWay, WireFault

OnPassed = Callable[["Raw | bytes | Exception | None"], None]
"""Told of a call's result, or why there is none; None: it was cancelled."""


class Passage:
    """One call on its way.

    What `middleware` does around a call that somebody waits for, this does where nobody does. A
    call that goes wrong is gone into by a task.

    Args:
        call: What is called.
        done: Told how it went.
        tasks: Where it is gone into what went wrong.
        on_end: Told of the result.
    """

    __slots__ = ("_call", "_done", "_on_end", "_scope", "_started", "_tasks", "_under_way")

    def __init__(
        self,
        call: Call,
        *,
        done: Callable[[Call, CallDone], None],
        tasks: Tasks,
        on_end: OnPassed,
    ) -> None:
        self._call = call
        self._done = done
        self._tasks = tasks
        self._on_end: OnPassed | None = on_end
        self._scope: CancelHandle | None = None
        self._under_way: UnderWay | None = None
        self._started = 0.0

    def begin(self) -> bool:
        """Send the call; False where that takes a task, and nothing has happened."""
        call = self._call
        try:
            check(call)
        except BadArguments:
            return False
        deadline = limit(call)
        self._started = time.perf_counter()
        context = call.context
        self._under_way = call.tool.link.launch(
            "tools/call",
            params_of(call),
            deadline=deadline,
            on_progress=context.on_progress,
            call=context,
            on_end=self._landed,
        )
        return self._under_way is not None

    def cancel(self) -> None:
        """Give it up."""
        if self._scope is not None:
            self._scope.cancel()
        elif self._on_end is not None and self._under_way is not None:
            self._under_way.give_up()
            self._call.tool.link.landed(None, self._call.context)
            self._end(None)

    def _landed(self, outcome: Unsettled) -> None:
        tool = self._call.tool
        tool.link.landed(outcome, self._call.context)
        if not isinstance(outcome, Raw):
            self._scope = CancelHandle()
            self._tasks.start_soon(self._go_into, outcome, self._scope)
        elif is_large(tool, outcome):
            self._scope = CancelHandle()
            self._tasks.start_soon(self._vet, outcome, self._scope)
        else:
            self._end(vet(tool, outcome))

    async def _vet(self, outcome: Raw, scope: CancelHandle) -> None:
        became: ToolResult | None = None
        with scope:
            became = await vet_large(self._call.tool, outcome)
        self._end(became)

    async def _go_into(
        self, outcome: WireFault | RpcError | AskedBack, scope: CancelHandle
    ) -> None:
        """Try again where that may help, answer what the server asks, or find the reason."""
        call, tool, context = self._call, self._call.tool, self._call.context
        became: ToolResult | Exception | None = None
        with scope:
            try:
                raw = await tool.link.request(
                    "tools/call",
                    params_of(call),
                    deadline=call.deadline,
                    on_progress=context.on_progress,
                    call=context,
                    repeatable=is_repeatable(tool),
                    after=outcome,
                )
                became = await vet_large(tool, raw) if is_large(tool, raw) else vet(tool, raw)
            except Exception as exc:  # noqa: BLE001 - boundary: whoever waits is told
                became = exc
        self._end(became)

    def _end(self, became: ToolResult | Exception | None) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is None:
            return
        if isinstance(became, ToolResult):
            try:
                event = done_with(self._call, self._started, became)
            except MultitapError as exc:
                became = exc
                event = done_with(self._call, self._started, exc)
        else:
            known = became if isinstance(became, MultitapError) else None
            event = done_with(self._call, self._started, known)
        self._done(self._call, event)
        on_end(became.raw if isinstance(became, ToolResult) else became)
