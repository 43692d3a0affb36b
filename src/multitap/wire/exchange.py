"""Matches the answers on one stream to pending requests, and handles the server's own messages."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from multitap.errors import AnswerInvalid, AnswerTimeout, Flooded, WireFault, quoted
from multitap.redaction import Redactor
from multitap.tasks import CancelHandle, Tasks
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import INTERNAL_ERROR, SERVER_ERROR, Envelope, RequestId, RpcError, parse
from multitap.wire.pending import PendingRequest, PendingRequests, ProgressReport, UnclearOwner
from multitap.wire.wire import INBOUND_REQUESTS, SEVERAL, Evidence, Inbound


def read_message(data: bytes) -> Envelope:
    """The one message in `data`.

    Raises:
        AnswerInvalid: There is none, or more than one; the message quotes `data`.
    """
    if data[:1] != b"{":
        data = data.lstrip(_BLANK)
    try:
        message = jsonrpc.parse(data)
        if not data.isascii():
            data.decode()  # undecoded parts must be valid UTF-8, too
    except jsonrpc.UNPARSABLE as exc:
        raise AnswerInvalid(f"{_flaw(data, exc)}{quote_data(data)}", sent=True) from None
    return message


def no_message(data: bytes) -> AnswerInvalid:
    """The error for `data` that does not begin like a message."""
    flaw = _flaw(data, None)
    return AnswerInvalid(f"{flaw}{quote_data(data)}", sent=True)


def answers(message: Envelope, pending: PendingRequest) -> bool:
    """Whether a message on a request's own stream is its answer.

    An error without an id is one: the server could not read the request.
    """
    if message.method is not UNSET:
        return False
    return message.id == pending.id or (message.id is None and len(message.error) > 0)


def quote_data(data: bytes) -> str:
    """`data` shortened to one line, as the end of an error message."""
    line = jsonrpc.excerpt(b" ".join(data[:1024].split()))
    return f": {line}" if line else ""


def _flaw(data: bytes, exc: Exception | None) -> str:
    start = data.lstrip()[:1]
    if not start:
        return "the answer is empty"
    if start == b"[":
        return "the answer is a batch instead of one message"
    if isinstance(exc, RecursionError):
        return "the answer is nested too deeply"
    if isinstance(exc, UnicodeDecodeError):
        return "the answer is not valid UTF-8"
    return f"the answer is not a JSON-RPC message{f' ({exc})' if exc else ''}"


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
            self._noise_sample = self._redact(jsonrpc.excerpt(data))
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
        reason = f"it sent over {self._junk_limit:,} bytes of junk within a minute"
        sample = f", such as {self._noise_sample!r}" if self._noise_sample else ""
        self._cut_off(Flooded(f"{reason}{sample}", sent=True))

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
        except jsonrpc.UNPARSABLE:
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
            return jsonrpc.answer(request_id, result)
        except RpcError as exc:
            return jsonrpc.refusal(request_id, exc)
        except Exception:
            logger.exception("%s: answering %s failed", self._origin, quoted(method))
            return jsonrpc.refusal(request_id, RpcError(INTERNAL_ERROR, "internal error"))

    async def _refuse(self, request_id: RequestId) -> None:
        try:
            busy = RpcError(SERVER_ERROR, "too many requests at once")
            await self._send(jsonrpc.refusal(request_id, busy))
        finally:
            self._refusing -= 1


_BLANK = b" \t\r\xef\xbb\xbf"  # before a message: white space, a byte order mark


class Exchange:
    """The pending requests of one stream, and the server's own messages.

    Args:
        respond: Delivers our encoded answer to a request of the server.
        tasks: Runs the answers to the server's requests; owned by the wire.
        origin: The server's name for log lines.
        junk_limit: Bytes of junk per minute above which the connection is closed.
        redact: Removes secrets from quoted text.
    """

    def __init__(
        self,
        respond: Callable[[bytes], Awaitable[None]],
        tasks: Tasks,
        origin: str,
        junk_limit: int,
        redact: Redactor,
    ) -> None:
        self.closed = asyncio.Event()
        self.fault: WireFault | None = None
        self.pending_requests = PendingRequests()
        self.begin = self.pending_requests.begin
        """Begins a request, which is pending until `result` or `fail`."""
        self._by_id = self.pending_requests.by_id
        self._is_closed = False
        self.inbound_messages = InboundMessages(
            respond,
            tasks,
            self.pending_requests,
            origin=origin,
            cut_off=self.close,
            junk_limit=junk_limit,
            redact=redact,
        )

    def result(self, pending: PendingRequest, answer: Envelope) -> Raw:
        """End a request with its answer; returns the result.

        Raises:
            RpcError: The answer is an error.
            AnswerInvalid: The answer cannot be used.
        """
        answered = True
        try:
            return jsonrpc.result_of(answer)
        except AnswerInvalid:
            answered = False
            raise
        finally:
            self.pending_requests.leave(pending, answered=answered)

    def fail(
        self, pending: PendingRequest, exc: BaseException, call_off: Callable[[bytes], None] | None
    ) -> None:
        """End a request without an answer.

        Args:
            pending: The request.
            exc: The reason.
            call_off: Sends a cancellation to the server without blocking; None if the server
                need not know.
        """
        self.pending_requests.leave(pending, answered=isinstance(exc, RpcError))
        if pending.answer is None:
            self.pending_requests.give_up(pending)
        if not isinstance(exc, asyncio.CancelledError | AnswerTimeout):
            return
        if call_off is not None and pending.sent and not self.closed.is_set():
            reason = "timed out" if isinstance(exc, AnswerTimeout) else "no longer wanted"
            call_off(jsonrpc.cancellation(pending.id, reason))

    def feed(self, data: bytes) -> bool:
        """Handle one message of the stream; returns whether it was awaited."""
        if self._is_closed:  # late messages of a closed wire
            return False
        if data[:1] != b"{":
            data = data.lstrip(_BLANK)
            if data[:1] != b"{":
                self._misread(data)
                return bool(self._by_id)
        try:
            message = parse(data)
            if not data.isascii():
                data.decode()  # undecoded parts must be valid UTF-8, too
        except jsonrpc.UNPARSABLE:
            self._on_damaged_message(data)
            return bool(self._by_id)
        if message.method is not UNSET:
            self.inbound_messages.overhear(message)
            return bool(self._by_id)
        pending = self._by_id.get(message.id)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - none has such an id
        if pending is None:
            is_wanted = self._settle_other(message)
        else:
            is_wanted = True  # even if it arrived in the turn in which its time was over
            pending.settle(message)
        if not is_wanted:
            self.inbound_messages.noise(data)  # a duplicate, or not a response to us
        return is_wanted or bool(self._by_id)

    def _on_damaged_message(self, data: bytes) -> None:
        try:
            read_message(data)
        except AnswerInvalid as exc:
            self.fail_damaged(data, exc)

    def _misread(self, data: bytes) -> None:
        """Count a line that is not a message; cheap, as there may be millions."""
        if b'"' in data:  # it may be a damaged answer
            self.fail_damaged(data, no_message(data))
        else:
            self.inbound_messages.noise(data)

    def fail_damaged(self, data: bytes, fault: AnswerInvalid) -> None:
        """Fail the request of a damaged answer, if its id can be found; other lines are junk."""
        pending_requests = self.pending_requests
        ids = jsonrpc.recover_ids(data)
        hit = [pending for pending in map(pending_requests.get, ids) if pending is not None]
        if not hit and jsonrpc.looks_like_an_answer(data) and (only := pending_requests.only()):
            hit = [only]
        is_answer = [pending.settle(fault) for pending in hit]
        if not any(is_answer) and not any(map(pending_requests.is_late, ids)):
            self.inbound_messages.noise(data)

    def close(self, fault: WireFault | None, spare: PendingRequest | None = None) -> None:
        """Close: all pending requests fail, except `spare`."""
        if not self.closed.is_set():
            self.fault = fault
            self._is_closed = True
            self.closed.set()
            self.pending_requests.cut(fault, spare)

    def _settle_other(self, message: Envelope) -> bool:
        """Assign an answer without a matching id to the request it may belong to."""
        if message.id is UNSET:
            return False
        if message.id is None:
            pending = self.pending_requests.only() if len(message.error) else None
            if pending is None or not pending.settle(message):
                return False
            self.pending_requests.give_up(pending)  # it was a guess: its own may still come
            return True
        if (twin := self._twin(message.id)) is not None:
            twin.settle(AnswerInvalid("the id of the answer has the wrong type", sent=True))
            return True
        return self.pending_requests.is_late(message.id)

    def _twin(self, request_id: RequestId) -> PendingRequest | None:
        if isinstance(request_id, str) and request_id.isascii() and request_id.isdecimal():
            return self.pending_requests.get(int(request_id))
        return None
