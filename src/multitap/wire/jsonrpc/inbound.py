"""Handles a server's own requests and notifications, and sends our answers."""

import logging
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from multitap.errors import quoted
from multitap.faults import Flooded, WireFault
from multitap.redaction import Redactor
from multitap.tasks import CancelHandle, Tasks
from multitap.wire.jsonrpc import envelope
from multitap.wire.jsonrpc.envelope import Envelope, RequestId
from multitap.wire.jsonrpc.pending_requests import PendingRequests, ProgressReport
from multitap.wire.jsonrpc.unclear_owner import UnclearOwner
from multitap.wire.jsonrpc.vocabulary import INTERNAL_ERROR, SERVER_ERROR
from multitap.wire.wire import INBOUND_REQUESTS, SEVERAL, Evidence, Inbound, RpcError

logger = logging.getLogger(__name__)

_LEAST_JUNK = 64
"""The least weight of a line or event: a short one costs as much as one of this size."""
_MINUTE = 60.0

_QUESTIONS = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})
"""Requests for the client whose call they belong to. Log messages are for that client, too, but
nothing waits for them: those that may belong to several calls are not passed on."""


class _Cancelled(msgspec.Struct):
    requestId: int | str  # noqa: N815 - the wire's spelling


_parse_progress = msgspec.json.Decoder(ProgressReport, strict=False).decode
_parse_cancelled = msgspec.json.Decoder(_Cancelled).decode


class InboundMessages:
    """Dispatches notifications and requests of one server, and counts its junk.

    Args:
        send: Delivers an encoded answer; must not raise.
        tasks: Runs the answers; owned by the wire.
        pending_requests: The requests whose progress the server reports.
        origin: The server's name for log lines.
        cut_off: Ends the connection to a server that sends nothing but junk.
        junk_limit: Bytes of junk that it may send per minute.
        redact: Removes secrets from quoted text.
    """

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None]],
        tasks: Tasks,
        pending_requests: PendingRequests,
        *,
        origin: str,
        cut_off: Callable[[WireFault], None],
        junk_limit: int,
        redact: Redactor,
    ) -> None:
        self._send = send
        self._tasks = tasks
        self._pending_requests = pending_requests
        self._origin = origin
        self._inbound: Inbound | None = None
        self._answering: dict[RequestId, CancelHandle] = {}
        self._refusing = 0
        self._cut_off = cut_off
        self._junk_limit = junk_limit
        self._redact = redact
        self._junk = 0
        self._minute = time.monotonic()
        self._noise = 0
        self._noise_sample = ""
        self._warned_at = 0.0

    @property
    def busy(self) -> int:
        """The server's requests that are being answered or refused."""
        return len(self._answering) + self._refusing

    def attach(self, inbound: Inbound) -> None:
        self._inbound = inbound

    def overhear(self, message: Envelope) -> None:
        """Handle a message with a method that does not name its call."""
        call = self._pending_requests.call_in_question()
        if call is not None and message.method in _QUESTIONS and self._inbound is not None:
            self._inbound.on_unaddressed()
        self.take(message, call)

    def take(self, message: Envelope, call: object | None = None) -> None:
        """Handle a message with a method; `call` is the call it belongs to."""
        method, request_id = message.method, message.id
        if method is UNSET:
            return
        if request_id is UNSET or request_id is None:
            self._on_notification(method, message.params, call)
        elif len(self._answering) < INBOUND_REQUESTS and request_id not in self._answering:
            scope = self._answering[request_id] = (
                CancelHandle()
            )  # in a callback, without a task or scope
            if call is SEVERAL:
                call = self._pending_requests.doubt()
            self._tasks.start_soon(self._answer, request_id, method, message.params, call, scope)
        # bounded as well: a refusal needs a task and a message
        elif self._refusing < INBOUND_REQUESTS:
            self._refusing += 1
            self._tasks.start_soon(self._refuse, request_id)
        else:
            self.noise(message.params)  # a flood gets no refusals

    def noise(self, data: bytes | Raw) -> None:
        """Count a line that is not a message; some are logged, and all are counted.

        Blank lines are not junk, but their bytes count.
        """
        size = len(data)
        if size:
            self._noise += 1
        now = time.monotonic()
        # once a second: redacting and logging each line of a flood would be expensive
        if size and now - self._warned_at >= 1:
            self._warned_at = now
            self._noise_sample = self._redact(envelope.excerpt(data))
            logger.info("%s: unexpected message: %s", self._origin, self._noise_sample)
        self.count_waste(size)

    def count_waste(self, size: int) -> None:
        """Count bytes of blank lines and comments."""
        self._junk += max(size, _LEAST_JUNK)
        # the clock is read only here: there may be millions of lines
        if self._junk > self._junk_limit:
            self._weigh(time.monotonic())

    def _weigh(self, now: float) -> None:
        """Close the connection if all of the junk arrived within a minute."""
        if now - self._minute > _MINUTE:
            self._minute, self._junk = now, 0
            return
        words = f"it sent over {self._junk_limit:,} bytes of junk within a minute"
        sample = f", such as {self._noise_sample!r}" if self._noise_sample else ""
        self._cut_off(Flooded(f"{words}{sample}", sent=True))

    def evidence(self) -> Evidence:
        return Evidence(noise=self._noise, noise_sample=self._noise_sample)

    def _on_notification(self, method: str, params: Raw, call: object | None) -> None:
        try:
            if method == "notifications/progress":
                report = _parse_progress(params)
                pending = self._pending_requests.get(report.progressToken)
                if pending is not None:
                    pending.on_report(report)
                return
            if method == "notifications/cancelled":
                scope = self._answering.get(_parse_cancelled(params).requestId)
                if scope is not None:
                    scope.cancel()
                return
        except envelope.UNPARSABLE:
            self.noise(params)
            return
        if self._inbound is not None:
            self._inbound.notification(method, params, call)

    async def _answer(
        self,
        request_id: RequestId,
        method: str,
        params: Raw,
        call: object | None,
        scope: CancelHandle,
    ) -> None:
        try:
            with scope:
                if isinstance(call, UnclearOwner):
                    # one of them waits for our answer, and it is not known which: stop all clocks
                    with self._hold_clocks(SEVERAL):
                        call = await self._pending_requests.certain(call)
                with self._hold_clocks(call):
                    await self._send(await self._reply(request_id, method, params, call))
        finally:
            del self._answering[request_id]

    @contextmanager
    def _hold_clocks(self, call: object | None) -> Generator[None]:
        """Stop the clocks of the calls that may wait for our answer."""
        waiting = self._pending_requests.of(call)
        for pending in waiting:
            pending.hold(held=True)
        try:
            yield
        finally:
            for pending in waiting:
                pending.hold(held=False)

    async def _reply(
        self, request_id: RequestId, method: str, params: Raw, call: object | None
    ) -> bytes:
        try:
            if self._inbound is None:
                raise RpcError(SERVER_ERROR, "not ready")  # noqa: TRY301 - all refusals are handled below
            result: Any = await self._inbound.request(method, params, call)
            return envelope.answer(request_id, result)
        except RpcError as exc:
            return envelope.refusal(request_id, exc)
        except Exception:
            logger.exception("%s: answering %s failed", self._origin, quoted(method))
            return envelope.refusal(request_id, RpcError(INTERNAL_ERROR, "internal error"))

    async def _refuse(self, request_id: RequestId) -> None:
        try:
            busy = RpcError(SERVER_ERROR, "too many requests at once")
            await self._send(envelope.refusal(request_id, busy))
        finally:
            self._refusing -= 1
