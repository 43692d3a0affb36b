"""Answers that arrive on one stream, matched to the requests under way."""

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import UNSET, Raw

from multitap.redaction import Redactor
from multitap.tasks import Tasks
from multitap.wire import envelope
from multitap.wire.envelope import Message, RequestId, parse
from multitap.wire.flight import Flight, Flights, closing
from multitap.wire.reading import no_message, read_message
from multitap.wire.request import Request
from multitap.wire.unasked import Unasked
from multitap.wire.wire import AnswerInvalid, AnswerTimeout, RpcError, WireFault

_BRACE = ord("{")
_BLANK = b" \t\r\xef\xbb\xbf"  # before a message: white space, a byte order mark


class Exchange:
    """The requests under way on one stream, and what the server says unasked.

    Args:
        respond: Delivers our encoded answer to a request of the server.
        tasks: Where the server's requests are answered; owned by the wire.
        origin: Who the server is, for log lines.
        junk_limit: Bytes a minute of what is no message, after which we hang up.
        redact: Takes secrets out of what is quoted.
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
        self.flights = Flights()
        self._by_id = self.flights.by_id
        self._is_closed = False
        self.unasked = Unasked(
            respond,
            tasks,
            self.flights,
            origin=origin,
            cut_off=self.close,
            junk_limit=junk_limit,
            redact=redact,
        )

    def begin(self, request: Request) -> Flight:
        """A request is under way from here on, until `result` or `failed`.

        Raises:
            WireClosed: The wire is closed.
        """
        if self._is_closed:
            raise closing(self.fault, sent=False)
        flights = self.flights
        flight = Flight(flights, request)
        flights.by_id[flight.id] = flight
        if request.deadline.at < flights.due:
            flights.wake_at(request.deadline.at)
        return flight

    def result(self, flight: Flight, answer: Message) -> Raw:
        """The result in the answer to a request, which has come to its end.

        Raises:
            RpcError: The answer is an error.
            AnswerInvalid: The answer cannot be used.
        """
        result, flights = answer.result, self.flights
        if len(result) and memoryview(result)[0] == _BRACE and not len(answer.error):
            if flight.answer is None:
                flights.leave(flight, answered=True)
            return result
        outcome = envelope.outcome(answer)
        flights.leave(flight, answered=not isinstance(outcome, WireFault))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def failed(
        self, flight: Flight, exc: BaseException, call_off: Callable[[bytes], None] | None
    ) -> None:
        """A request has come to its end without an answer.

        Args:
            flight: Which one.
            exc: Why.
            call_off: Tells the server, without blocking, that the answer is not wanted any more;
                None: it need not know.
        """
        self.flights.leave(flight, answered=isinstance(exc, RpcError))
        if not isinstance(exc, asyncio.CancelledError | AnswerTimeout):
            return
        self.flights.given_up.append(flight.id)
        if call_off is not None and flight.sent and not self.closed.is_set():
            reason = "timed out" if isinstance(exc, AnswerTimeout) else "no longer wanted"
            call_off(envelope.calling_off(flight.id, reason))

    def feed(self, data: bytes) -> bool:
        """Take one message of the stream; whether anybody waited for it."""
        if self._is_closed:  # what is still on its way is nobody's any more
            return False
        if data[:1] != b"{":
            data = data.lstrip(_BLANK)
            if data[:1] != b"{":
                self._misread(data)
                return False
        try:
            message = parse(data)
            if not data.isascii():
                data.decode()  # what is left undecoded must be text, too
        except envelope.UNPARSABLE:
            self._damaged_message(data)
            return False
        if message.method is not UNSET:
            self.unasked.overhear(message)
            return False
        flight = self._by_id.get(message.id)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - none has such an id
        is_wanted = self._settle_other(message) if flight is None else flight.settle(message)
        if not is_wanted:
            self.unasked.noise(data)  # twice, or never asked
        return is_wanted

    def _damaged_message(self, data: bytes) -> None:
        try:
            read_message(data)
        except AnswerInvalid as exc:
            self.damaged(data, exc)

    def _misread(self, data: bytes) -> None:
        """Take what is no message, as cheaply as can be: there may be millions of it."""
        if b'"' in data:  # it may be what is left of an answer
            self.damaged(data, no_message(data))
        else:
            self.unasked.noise(data)

    def damaged(self, data: bytes, fault: AnswerInvalid) -> None:
        """Fail the request whose answer this was, where that can be seen."""
        hit = envelope.recover_ids(data, self.flights)
        if not hit and envelope.looks_like_an_answer(data) and (only := self.flights.only()):
            hit = {only.id}
        for request_id in hit:
            if (flight := self.flights.get(request_id)) is not None:
                flight.settle(fault)
        self.unasked.noise(data)

    def close(self, fault: WireFault | None, spare: Flight | None = None) -> None:
        """No more messages: whoever waits is told, but for `spare`, which knows."""
        if not self.closed.is_set():
            self.fault = fault
            self._is_closed = True
            self.closed.set()
            self.flights.cut(fault, spare)

    def _settle_other(self, message: Message) -> bool:
        """Give an answer to whom it may belong though it has no id of theirs."""
        if message.id is UNSET:
            return False
        if message.id is None:
            flight = self.flights.only() if len(message.error) else None
            return flight is not None and flight.settle(message)
        if (twin := self._twin(message.id)) is not None:
            twin.settle(AnswerInvalid("the answer carries the id as another type", sent=True))
        return message.id in self.flights.given_up

    def _twin(self, request_id: RequestId) -> Flight | None:
        if isinstance(request_id, str) and request_id.isascii() and request_id.isdecimal():
            return self.flights.get(int(request_id))
        return None
