"""The HTTP transport of 2024: one event stream for all answers, a POST per message."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http import HTTPStatus

import anyio
from msgspec import Raw
from yarl import URL

from multitap.config.models import HttpServer
from multitap.errors import (
    AnswerInvalid,
    AnswerTimeout,
    WireClosed,
    WireFault,
    WrongProtocol,
    ungrouped,
)
from multitap.http.client.client import http_client
from multitap.http.client.events import Event, EventParser
from multitap.http.client.messages import Response, merge
from multitap.http.client.route import join_url, same_origin, show_url
from multitap.limits import Turns
from multitap.tasks import Tasks
from multitap.wire.http_origin import EVENTS, Authorizer, HttpOrigin
from multitap.wire.http_wire import HttpWire
from multitap.wire.jsonrpc import RpcError
from multitap.wire.request import Request


@asynccontextmanager
async def open_sse(
    config: HttpServer, *, authorizer: Authorizer | None = None
) -> AsyncGenerator["LegacySseWire"]:
    """A wire to the server whose event stream is at `config.url`.

    Raises:
        WireFault: The stream is not open within `config.connect_timeout`.
    """
    async with HttpOrigin(config, http_client, authorizer) as origin:
        with ungrouped():
            async with Tasks() as tasks:
                wire = LegacySseWire(origin, tasks)
                try:
                    await wire.connect(config.connect_timeout)
                    yield wire
                finally:
                    wire.close()


class LegacySseWire(HttpWire):
    """See `Wire`; the old era only."""

    kind = "sse"

    async def connect(self, timeout: float) -> None:
        """Open the stream, and wait for the address to post to."""
        connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks.start_soon(self._listen, connected)
        try:
            with anyio.fail_after(timeout):
                await connected
        except TimeoutError:
            reason = f"no event stream from {self._origin.name} within {timeout:g} s"
            raise AnswerTimeout(reason, sent=False) from None

    def establish(self, protocol_version: str, *, stateless: bool) -> None:  # noqa: ARG002
        self._established = self._origin.is_established = True

    def close(self) -> None:
        """Cancel all requests."""
        self._exchange.close(None)

    async def request(self, request: Request) -> Raw:
        # the POST may have to open a connection
        exchange = self._exchange
        pending = exchange.begin(request)
        try:
            with pending:
                await self._hand_over(pending, pending.message(), request.headers)
            if pending.waiting:
                await pending.news()
            if (answer := pending.answer) is None:
                pending.raise_fault()
        except BaseException as exc:
            exchange.fail(pending, exc, self._call_off if request.cancellable else None)
            raise
        return exchange.result(pending, answer)

    async def _listen(self, connected: asyncio.Future[None]) -> None:
        try:
            response = await self._origin.ask("GET", merge(self._headers, {"Accept": EVENTS}))
            try:
                await self._check(response)
                fault = await self._hear_out(response, connected)
            finally:
                response.close()
            if not self._in_session:
                raise fault  # noqa: TRY301 - all failures to connect are handled below
        except Exception as exc:
            if connected.done():
                raise
            # raised by `connect`, which waits for it; raised here, it would end the block of the
            # wire
            connected.set_exception(exc)
        else:
            self._exchange.close(fault)

    async def _check(self, response: Response) -> None:
        if response.status != HTTPStatus.OK:
            fault = await self._refusal(response, None)
            raise WrongProtocol(str(fault), sent=True) if isinstance(fault, RpcError) else fault
        if response.content_type != EVENTS:
            kind = ascii(response.content_type).strip("'") or "no content type"
            raise WrongProtocol(
                f"{self._origin.name} answers with {kind}, not with events", sent=True
            )

    async def _hear_out(self, response: Response, connected: asyncio.Future[None]) -> WireClosed:
        """Handle all events of the stream; returns why it ended."""
        stream = EventParser(self._origin.limit)

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
        return WireClosed(f"{self._origin.name} ended the event stream", sent=False)

    def _check_endpoint(self, data: bytes) -> URL:
        """The address for messages, which must be on the server's own origin."""
        endpoint = join_url(self._origin.url, data.decode("utf-8", "replace").strip())
        if endpoint is None:
            raise AnswerInvalid("the server sent no valid address for messages", sent=False)
        if not same_origin(self._origin.url, endpoint):
            reason = (
                f"the server asks for messages at {show_url(endpoint)}, which is another origin"
            )
            raise AnswerInvalid(reason, sent=False)
        return endpoint

    def _take(self, event: Event, connected: asyncio.Future[None]) -> bool:
        """Handle one event; returns whether it was awaited."""
        if event.kind == "endpoint" and not self._in_session:
            self._endpoint = self._check_endpoint(event.data)
            self._in_session = True
            if not connected.done():  # no waiter: the wire is about to be closed
                connected.set_result(None)
            return True
        if event.kind != "message" or not event.data:
            self._inbound_messages.count_waste(len(event.data))
        elif event.oversized:
            self._exchange.fail_damaged(event.data, self._origin.oversized_answer())
        else:
            return self._exchange.feed(event.data)
        return False
