"""Streamable HTTP: each request is answered by JSON or by an event stream of its own."""

import contextlib
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http import HTTPStatus

import anyio
from msgspec import UNSET

from multitap.config import HttpServer
from multitap.errors import ungrouped
from multitap.pace import Budget, Turns
from multitap.tasks import Tasks, in_task
from multitap.wire.client import http_client
from multitap.wire.envelope import Message
from multitap.wire.event_stream import Event, EventStream
from multitap.wire.flight import Flight
from multitap.wire.head import merged, without
from multitap.wire.posting import Posting
from multitap.wire.reading import answers, quoted, read_message
from multitap.wire.request import Request
from multitap.wire.response import Response
from multitap.wire.site import EVENTS, JSON, Authorize, ClientFactory, Site
from multitap.wire.status import is_passing
from multitap.wire.wire import (
    AnswerInvalid,
    RequestFailed,
    RpcError,
    SessionLost,
    WireFault,
)

_SESSION = "Mcp-Session-Id"
_VERSION = "Mcp-Protocol-Version"

_FAREWELL = 1.0  # seconds to end the session
_QUOTED = 1024  # bytes of an unusable answer that are looked at
_RETRY = 1.0  # seconds before a stream is opened again, where the server says nothing
_LONGEST_GROWTH = 30.0
_LONGEST_ASKED = 300.0
_RESUMES = 5  # failures in a row before a broken answer is given up


@asynccontextmanager
async def open_http(
    config: HttpServer,
    *,
    authorize: Authorize | None = None,
    client_factory: ClientFactory = http_client,
) -> AsyncGenerator["HttpWire"]:
    """A wire to the server at `config.url`; nothing is sent before the first request."""
    async with Site(config, client_factory, authorize) as site:
        with ungrouped():
            async with Tasks() as tasks:
                wire = HttpWire(site, tasks)
                try:
                    yield wire
                finally:
                    await wire.aclose()


