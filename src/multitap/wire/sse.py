"""The HTTP transport of 2024: one event stream for all answers, a POST for each message."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http import HTTPStatus

import anyio
from yarl import URL

from multitap.config import HttpServer
from multitap.errors import ungrouped
from multitap.pace import Turns
from multitap.tasks import Tasks, in_task
from multitap.wire.address import joined, same_origin, shown
from multitap.wire.client import http_client
from multitap.wire.envelope import Message
from multitap.wire.event_stream import Event, EventStream
from multitap.wire.flight import Flight, answer_of
from multitap.wire.head import merged
from multitap.wire.posting import Posting
from multitap.wire.request import Request
from multitap.wire.response import Response
from multitap.wire.site import EVENTS, Authorize, ClientFactory, Site
from multitap.wire.wire import (
    AnswerInvalid,
    AnswerTimeout,
    NotSpoken,
    RpcError,
    WireClosed,
    WireFault,
)


@asynccontextmanager
async def open_sse(
    config: HttpServer,
    *,
    authorize: Authorize | None = None,
    client_factory: ClientFactory = http_client,
) -> AsyncGenerator["SseWire"]:
    """A wire to the server whose event stream is at `config.url`.

    Raises:
        WireFault: There is no such stream within `config.connect_timeout`.
    """
    async with Site(config, client_factory, authorize) as site:
        with ungrouped():
            async with Tasks() as tasks:
                wire = SseWire(site, tasks)
                try:
                    await wire.connect(config.connect_timeout)
                    yield wire
                finally:
                    wire.close()


class SseWire(Posting):
    """See `Wire`; the old era only."""

    kind = "sse"

    async def connect(self, timeout: float) -> None:
        """Open the stream and learn where to post."""
        connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks.start_soon(self._listen, connected)
        try:
            with anyio.fail_after(timeout):
                await connected
        except TimeoutError:
            words = f"no event stream from {self._site.name} within {timeout:g} s"
            raise AnswerTimeout(words, sent=False) from None

    def established(self, protocol_version: str, *, stateless: bool) -> None:  # noqa: ARG002
        self._established = True

    def close(self) -> None:
        """Cut what is under way."""
        self._exchange.close(None)

    async def _converse(self, request: Request, flight: Flight) -> Message:
        await in_task(request.light)
        with flight:
            await self._hand_over(flight, request.encoded(flight.id), request.headers)
        await flight
        return answer_of(flight)

    async def _listen(self, connected: asyncio.Future[None]) -> None:
        try:
            response = await self._site.ask("GET", merged(self._headers, {"Accept": EVENTS}))
            try:
                await self._check(response)
                fault = await self._hear_out(response, connected)
            finally:
                response.close()
            if not self._in_session:
                raise fault  # noqa: TRY301 - one way out for all that keeps us from connecting
        except Exception as exc:
            if connected.done():
                raise
            connected.set_exception(exc)
        else:
            self._exchange.close(fault)

    async def _check(self, response: Response) -> None:
        if response.status != HTTPStatus.OK:
            fault = await self._refused(response, None)
            raise NotSpoken(str(fault), sent=True) if isinstance(fault, RpcError) else fault
        if response.content_type != EVENTS:
            kind = ascii(response.content_type).strip("'") or "no content type"
            raise NotSpoken(f"{self._site.name} answers with {kind}, not with events", sent=True)

    async def _hear_out(self, response: Response, connected: asyncio.Future[None]) -> WireClosed:
        """Take all that comes on the stream; why there is no more is returned."""
        stream = EventStream(self._site.limit)

        def hear(turns: Turns) -> None:
            turns.useful |= self._take_events(
                stream, turns.budget, lambda event: self._take(event, connected)
            )

        try:
            await self._read_events(response, stream, hear)
        except WireFault as exc:
            if not self._in_session:
                raise
            return WireClosed(str(exc), sent=False)
        return WireClosed(f"{self._site.name} ended the event stream", sent=False)

    def _checked(self, data: bytes) -> URL:
        """Where the server wants its messages: anywhere, as long as it is its own place."""
        endpoint = joined(self._site.url, data.decode("utf-8", "replace").strip())
        if endpoint is None:
            raise AnswerInvalid("the server names no web address to post to", sent=False)
        if not same_origin(self._site.url, endpoint):
            words = f"the server wants its messages at {shown(endpoint)}, which is another origin"
            raise AnswerInvalid(words, sent=False)
        return endpoint

    def _take(self, event: Event, connected: asyncio.Future[None]) -> bool:
        """Take one event; whether anybody waited for it."""
        if event.kind == "endpoint" and not self._in_session:
            self._endpoint = self._checked(event.data)
            self._in_session = True
            if not connected.done():  # nobody waits any more: we are about to be closed
                connected.set_result(None)
            return True
        if event.kind != "message" or not event.data:
            self._unasked.wasted(len(event.data))
        elif event.oversized:
            self._exchange.damaged(event.data, self._site.oversized())
        else:
            return self._exchange.feed(event.data)
        return False
