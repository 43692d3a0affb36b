"""What both HTTP wires share: messages go out as POSTs, each with its own fate."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import anyio
from msgspec import Raw
from yarl import URL

from multitap.pace import Budget, Turns
from multitap.tasks import Tasks
from multitap.wire import envelope
from multitap.wire.envelope import Message
from multitap.wire.event_stream import Event, EventStream
from multitap.wire.exchange import Exchange
from multitap.wire.flight import Flight
from multitap.wire.head import DEFAULTS, merged
from multitap.wire.request import Request, made
from multitap.wire.response import Response
from multitap.wire.site import EVENTS, JSON, Site
from multitap.wire.status import Refusal, meaning
from multitap.wire.wire import (
    Params,
    RpcError,
    SessionLost,
    WireClosed,
    WireFault,
)

_FIXED = {"Accept": f"{JSON}, {EVENTS}", "Content-Type": JSON}
_NOTIFY = 10.0  # seconds to deliver what needs no answer
_CALL_OFF = 2.0  # seconds to tell the server that an answer is not wanted any more
_TOLD = ("Retry-After", "WWW-Authenticate")
_REQUEST = 16
"""Messages that a request of the server counts for: to answer it takes a task and a POST."""
_REFUSAL = 64 * 1024  # bytes of an error page that are looked at


class Posting(ABC):
    """The outgoing half of a wire; how answers come back is each kind's own matter."""

    def __init__(self, site: Site, tasks: Tasks) -> None:
        self._exchange = Exchange(self._deliver, tasks, site.name, site.junk_limit, site.redact)
        self._flights = self._exchange.flights
        self._unasked = self._exchange.unasked
        self._site = site
        self._tasks = tasks
        self.closed = self._exchange.closed
        self._endpoint: URL = site.url
        self._headers = merged(DEFAULTS, site.headers, _FIXED)
        self._established = False
        self._in_session = False
        self._stateless = False
        self.attach = self._unasked.attach
        self.serves_only = self._flights.serve_only
        self.evidence = self._unasked.evidence

    async def request(self, request: Request) -> Raw:
        exchange = self._exchange
        flight = exchange.begin(request)
        try:
            answer = await self._converse(request, flight)
        except BaseException as exc:
            exchange.failed(flight, exc, self._call_off if request.cancellable else None)
            raise
        return exchange.result(flight, answer)

    async def notify(
        self, method: str, params: Params | None, *, headers: Mapping[str, str] | None = None
    ) -> None:
        with contextlib.suppress(WireClosed):
            await self._tell(method, envelope.notification(method, params), headers)

    @property
    def fault(self) -> WireFault | None:
        return self._exchange.fault

    def stopped(self) -> bool:
        return False  # nobody can see that from here

    @abstractmethod
    async def _converse(self, request: Request, flight: Flight) -> Message:
        """Send a request and wait for its answer."""

    async def _tell(
        self, method: str, message: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send what needs no answer, in a task."""
        if self.closed.is_set():
            return
        flight = self._exchange.begin(made(method, None, _NOTIFY))
        try:
            with flight:
                await self._hand_over(flight, message, headers)
        finally:
            self._flights.leave(flight)

    async def _hand_over(
        self, flight: Flight, message: bytes, headers: Mapping[str, str] | None
    ) -> None:
        """Send a message whose answer, if any, does not come with the response."""
        response = await self._post(flight, message, headers)
        if not response.ok:
            raise await self._refused(response, flight)
        self._site.linger(response)

    async def _post(
        self, flight: Flight, message: bytes, headers: Mapping[str, str] | None
    ) -> Response:
        return await self._site.post(self._endpoint, self._headers, headers, message, flight)

    async def _read_events(
        self, response: Response, stream: EventStream, hear: Callable[[Turns], Message | None]
    ) -> Message | None:
        """Have the events of a response heard, in fair turns.

        Args:
            response: Whose body they are.
            stream: What cuts them out; something may be left in it.
            hear: Takes events until a budget is spent; ends the reading with what it returns.

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
        self, stream: EventStream, budget: Budget, take: Callable[[Event], bool]
    ) -> bool:
        """Have `take` take the events that are there, until the budget is spent.

        Whether anybody waited for any of them is what each `take` says, and what is returned.
        """
        unasked = self._unasked
        busy = unasked.busy
        useful = False
        while (event := stream.take(budget)) is not None:
            useful |= take(event)
            if unasked.busy > busy:
                busy = unasked.busy
                budget.charge(_REQUEST)
            if budget.spent():
                break
        if stream.wasted:
            unasked.wasted(stream.wasted)
            stream.wasted = 0
        return useful

    async def _refused(self, response: Response, flight: Flight | None) -> WireFault | RpcError:
        text = await self._site.beginning(response, _REFUSAL)
        told = {name: value for name in _TOLD if (value := response.header(name)) is not None}
        fault = meaning(
            Refusal(response.status, told, text),
            None if flight is None else flight.id,
            established=self._established,
            in_session=self._in_session,
        )
        if isinstance(fault, SessionLost):
            self._exchange.close(fault, spare=flight)
        return fault

    async def _deliver(self, answer: bytes) -> None:
        with contextlib.suppress(WireFault, RpcError):
            await self._tell("answer", answer)

    def _call_off(self, message: bytes) -> None:
        """Have the server know that an answer is not wanted any more."""
        if not self._stateless:  # there, that the connection closes says enough
            self._tasks.start_soon(self._tell_off, message)

    async def _tell_off(self, message: bytes) -> None:
        with anyio.move_on_after(_CALL_OFF):
            await self._deliver(message)
