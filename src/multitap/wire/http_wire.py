"""What both HTTP wires share: each message is a POST that succeeds or fails alone."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from http import HTTPStatus

import anyio
import msgspec
from msgspec import Raw
from yarl import URL

from multitap.errors import (
    AnswerInvalid,
    AuthRequired,
    RequestFailed,
    SessionLost,
    WireClosed,
    WireFault,
    WrongProtocol,
)
from multitap.http.client.events import Event, EventParser
from multitap.http.client.messages import DEFAULTS, Response, merge
from multitap.limits import Budget, Turns
from multitap.tasks import Tasks
from multitap.wire import jsonrpc
from multitap.wire.exchange import Exchange
from multitap.wire.http_origin import EVENTS, JSON, HttpOrigin
from multitap.wire.jsonrpc import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Envelope,
    Params,
    RequestId,
    RpcError,
)
from multitap.wire.pending import PendingRequest
from multitap.wire.request import Request, make_request

_NOT_NOW = frozenset({408, 425, 429})


class Refusal(msgspec.Struct, frozen=True):
    """An answer with an HTTP status of 400 or more."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def words(self) -> str:
        """The refusal in one line."""
        phrase = HTTPStatus(self.status).phrase if self.status in _KNOWN else ""
        line = f"HTTP {self.status} {phrase}".strip()
        if retry_after := self.headers.get("Retry-After", ""):
            line += f", retry after {jsonrpc.excerpt(retry_after.encode(errors='replace'), 40)}"
        text = b" ".join(self.body[:1024].split())
        return f"{line}: {jsonrpc.excerpt(text)}" if text else line

    def error(self) -> tuple[RequestId | None, RpcError] | None:
        """The JSON-RPC error in the body with its id, where there is one."""
        try:
            message = jsonrpc.parse(self.body)
        except jsonrpc.UNPARSABLE:
            return None
        try:
            jsonrpc.result_of(message)
        except RpcError as error:
            return message.id if isinstance(message.id, int | str) else None, error
        except AnswerInvalid:
            pass
        return None


_KNOWN = frozenset(HTTPStatus)


def meaning(
    refusal: Refusal, request_id: RequestId | None, *, established: bool, in_session: bool
) -> WireFault | RpcError:
    """The exception for a request that was refused.

    Args:
        refusal: The server's response.
        request_id: The request's own id, if it has one.
        established: Whether the handshake is done, so that this must be an MCP server.
        in_session: Whether the request named a session.
    """
    status, reason = refusal.status, refusal.words
    error = refusal.error()
    challenge = refusal.headers.get("WWW-Authenticate")
    # a 403 with a JSON-RPC error comes from the server itself, and is not about credentials
    if status == 401 or (status == 403 and (challenge is not None or error is None)):  # noqa: PLR2004
        return AuthRequired(reason, challenge=challenge)
    # before the error itself: a new handshake restores a lost session, an error is final
    if in_session and _session_is_gone(status, error, request_id):
        return SessionLost(f"the server no longer knows our session ({reason})", sent=False)
    if error is not None:
        return error[1]
    if status in (404, 405) and not established:
        return WrongProtocol(reason, sent=True)
    if is_passing(status) or status in (404, 405):
        return RequestFailed(reason, sent=True)
    return RpcError(INVALID_REQUEST, reason)


def is_passing(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _NOT_NOW


def _session_is_gone(
    status: int, error: tuple[RequestId | None, RpcError] | None, request_id: RequestId | None
) -> bool:
    if status == HTTPStatus.NOT_FOUND:
        mine = error is not None and error[0] is not None and error[0] == request_id
        return not (mine and error is not None and error[1].code == METHOD_NOT_FOUND)
    # many servers send a 400 with a text instead of a 404
    if status == HTTPStatus.BAD_REQUEST and error is not None and error[0] != request_id:
        return "session" in str(error[1]).lower()
    return False


_FIXED = {"Accept": f"{JSON}, {EVENTS}", "Content-Type": JSON}
_NOTIFY = 10.0  # seconds to deliver a message without an answer
_CALL_OFF = 10.0  # seconds to deliver a cancellation: a busy server reads it later
_CALLED_OFF = 64  # cancellations under way at once, each on a connection of its own
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
        self._calling_off = anyio.CapacityLimiter(_CALLED_OFF)
        self.attach = self._inbound_messages.attach
        self.serves_only = self._pending_requests.serve_only
        self.evidence = self._inbound_messages.evidence

    async def notify(
        self, method: str, params: Params | None, *, headers: Mapping[str, str] | None = None
    ) -> None:
        with contextlib.suppress(WireClosed):
            await self._tell(method, jsonrpc.notification(method, params), headers)

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
        headers = {name: value for name in _TOLD if (value := response.header(name)) is not None}
        fault = meaning(
            Refusal(response.status, headers, text),
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
            async with self._calling_off:
                await self._tell("notifications/cancelled", message, in_order=True)
