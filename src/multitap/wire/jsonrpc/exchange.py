"""Matches the answers on one stream to pending requests."""

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import UNSET, Raw

from multitap.faults import AnswerInvalid, AnswerTimeout, WireFault
from multitap.redaction import Redactor
from multitap.tasks import Tasks
from multitap.wire.jsonrpc import envelope
from multitap.wire.jsonrpc.envelope import Envelope, RequestId, parse
from multitap.wire.jsonrpc.inbound import InboundMessages
from multitap.wire.jsonrpc.message_reader import no_message, read_message
from multitap.wire.jsonrpc.pending_requests import PendingRequest, PendingRequests
from multitap.wire.wire import RpcError

BRACE = ord("{")
"""The first byte of every result object."""
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
        result, pending_requests = answer.result, self.pending_requests
        if len(result) and memoryview(result)[0] == BRACE and not len(answer.error):
            if pending.answer is None:
                pending_requests.by_id.pop(pending.id, None)
                if pending_requests.doubts:
                    pending_requests.clear_up(pending, answered=True)
            return result
        outcome = envelope.outcome(answer)
        pending_requests.leave(pending, answered=not isinstance(outcome, WireFault))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

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
        if not isinstance(exc, asyncio.CancelledError | AnswerTimeout):
            return
        self.pending_requests.give_up(pending)
        if call_off is not None and pending.sent and not self.closed.is_set():
            reason = "timed out" if isinstance(exc, AnswerTimeout) else "no longer wanted"
            call_off(envelope.calling_off(pending.id, reason))

    def feed(self, data: bytes) -> bool:  # noqa: C901 - in one piece: every answer passes here
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
        except envelope.UNPARSABLE:
            self._on_damaged_message(data)
            return bool(self._by_id)
        if message.method is not UNSET:
            self.inbound_messages.overhear(message)
            return bool(self._by_id)
        pending = self._by_id.get(message.id)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - none has such an id
        if pending is None:
            is_wanted = self._settle_other(message)
        elif pending.fault is not None:
            is_wanted = True  # it arrived in the turn in which its time was over
        else:
            # inlined from `settle`, to save a frame
            pending.answer = message
            del self._by_id[pending.id]  # at once: later messages no longer belong to it
            if self.pending_requests.doubts:
                self.pending_requests.clear_up(pending, answered=True)
            if (wake := pending.wake) is not None:
                pending.wake = None
                wake()
            return True
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
        """Fail the request of a damaged answer, if its id can be found."""
        hit = envelope.recover_ids(data, self.pending_requests)
        if (
            not hit
            and envelope.looks_like_an_answer(data)
            and (only := self.pending_requests.only())
        ):
            hit = {only.id}
        for request_id in hit:
            if (pending := self.pending_requests.get(request_id)) is not None:
                pending.settle(fault)
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
            return pending is not None and pending.settle(message)
        if (twin := self._twin(message.id)) is not None:
            twin.settle(AnswerInvalid("the id of the answer has the wrong type", sent=True))
        return self.pending_requests.is_late(message.id)

    def _twin(self, request_id: RequestId) -> PendingRequest | None:
        if isinstance(request_id, str) and request_id.isascii() and request_id.isdecimal():
            return self.pending_requests.get(int(request_id))
        return None