class HttpWire(Posting):
    """See `Wire`; both eras, told apart by `established`."""

    kind = "streamable-http"

    def established(self, protocol_version: str, *, stateless: bool) -> None:
        self._established = True
        if stateless:
            self._stateless = True
            self._in_session = False
            self._headers = without(self._headers, _SESSION)
        else:
            self._headers = merged(self._headers, {_VERSION: protocol_version})
            self._tasks.start_soon(self._listen)

    async def aclose(self) -> None:
        """Cut what is under way, and end the session."""
        farewell = self._in_session and not self.closed.is_set()
        self._exchange.close(None)
        if farewell:
            with anyio.move_on_after(_FAREWELL, shield=True), contextlib.suppress(WireFault):
                (await self._site.ask("DELETE", self._headers)).close()

    async def _converse(self, request: Request, flight: Flight) -> Message:
        message = request.encoded(flight.id)
        opens = request.method == "initialize"
        idle = self._site.idle(self._endpoint, self._headers, request.headers)
        if idle is not None and not opens:
            connection, head = idle
            flight.sent = True
            responded = flight.responded  # the connection knows it by this very object
            connection.send(head, message, responded)
            try:
                while (response := flight.response) is None:
                    await flight
            except BaseException:
                connection.forget(responded)
                if flight.response is not None:
                    flight.response.close()
                raise
            kind = response.content_type if response.status == HTTPStatus.OK else ""
            if kind == JSON and (body := self._site.whole(response)) is not None:
                return self._matched(body, flight)
            return await self._answer(response, flight, request)
        await in_task(request.light)
        with flight:
            response = await self._post(flight, message, request.headers)
            if opens and response.ok:
                self._begin_session(response.header(_SESSION))
            return await self._answer_in(response, flight, EventStream(self._site.limit))

    async def _answer(self, response: Response, flight: Flight, request: Request) -> Message:
        """The answer in a response, in a task only where it has to be waited for."""
        stream = EventStream(self._site.limit)
        try:
            is_events = response.status == HTTPStatus.OK and response.content_type == EVENTS
            if is_events and (answer := await self._next(response, flight, stream)) is not None:
                return answer
            await in_task(request.light)
        except BaseException:
            response.heed(None)
            response.close()
            raise
        with flight:
            return await self._answer_in(response, flight, stream)

    async def _next(
        self, response: Response, flight: Flight, stream: EventStream
    ) -> Message | None:
        """The answer among events that come one by one; None where that takes more turns."""
        while (chunk := response.here()) is not None:
            if chunk:
                stream.feed(chunk)
            answer = self._hear(stream, flight, Budget())
            if answer is not None:
                self._site.linger(response)
                return answer
            if response.ended or not stream.drained:
                break
            response.heed(flight.stir)
            await flight
        return None

    async def _answer_in(self, response: Response, flight: Flight, stream: EventStream) -> Message:
        """The answer to a request, however it comes.

        Args:
            response: What came of the POST.
            flight: The request.
            stream: What was heard of it before.

        Raises:
            RpcError: The answer is an error.
            WireFault: There is none.
        """
        kind = response.content_type
        if response.status == HTTPStatus.OK and kind == EVENTS:
            return await self._follow(response, flight, stream)
        if response.status == HTTPStatus.OK and kind == JSON:
            return self._matched(await self._site.read(response), flight)
        if response.ok:
            raise await self._unusable(response)
        raise await self._refused(response, flight)

    def _begin_session(self, name: str | None) -> None:
        if name is not None:
            self._headers = merged(self._headers, {_SESSION: name})
            self._in_session = True

    def _matched(self, body: bytes, flight: Flight) -> Message:
        """The answer in a JSON body, which must be to this very request."""
        message = read_message(body)
        if not answers(message, flight):
            raise AnswerInvalid(f"the answer is to another question{quoted(body)}", sent=True)
        return message

    async def _unusable(self, response: Response) -> AnswerInvalid:
        text = await self._site.beginning(response, _QUOTED)
        kind = ascii(response.content_type).strip("'") or "no content type"
        words = f"HTTP {response.status} with {kind} instead of JSON or an event stream"
        return AnswerInvalid(f"{words}{quoted(text)}", sent=True)

    async def _follow(self, response: Response, flight: Flight, stream: EventStream) -> Message:
        """The answer from an event stream, which is resumed where it breaks off."""
        while True:
            try:
                answer = await self._answer_among(response, stream, flight)
                if answer is not None:
                    self._site.linger(response)
                    return answer
                fault = RequestFailed("the event stream ended before the answer", sent=True)
            except RequestFailed as exc:
                fault = exc
            if self._stateless or not stream.last_id:
                raise fault
            response = await self._resumed(stream, flight, fault)

    async def _answer_among(
        self, response: Response, stream: EventStream, flight: Flight
    ) -> Message | None:
        return await self._read_events(
            response, stream, lambda turns: self._hear(stream, flight, turns.budget)
        )

    async def _resumed(
        self, stream: EventStream, flight: Flight, fault: WireFault | RpcError
    ) -> Response:
        for failures in range(_RESUMES):
            await anyio.sleep(pause(stream.retry, failures))
            try:
                response = await self._open_stream(stream)
            except RequestFailed as exc:
                fault = exc
                continue
            if response.status == HTTPStatus.OK and response.content_type == EVENTS:
                return response
            fault = await self._refused(response, flight)
            if isinstance(fault, SessionLost):
                raise SessionLost(str(fault), sent=True)
            if not is_passing(response.status):
                break
        raise RequestFailed(f"the answer broke off and cannot be resumed: {fault}", sent=True)

    async def _listen(self) -> None:
        """Hear what the server says between requests, for as long as the wire lives."""
        stream = EventStream(self._site.limit)
        opened = False
        failures = 0
        while not self.closed.is_set():
            with contextlib.suppress(WireFault):
                response = await self._open_stream(stream)
                if response.status == HTTPStatus.OK and response.content_type == EVENTS:
                    opened = True
                    if await self._listen_to(response, stream):
                        failures = 0
                else:
                    response.close()
                    if response.status == HTTPStatus.NOT_FOUND and opened and self._in_session:
                        words = "the server does not know our session any more (HTTP 404)"
                        self._exchange.close(SessionLost(words, sent=False))
                    elif not is_passing(response.status):
                        return  # this server has nothing to say between requests
            await anyio.sleep(pause(stream.retry, failures))
            failures += 1

    async def _listen_to(self, response: Response, stream: EventStream) -> bool:
        """Hear it out; whether it said anything."""
        heard = False

        def hear(turns: Turns) -> None:
            nonlocal heard
            heard = heard or not stream.drained
            self._hear(stream, None, turns.budget)

        with contextlib.suppress(RequestFailed):
            await self._read_events(response, stream, hear)
        return heard

    async def _open_stream(self, stream: EventStream) -> Response:
        headers = without(merged(self._headers, {"Accept": EVENTS}), "Content-Type")
        if stream.last_id:
            headers["Last-Event-ID"] = stream.last_id
        stream.restart()
        return await self._site.ask("GET", headers)

    def _hear(self, stream: EventStream, flight: Flight | None, budget: Budget) -> Message | None:
        """Take what is there, within a budget: the flight's answer is returned, the rest handed on.

        Raises:
            AnswerInvalid: The answer is there, and cannot be used.
        """
        answer: Message | None = None

        def take(event: Event) -> bool:
            nonlocal answer
            if event.kind == "message" and event.data:
                taken = self._take(event, flight if answer is None else None)
                answer = answer or taken
            else:  # without data it only marks the place
                self._unasked.wasted(len(event.data))
            return answer is not None

        self._take_events(stream, budget, take)
        if flight is not None and answer is None and stream.oversized:
            raise self._site.oversized()
        return answer

    def _take(self, event: Event, flight: Flight | None) -> Message | None:
        try:
            message = self._read(event)
        except AnswerInvalid:
            if flight is not None and event.data.startswith((b"{", b"[")):
                raise
            message = None
        if message is None:
            self._unasked.noise(event.data)
            return None
        if flight is not None and answers(message, flight):
            return message
        if message.method is UNSET:
            self._unasked.noise(event.data)  # late, twice, or never asked
        elif flight is None:  # between requests, servers ask in the middle of a call too
            self._unasked.overhear(message)
        else:
            self._unasked.take(message, flight.call)
        return None

    def _read(self, event: Event) -> Message | None:
        if event.oversized:
            raise self._site.oversized()
        if event.data.lstrip().startswith((b"{", b"[")):
            return read_message(event.data)
        return None  # not worth the parser's time: there may be millions of them


def pause(retry: float | None, failures: int) -> float:
    """Seconds before a stream is opened again: what the server asked for, or more."""
    least = _RETRY if retry is None else min(retry, _LONGEST_ASKED)
    most = min(_LONGEST_GROWTH, _RETRY * 2 ** min(failures, 8))
    return max(least, random.uniform(0, most)) if failures else least  # noqa: S311 - no secret
