"""Streamable HTTP: each request is answered by JSON or by its own event stream."""

import contextlib
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus

import anyio
import msgspec
from msgspec import UNSET, Raw

from multitap.config.models import HttpServer
from multitap.errors import AnswerInvalid, RequestFailed, SessionLost, WireFault, ungrouped
from multitap.http.client.client import http_client
from multitap.http.client.connection import ClientConnection, Heard
from multitap.http.client.events import Event, EventParser
from multitap.http.client.messages import Response, merge, without
from multitap.limits import Budget, Turns
from multitap.tasks import Tasks
from multitap.wire.exchange import answers, quote_data, read_message
from multitap.wire.http_origin import EVENTS, JSON, REDIRECT, Authorizer, ClientFactory, HttpOrigin
from multitap.wire.http_wire import HttpWire, is_passing
from multitap.wire.jsonrpc import Envelope, RpcError
from multitap.wire.pending import PendingRequest
from multitap.wire.request import Request

_SESSION = "Mcp-Session-Id"
_VERSION = "Mcp-Protocol-Version"

_FAREWELL = 1.0  # seconds to end the session
_QUOTED = 1024  # bytes of an unusable answer that are read
_RETRY = 1.0  # seconds before a stream is reopened, unless the server sets them
_LONGEST_GROWTH = 30.0
_LONGEST_ASKED = 300.0
_OK = int(HTTPStatus.OK)  # comparing with an enum member takes 20 times as long
_NO_ANSWER = REDIRECT | {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
_RESUMES = 5  # consecutive failures after which a broken stream is not resumed


@asynccontextmanager
async def open_streamable(
    config: HttpServer,
    *,
    authorizer: Authorizer | None = None,
    client_factory: ClientFactory = http_client,
) -> AsyncGenerator["StreamableWire"]:
    """A wire to the server at `config.url`; nothing is sent before the first request."""
    async with HttpOrigin(config, client_factory, authorizer) as origin:
        with ungrouped():
            async with Tasks() as tasks:
                wire = StreamableWire(origin, tasks)
                try:
                    yield wire
                finally:
                    await wire.aclose()


class SentOn(msgspec.Struct, eq=False):
    """The connection on which a request was sent."""

    connection: ClientConnection
    head: bytes
    """The head with which it was sent."""
    on_reply: Heard
    stream: EventParser | None = None
    """Parses the response, if it has events."""


class StreamableWire(HttpWire):
    """See `Wire`; for both eras, chosen by `establish`."""

    kind = "streamable-http"

    def establish(self, protocol_version: str, *, stateless: bool) -> None:
        self._established = self._origin.is_established = True
        if stateless:
            self._stateless = True
            self._in_session = False
            self._headers = without(self._headers, _SESSION)
        else:
            self._headers = merge(self._headers, {_VERSION: protocol_version})
            # not before: servers refuse a GET that names no session
            self._tasks.start_soon(self._listen)

    async def aclose(self) -> None:
        """Fail all requests, and end the session."""
        farewell = self._in_session and not self.closed.is_set()
        self._exchange.close(None)
        if farewell:
            with anyio.move_on_after(_FAREWELL, shield=True), contextlib.suppress(WireFault):
                (await self._origin.ask("DELETE", self._headers)).close()

    async def request(self, request: Request) -> Raw:
        exchange, pending = self._exchange, request.pending
        request.pending = None
        if pending is None:
            pending = exchange.begin(request)
        try:
            if pending.sent or self._send_at_once(pending):
                response = await _wait_response(pending)
                answer = (
                    pending.answer
                    or self._plain_answer(response, pending)
                    or await self._answer(response, pending)
                )
            else:
                answer = await self._connect_and_ask(request, pending, pending.message())
        except BaseException as exc:
            exchange.fail(pending, exc, self._call_off if request.cancellable else None)
            raise
        finally:
            pending.connection = None  # breaks the reference cycle
        return exchange.result(pending, answer)

    def begin(self, request: Request, on_news: Callable[[], None]) -> bool:
        """See `DirectWire`."""
        pending = self._exchange.begin(request)
        if not self._send_at_once(pending):
            self._pending_requests.leave(pending)
            return False
        request.pending = pending
        pending.listen(on_news)
        return True

    def _send_at_once(self, pending: PendingRequest) -> bool:
        """Send a request on an idle connection, if there is one."""
        request = pending.request
        idle = self._origin.idle(self._endpoint, self._headers, request.headers)
        if idle is None or request.method == "initialize":
            return False
        connection, head = idle
        pending.sent = True
        on_reply = partial(self._on_reply, pending)
        pending.connection = SentOn(connection, head, on_reply)
        connection.send(head, pending.message(), on_reply)
        return True

    def _on_reply(self, pending: PendingRequest, outcome: Response | WireFault) -> None:
        """Take what came back on a connection: usually the whole answer."""
        if isinstance(outcome, Response) and (answer := self._answer_in_sight(outcome, pending)):
            pending.reply = outcome
            pending.settle(answer)
            pending.connection = None  # breaks the reference cycle
        else:
            pending.on_reply(outcome)

    def _answer_in_sight(
        self, response: Response, pending: PendingRequest
    ) -> Envelope | AnswerInvalid | None:
        """The answer in what has arrived of a response; None if there is more to do."""
        sent_on: SentOn = pending.connection
        try:
            if response.status == _OK and response.content_type == EVENTS:
                sent_on.stream = EventParser(self._origin.limit)
                return self._next(response, pending, sent_on.stream)
            return self._plain_answer(response, pending)
        except AnswerInvalid as exc:
            response.close()
            return exc

    def _plain_answer(self, response: Response, pending: PendingRequest) -> Envelope | None:
        """The answer in a complete response, the usual case; None if it needs more work."""
        if response.status != _OK or response.content_type != JSON:
            return None
        body = response.body
        if body is None or len(body) > self._origin.limit:
            body = self._origin.whole(response)
        return None if body is None else _match(body, pending)

    async def _connect_and_ask(
        self, request: Request, pending: PendingRequest, message: bytes
    ) -> Envelope:
        """Send a request that needs a new connection, or opens a session."""
        with pending:
            response = await self._post(pending, message, request.headers)
            if request.method == "initialize" and response.ok:
                self._begin_session(response.header(_SESSION))
            return await self._answer_in(response, pending, EventParser(self._origin.limit))

    async def _answer(
        self,
        response: Response,
        pending: PendingRequest,
    ) -> Envelope:
        """The answer in a response; needs a task only if it has to wait."""
        sent_on: SentOn = pending.connection  # there is no answer yet
        stream = sent_on.stream or EventParser(self._origin.limit)
        try:
            is_events = response.status == _OK and response.content_type == EVENTS
            if is_events and (answer := await self._wait_next(response, pending, stream)):
                return answer
        except BaseException:
            response.heed(None)
            response.close()
            raise
        with pending:
            if response.status in _NO_ANSWER:
                response = await self._origin.pursue(
                    response,
                    self._endpoint,
                    self._headers,
                    extra=pending.request.headers,
                    message=pending.message(),
                    pending=pending,
                    head=sent_on.head,
                )
            return await self._answer_in(response, pending, stream)

    def _next(
        self, response: Response, pending: PendingRequest, stream: EventParser
    ) -> Envelope | None:
        """The answer among the events that are here; None if it is not."""
        if (chunk := response.here()) is None:
            return None
        if chunk:
            stream.feed(chunk)
        answer = self._hear(stream, pending, Budget())
        if answer is not None:
            self._origin.linger(response)
        return answer

    async def _wait_next(
        self, response: Response, pending: PendingRequest, stream: EventParser
    ) -> Envelope | None:
        """The answer among the next events; None if it takes more turns."""
        while (answer := self._next(response, pending, stream)) is None:
            if response.is_compressed or response.ended or not stream.drained:
                break
            response.heed(pending.stir)
            if pending.fault is None:
                await pending.news()
            if pending.fault is not None:
                pending.raise_fault()
        return answer

    async def _answer_in(
        self, response: Response, pending: PendingRequest, stream: EventParser
    ) -> Envelope:
        """The answer to a request, as JSON or on an event stream.

        Raises:
            RpcError: The answer is an error.
            WireFault: There is none.
        """
        kind = response.content_type
        if response.status == _OK and kind == EVENTS:
            return await self._follow(response, pending, stream)
        if response.status == _OK and kind == JSON:
            return _match(await self._origin.read(response), pending)
        if response.ok:
            raise _unusable(response, await self._origin.beginning(response, _QUOTED))
        raise await self._refusal(response, pending)

    def _begin_session(self, name: str | None) -> None:
        if name is not None:
            self._headers = merge(self._headers, {_SESSION: name})
            self._in_session = True

    async def _follow(
        self, response: Response, pending: PendingRequest, stream: EventParser
    ) -> Envelope:
        """The answer from an event stream, which is resumed if it breaks off."""
        while True:
            try:
                answer = await self._answer_among(response, stream, pending)
                if answer is not None:
                    self._origin.linger(response)
                    return answer
                fault = RequestFailed("the event stream ended before the answer", sent=True)
            except RequestFailed as exc:
                fault = exc
            # no event id to resume from; the stateless era has none
            if self._stateless or not stream.last_id:
                raise fault
            response = await self._resume(stream, pending, fault)

    async def _answer_among(
        self, response: Response, stream: EventParser, pending: PendingRequest
    ) -> Envelope | None:
        return await self._read_events(
            response, stream, lambda turns: self._hear(stream, pending, turns.budget)
        )

    async def _resume(
        self, stream: EventParser, pending: PendingRequest, fault: WireFault | RpcError
    ) -> Response:
        for failures in range(_RESUMES):
            await anyio.sleep(pause(stream.retry, failures))
            try:
                response = await self._open_stream(stream)
            except RequestFailed as exc:
                fault = exc
                continue
            if response.status == _OK and response.content_type == EVENTS:
                return response
            fault = await self._refusal(response, pending)
            if isinstance(fault, SessionLost):
                raise SessionLost(str(fault), sent=True)
            if not is_passing(response.status):
                break
        raise RequestFailed(f"the answer broke off and cannot be resumed: {fault}", sent=True)

    async def _listen(self) -> None:
        """Receive the server's messages between requests, while the wire is open."""
        stream = EventParser(self._origin.limit)
        opened = False
        failures = 0
        while not self.closed.is_set():
            with contextlib.suppress(WireFault):
                response = await self._open_stream(stream)
                if response.status == _OK and response.content_type == EVENTS:
                    opened = True
                    if await self._listen_to(response, stream):
                        failures = 0
                else:
                    response.close()
                    if response.status == HTTPStatus.NOT_FOUND and opened and self._in_session:
                        reason = "the server no longer knows our session (HTTP 404)"
                        self._exchange.close(SessionLost(reason, sent=False))
                    elif not is_passing(response.status):
                        return  # this server has no such stream
            await anyio.sleep(pause(stream.retry, failures))
            failures += 1

    async def _listen_to(self, response: Response, stream: EventParser) -> bool:
        """Read the stream to its end; returns whether it had any events."""
        has_events = False

        def hear(turns: Turns) -> None:
            nonlocal has_events
            has_events = has_events or not stream.drained
            self._hear(stream, None, turns.budget)

        with contextlib.suppress(RequestFailed):
            await self._read_events(response, stream, hear)
        return has_events

    async def _open_stream(self, stream: EventParser) -> Response:
        headers = without(merge(self._headers, {"Accept": EVENTS}), "Content-Type")
        if stream.last_id:
            headers["Last-Event-ID"] = stream.last_id
        stream.restart()
        return await self._origin.ask("GET", headers)

    def _hear(
        self, stream: EventParser, pending: PendingRequest | None, budget: Budget
    ) -> Envelope | None:
        """Handle available events within a budget; returns the answer to the request, if any.

        Raises:
            AnswerInvalid: The answer cannot be used.
        """
        answer: Envelope | None = None

        def take(event: Event) -> bool:
            nonlocal answer
            if event.kind == "message" and event.data:
                match = self._take(event, pending if answer is None else None)
                answer = answer or match
            else:  # without data it only sets the event id
                self._inbound_messages.count_waste(len(event.data))
            return answer is not None

        self._take_events(stream, budget, take)
        if pending is not None and answer is None and stream.oversized:
            raise self._origin.oversized_answer()
        return answer

    def _take(self, event: Event, pending: PendingRequest | None) -> Envelope | None:
        try:
            message = self._read(event)
        except AnswerInvalid:
            if pending is not None and event.data.startswith((b"{", b"[")):
                raise
            message = None
        if message is None:
            self._inbound_messages.noise(event.data)
            return None
        if pending is not None and answers(message, pending):
            return message
        if message.method is UNSET:
            request_id = None if message.id is UNSET else message.id
            if not self._pending_requests.is_late(request_id):
                self._inbound_messages.noise(event.data)  # a duplicate, or not a response to us
        elif pending is None:  # between requests, servers ask in the middle of a call too
            self._inbound_messages.overhear(message)
        else:
            self._inbound_messages.take(message, pending.request.call)
        return None

    def _read(self, event: Event) -> Envelope | None:
        if event.oversized:
            raise self._origin.oversized_answer()
        if event.data.lstrip().startswith((b"{", b"[")):
            return read_message(event.data)
        return None  # not parsed: there may be millions of them


async def _wait_response(pending: PendingRequest) -> Response:
    """The response on an idle connection."""
    try:
        if pending.reply is None and pending.fault is None:
            await pending.news()
        response: Response | None = pending.reply
        if response is None or (pending.answer is None and pending.fault is not None):
            pending.raise_fault()
    except BaseException:
        sent_on: SentOn | None = pending.connection
        if sent_on is not None:
            sent_on.connection.forget(sent_on.on_reply)
        if pending.reply is not None:
            pending.reply.close()
        raise
    return response


def _match(body: bytes, pending: PendingRequest) -> Envelope:
    """The answer in a JSON body, which must belong to this request."""
    message = read_message(body)
    if (message.id != pending.id or message.method is not UNSET) and not answers(message, pending):
        raise AnswerInvalid(f"the answer is to another request{quote_data(body)}", sent=True)
    return message


def pause(retry: float | None, failures: int) -> float:
    """Seconds before a stream is reopened: what the server asked for, or more."""
    least = _RETRY if retry is None else min(retry, _LONGEST_ASKED)
    most = min(_LONGEST_GROWTH, _RETRY * 2 ** min(failures, 8))
    return max(least, random.uniform(0, most)) if failures else least  # noqa: S311 - no secret


def _unusable(response: Response, beginning: bytes) -> AnswerInvalid:
    kind = ascii(response.content_type).strip("'") or "no content type"
    flaw = f"HTTP {response.status} with {kind} instead of JSON or an event stream"
    return AnswerInvalid(f"{flaw}{quote_data(beginning)}", sent=True)
