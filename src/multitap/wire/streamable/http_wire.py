"""What both HTTP wires share: each message is a POST that succeeds or fails alone."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import anyio
from msgspec import Raw
from yarl import URL

from multitap.faults import SessionLost, WireClosed, WireFault
from multitap.http.client.event_parser import Event, EventParser
from multitap.http.client.headers import DEFAULTS, merge
from multitap.http.client.response import Response
from multitap.pace import Budget, Turns
from multitap.tasks import Tasks
from multitap.wire.jsonrpc import envelope
from multitap.wire.jsonrpc.envelope import Envelope
from multitap.wire.jsonrpc.exchange import Exchange
from multitap.wire.jsonrpc.pending_requests import PendingRequest
from multitap.wire.jsonrpc.request import Request, make_request
from multitap.wire.streamable.http_origin import EVENTS, JSON, HttpOrigin
from multitap.wire.streamable.http_status import Refusal, meaning
from multitap.wire.wire import Params, RpcError

_FIXED = {"Accept": f"{JSON}, {EVENTS}", "Content-Type": JSON}
_NOTIFY = 10.0  # seconds to deliver a message without an answer
_CALL_OFF = 2.0  # seconds to deliver a cancellation
_TOLD = ("Retry-After", "WWW-Authenticate")
_REQUEST = 16
"""The weight of a server's request in messages: its answer needs a task and a POST."""
_REFUSAL = 64 * 1024  # bytes of an error page that are read


class HttpWire(ABC):
    """The outgoing half of a wire; subclasses receive the answers."""

    def __init__(self, origin: HttpOrigin, tasks: Tasks) -> None:
        self._exchange = Exchange(
            self._deliver, tasks, origin.name, origin.junk_limit, origin.redact
        )
        self._pending_requests = self._exchange.pending_requests
        self._inbound_messages = self._exchange.inbound_messages
        self._origin = origin
        self._tasks = tasks
        self.closed = self._exchange.closed
        self._endpoint: URL = origin.url
        self._headers = merge(DEFAULTS, origin.headers, _FIXED)
        self._established = False
        self._in_session = False
        self._stateless = False
        self.attach = self._inbound_messages.attach
        self.serves_only = self._pending_requests.serve_only
        self.evidence = self._inbound_messages.evidence

    async def notify(
        self, method: str, params: Params | None, *, headers: Mapping[str, str] | None = None
    ) -> None:
        with contextlib.suppress(WireClosed):
            await self._tell(method, envelope.notification(method, params), headers)

    @property
    def fault(self) -> WireFault | None:
        return self._exchange.fault

    def is_stopped(self) -> bool:
        return False  # not visible over HTTP

    @abstractmethod
    async def request(self, request: Request) -> Raw:
        """Send a request and wait for its answer."""

    async def _tell(
        self,
        method: str,
        message: bytes,
        headers: Mapping[str, str] | None = None,
        *,
        in_order: bool = False,
    ) -> None:
        """Send a message without an answer, in a task."""
        if self.closed.is_set():
            return
        # also pending, although it has no answer: it ends with the wire or its deadline
        pending = self._exchange.begin(make_request(method, None, _NOTIFY))
        try:
            with pending:
                await self._hand_over(pending, message, headers, in_order=in_order)
        finally:
            self._pending_requests.leave(pending)

    async def _hand_over(
        self,
        pending: PendingRequest,
        message: bytes,
        headers: Mapping[str, str] | None,
        *,
        in_order: bool = False,
    ) -> None:
        """Post a message whose answer, if any, does not arrive in the response."""
        response = await self._origin.post(
            self._endpoint, self._headers, headers, message, pending, in_order=in_order
        )
        if not response.ok:
            raise await self._refusal(response, pending)
        self._origin.linger(response)

    async def _post(
        self, pending: PendingRequest, message: bytes, headers: Mapping[str, str] | None
    ) -> Response:
        return await self._origin.post(self._endpoint, self._headers, headers, message, pending)

    async def _read_events(
        self, response: Response, stream: EventParser, hear: Callable[[Turns], Envelope | None]
    ) -> Envelope | None:
        """Pass the events of a response to `hear`, in fair turns.

        Args:
            response: The response.
            stream: The event parser, with unparsed bytes.
            hear: Handles events within a budget; a returned value ends the reading.

        Raises:
            RequestFailed: The response broke off.
            AnswerInvalid: From `hear`.
        """
        turns = Turns()
        try:
            while not self.closed.is_set():
                if (answer := hear(turns)) is not None:
                    return answer
                if stream.drained:
                    if not (chunk := await response.chunk()):
                        return None
                    stream.feed(chunk)
                    turns.begin()
                else:
                    await turns.wait_next()
        except BaseException:
            response.close()
            raise
        response.close()
        return None

    def _take_events(
        self, stream: EventParser, budget: Budget, take: Callable[[Event], bool]
    ) -> bool:
        """Pass available events to `take` within the budget.

        Returns whether any of them was awaited, as `take` reports.
        """
        inbound_messages = self._inbound_messages
        busy = inbound_messages.busy
        useful = False
        while (event := stream.take(budget)) is not None:
            useful |= take(event)
            if inbound_messages.busy > busy:
                busy = inbound_messages.busy
                budget.charge(_REQUEST)
            if budget.spent():
                break
        if stream.wasted:
            inbound_messages.count_waste(stream.wasted)
            stream.wasted = 0
        return useful

    async def _refusal(
        self, response: Response, pending: PendingRequest | None
    ) -> WireFault | RpcError:
        text = await self._origin.beginning(response, _REFUSAL)
        told = {name: value for name in _TOLD if (value := response.header(name)) is not None}
        fault = meaning(
            Refusal(response.status, told, text),
            None if pending is None else pending.id,
            established=self._established,
            in_session=self._in_session,
        )
        if isinstance(fault, SessionLost):
            # this one raises the fault itself
            self._exchange.close(fault, spare=pending)
        return fault

    async def _deliver(self, answer: bytes) -> None:
        with contextlib.suppress(WireFault, RpcError):
            await self._tell("answer", answer)

    def _call_off(self, message: bytes) -> None:
        """Send a cancellation to the server."""
        if not self._stateless:  # in the stateless era, closing the connection cancels
            self._tasks.start_soon(self._tell_off, message)

    async def _tell_off(self, message: bytes) -> None:
        with anyio.move_on_after(_CALL_OFF), contextlib.suppress(WireFault, RpcError):
            await self._tell("notifications/cancelled", message, in_order=True)
