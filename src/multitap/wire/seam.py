"""The one place where our wires meet the SDK's `ClientSession`.

`ClientSession(dispatcher=...)` is the SDK's public seam; the lifecycle of its `Dispatcher` protocol
is marked provisional, so nothing outside this file knows about it.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import anyio
from anyio.abc import TaskStatus
from mcp import MCPError
from mcp.shared.dispatcher import (
    CallOptions,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
)
from mcp.shared.message import MessageMetadata
from mcp.shared.transport_context import TransportContext
from msgspec import Raw

from multitap.wire import envelope
from multitap.wire.wire import RpcError, Wire

OnNotification = Callable[[str, Raw, object | None], None]
"""Told of a notification and, where that is certain, of the call it belongs to."""

asking: ContextVar[object | None] = ContextVar("asking", default=None)
"""The call for whose sake a server asks us something, while we answer."""


class Seam:
    """A `Dispatcher` that speaks through a `Wire`, and an `Inbound` that answers for it.

    Args:
        wire: Where the messages travel.
        on_notification: Told of every notification, undecoded; the SDK's typed models would cost
            more than a flood of them allows.
        on_unaddressed: Told each time the server asks or logs without saying for which call.
        timeout: Seconds for a request the SDK sends without a limit of its own.
    """

    def __init__(
        self,
        wire: Wire,
        on_notification: OnNotification,
        *,
        on_unaddressed: Callable[[], None],
        timeout: float,
    ) -> None:
        self._wire = wire
        self.unaddressed = on_unaddressed
        self._timeout = timeout
        self._on_request: OnRequest | None = None
        self.introduction: Mapping[str, Any] = {}
        """What the SDK says about us in the `_meta` of its probe; needed in every request."""
        self._on_notification = on_notification

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        opts = opts or {}
        timeout = opts.get("timeout", self._timeout)
        if method == "server/discover":
            timeout = self._timeout  # the SDK fixes 10 s; how long to wait is the caller's to say
            self.introduction = (params or {}).get("_meta", {})
        try:
            result = await self._wire.request(
                method,
                params,
                timeout=timeout,
                headers=opts.get("headers"),
                cancellable=opts.get("cancel_on_abandon", True),
            )
        except RpcError as exc:
            raise MCPError(exc.code, str(exc), exc.data) from None
        decoded: dict[str, Any] = envelope.decode(result)
        return decoded

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        await self._wire.notify(method, params, headers=(opts or {}).get("headers"))

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        del on_notify, on_notify_intercept  # `on_notification` takes them all, see above
        self._on_request = on_request
        self._wire.attach(self)
        task_status.started()
        await self._wire.closed.wait()

    def notification(self, method: str, params: Raw, call: object | None) -> None:
        self._on_notification(method, params, call)

    async def request(self, method: str, params: Raw, call: object | None) -> Any:
        if self._on_request is None:
            raise RpcError(-32000, "not ready")
        decoded = envelope.decode(params) if len(params) else None
        try:
            asking.set(call)
            return await self._on_request(_Context(self), method, decoded)
        except MCPError as exc:
            raise RpcError(exc.error.code, exc.error.message, exc.error.data) from None


class _Context:
    """What the SDK's handler of a server's request wants to know about it."""

    transport = TransportContext(kind="multitap", can_send_request=True)
    can_send_request = True
    message_metadata: MessageMetadata = None

    def __init__(self, seam: Seam) -> None:
        self._seam = seam
        self.request_id = "server"
        self.cancel_requested = anyio.Event()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        return await self._seam.send_raw_request(method, params, opts)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        await self._seam.notify(method, params, opts)

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """A server gets no progress for what it asks of us."""
