"""A server object in this process, without framing."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import anyio
from mcp import MCPError
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.runner import modern_on_request
from mcp.shared.direct_dispatcher import DirectDispatcher, create_direct_dispatcher_pair
from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.transport_context import TransportContext
from msgspec import Raw

from multitap.errors import AnswerTimeout, WireClosed, WireFault, ungrouped
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import SERVER_ERROR, Params, RpcError
from multitap.wire.request import Request
from multitap.wire.wire import LONG, Evidence, Inbound

_caller: ContextVar[object | None] = ContextVar("caller", default=None)
"""The call that the server works on, which runs in the task of the caller."""


def caller() -> object | None:
    """For a server object: the context of the current call; None outside a call."""
    return _caller.get()


@contextmanager
def _acting_for(call: object | None) -> Generator[None]:
    token = _caller.set(call)
    try:
        yield
    finally:
        _caller.reset(token)


class InProcessWire:
    """See `Wire`; always the stateless era."""

    kind = "local"

    def __init__(self, dispatcher: DirectDispatcher) -> None:
        self._dispatcher = dispatcher
        self._inbound: Inbound | None = None
        self.closed = asyncio.Event()
        self.fault: WireFault | None = None

    def attach(self, inbound: Inbound) -> None:
        self._inbound = inbound

    async def request(self, request: Request) -> Raw:
        if self.closed.is_set():
            raise WireClosed("the connection is closed", sent=False)
        options: CallOptions = {}
        deadline, on_progress = request.deadline, request.on_progress
        clock = anyio.CancelScope(deadline=deadline.at)

        async def report(progress: float, total: float | None, message: str | None) -> None:
            deadline.renew(anyio.current_time())
            clock.deadline = deadline.at
            if on_progress is not None:
                on_progress(progress, total, message)

        # as on other wires: progress renews the deadline, even if nobody listens
        if request.method in LONG or on_progress is not None:
            options["on_progress"] = report
        with clock, _acting_for(request.call):
            try:
                result = await self._dispatcher.send_raw_request(
                    request.method, _params(request), options
                )
            except MCPError as exc:
                raise RpcError(exc.error.code, exc.error.message, exc.error.data) from None
            return Raw(jsonrpc.encode(result))
        raise AnswerTimeout(deadline.words(request.method), sent=True)

    async def notify(
        self,
        method: str,
        params: Params | None,
        *,
        headers: Mapping[str, str] | None = None,  # noqa: ARG002 - nothing to put them on
    ) -> None:
        if not self.closed.is_set():
            await self._dispatcher.notify(method, params)

    def establish(self, protocol_version: str, *, stateless: bool) -> None:
        """Nothing to open."""

    def serves_only(self, owner: object) -> bool:  # noqa: ARG002 - its messages carry their call
        return True

    def is_stopped(self) -> bool:
        return False

    def evidence(self) -> Evidence:
        return Evidence()

    async def take_request(
        self,
        context: DispatchContext[TransportContext],  # noqa: ARG002 - the SDK's signature
        method: str,
        params: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        if self._inbound is None:
            raise MCPError(SERVER_ERROR, "not ready")
        try:
            answer: dict[str, Any] = await self._inbound.request(
                method, Raw(jsonrpc.encode(params)) if params else Raw(b""), None
            )
        except RpcError as exc:
            raise MCPError(exc.code, str(exc), exc.data) from None
        return answer

    async def take_notification(
        self,
        context: DispatchContext[TransportContext],  # noqa: ARG002 - the SDK's signature
        method: str,
        params: Mapping[str, Any] | None,
    ) -> None:
        if self._inbound is not None:
            self._inbound.notification(method, Raw(jsonrpc.encode(params or {})), _caller.get())


@asynccontextmanager
async def open_in_process(server: Server[Any] | MCPServer) -> AsyncGenerator[InProcessWire]:
    """A wire to a server object; its lifespan runs within the block."""
    lowlevel: Server[Any] = (
        server._lowlevel_server if isinstance(server, MCPServer) else server  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the SDK's own clients do the same
    )
    with ungrouped():
        async with _serving(lowlevel) as wire:
            yield wire


@asynccontextmanager
async def _serving(lowlevel: Server[Any]) -> AsyncGenerator[InProcessWire]:
    async with lowlevel.lifespan(lowlevel) as state, anyio.create_task_group() as tasks:
        ours, theirs = create_direct_dispatcher_pair(raise_handler_exceptions=False)
        wire = InProcessWire(ours)
        try:
            await tasks.start(theirs.run, modern_on_request(lowlevel, state), _ignore)
            await tasks.start(ours.run, wire.take_request, wire.take_notification)
            yield wire
        finally:
            wire.closed.set()
            ours.close()
            theirs.close()
            tasks.cancel_scope.cancel()


def _params(request: Request) -> dict[str, Any] | None:
    if request.params is None and not request.stamp and not request.meta:
        return None
    params: dict[str, Any] = jsonrpc.decode(b"{%b}" % (request.params or b""))
    meta = b",".join(part for part in (request.stamp, request.meta) if part)
    if meta:
        params["_meta"] = jsonrpc.decode(b"{%b}" % meta)
    return params


async def _ignore(*_: object) -> None:
    """Do nothing: the stateless era has no notifications from client to server."""
