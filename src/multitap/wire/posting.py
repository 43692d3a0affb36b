"""What both HTTP wires share: messages go out as POSTs, each with its own fate."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping

import aiohttp
import anyio
from anyio.abc import TaskGroup
from msgspec import Raw
from multidict import CIMultiDict
from yarl import URL

from multitap.wire import envelope
from multitap.wire.envelope import Message
from multitap.wire.flight import Flight, Flights, closing
from multitap.wire.site import EVENTS, JSON, Body, Site
from multitap.wire.status import Refusal, meaning
from multitap.wire.unasked import Unasked
from multitap.wire.wire import (
    AnswerTimeout,
    OnProgress,
    Params,
    RpcError,
    SessionLost,
    WireClosed,
    WireFault,
)

_DEFAULTS = {"User-Agent": "multitap", "Accept-Encoding": "gzip, deflate"}
_FIXED = {"Accept": f"{JSON}, {EVENTS}", "Content-Type": JSON}
_NOTIFY = 10.0  # seconds to deliver what needs no answer
_CALL_OFF = 2.0  # seconds to tell the server that an answer is not wanted any more
_REFUSAL = 64 * 1024  # bytes of an error page that are looked at


class Posting(ABC):
    """The outgoing half of a wire; how answers come back is each kind's own matter."""

    def __init__(self, site: Site, tasks: TaskGroup) -> None:
        self.closed = asyncio.Event()
        self.fault: WireFault | None = None
        self._site = site
        self._tasks = tasks
        self._flights = Flights()
        self._unasked = Unasked(self._deliver, tasks, self._flights, site.name)
        self._endpoint: URL = site.url
        self._headers = merged(_DEFAULTS, site.headers, _FIXED)
        self._established = False
        self._in_session = False
        self._stateless = False
        self.attach = self._unasked.attach
        self.evidence = self._unasked.evidence

    async def request(
        self,
        method: str,
        params: Params | None,
        *,
        timeout: float | None,
        hard_timeout: float | None = None,
        on_progress: OnProgress | None = None,
        headers: Mapping[str, str] | None = None,
        call: object | None = None,
        cancellable: bool = True,
    ) -> Raw:
        if self.closed.is_set():
            raise closing(self.fault, sent=False)
        flight = Flight(
            self._flights,
            method,
            timeout=timeout,
            hard_timeout=hard_timeout,
            on_progress=on_progress,
            call=call,
        )
        if on_progress is not None:
            params = envelope.with_progress_token(params, flight.id)
        message = envelope.request(flight.id, method, params)
        try:
            with flight:
                return envelope.outcome(await self._ask(flight, message, headers))
        except (asyncio.CancelledError, AnswerTimeout) as exc:
            if cancellable and flight.sent:
                self._call_off(flight, exc)
            raise

    async def notify(
        self, method: str, params: Params | None, *, headers: Mapping[str, str] | None = None
    ) -> None:
        with contextlib.suppress(WireClosed):
            await self._tell(method, envelope.notification(method, params), headers)

    def stopped(self) -> bool:
        return False  # nobody can see that from here

    @abstractmethod
    async def _ask(
        self, flight: Flight, message: bytes, headers: Mapping[str, str] | None
    ) -> Message:
        """Send the flight's message and wait for its answer."""

    def _close(self, fault: WireFault | None, spare: Flight | None = None) -> None:
        if not self.closed.is_set():
            self.fault = fault
            self.closed.set()
            self._flights.cut(fault, spare)

    async def _tell(
        self, method: str, message: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        if self.closed.is_set():
            return
        with Flight(self._flights, method, timeout=_NOTIFY) as flight:
            await self._hand_over(flight, message, headers)

    async def _hand_over(
        self, flight: Flight, message: bytes, headers: Mapping[str, str] | None
    ) -> None:
        """Send a message whose answer, if any, does not come with the response."""
        response = await self._post(flight, message, headers)
        if not response.ok:
            raise await self._refused(response, flight)
        response.release()

    async def _post(
        self, flight: Flight, message: bytes, headers: Mapping[str, str] | None
    ) -> aiohttp.ClientResponse:
        every = self._headers if headers is None else merged(self._headers, headers)
        return await self._site.post(self._endpoint, every, Body(message, flight))

    async def _refused(
        self, response: aiohttp.ClientResponse, flight: Flight | None
    ) -> WireFault | RpcError:
        text = await self._site.beginning(response, _REFUSAL)
        fault = meaning(
            Refusal(response.status, response.headers, text),
            None if flight is None else flight.id,
            established=self._established,
            in_session=self._in_session,
        )
        if isinstance(fault, SessionLost):
            self._close(fault, spare=flight)
        return fault

    async def _deliver(self, answer: bytes) -> None:
        with contextlib.suppress(WireFault, RpcError):
            await self._tell("answer", answer)

    def _call_off(self, flight: Flight, why: BaseException) -> None:
        # without a session, that the connection closes says enough
        if not self._stateless and not self.closed.is_set():
            reason = "timed out" if isinstance(why, AnswerTimeout) else "no longer wanted"
            self._tasks.start_soon(self._called_off, flight.id, reason)

    async def _called_off(self, request_id: int, reason: str) -> None:
        params = {"requestId": request_id, "reason": reason}
        with anyio.move_on_after(_CALL_OFF):
            await self._deliver(envelope.notification("notifications/cancelled", params))


def merged(*layers: Mapping[str, str]) -> CIMultiDict[str]:
    """Headers of several layers; the last one that names a header wins."""
    result: CIMultiDict[str] = CIMultiDict()
    for layer in layers:
        result.update(layer)
    return result
