"""A POST whose answer nobody waits for, followed without a task for as long as that can be."""

from http import HTTPStatus
from typing import Protocol

from multitap.pace import Budget
from multitap.tasks import CancelHandle, Tasks
from multitap.wire.connection import Connection, Heard
from multitap.wire.envelope import Message
from multitap.wire.event_stream import EventStream
from multitap.wire.flight import Flight, Launched
from multitap.wire.response import Response
from multitap.wire.site import EVENTS, JSON, Site
from multitap.wire.wire import AnswerInvalid, RpcError, WireFault


class Answers(Protocol):
    """Who makes answers out of responses."""

    def matched(self, body: bytes, flight: Flight) -> Message:
        """The answer in a JSON body; raises `AnswerInvalid`."""
        ...

    def hear(self, stream: EventStream, flight: Flight | None, budget: Budget) -> Message | None:
        """The answer among the events of a stream, if it is there; raises `AnswerInvalid`."""
        ...

    async def answer_in(self, response: Response, flight: Flight, stream: EventStream) -> Message:
        """The answer, however it comes; raises `RpcError` or `WireFault`."""
        ...

    def call_off(self, message: bytes) -> None:
        """Have the server know that an answer is not wanted any more."""
        ...


class Posted:
    """One launched request.

    Args:
        answers: Who makes answers out of responses.
        site: Where it goes.
        tasks: Where it is followed when that takes waiting.
        line: What it is sent on, and what is sent before it.
    """

    __slots__ = (
        "_answers", "_connection", "_flight", "_head", "_heard", "_response", "_scope", "_site",
        "_stream", "_tasks",
    )  # fmt: skip

    def __init__(
        self, answers: Answers, site: Site, tasks: Tasks, line: tuple[Connection, bytes]
    ) -> None:
        self._answers = answers
        self._site = site
        self._tasks = tasks
        self._connection, self._head = line
        self._heard: Heard | None = self._answered  # the connection knows it by this very object
        self._response: Response | None = None
        self._stream: EventStream | None = None
        self._scope: CancelHandle | None = None

    def send(self, message: bytes, flight: Launched) -> None:
        """Send it."""
        self._flight = flight
        flight.sent = True
        if self._heard is not None:
            self._connection.send(self._head, message, self._heard)

    def call_off(self, message: bytes) -> None:
        """Let go of it: its answer is not wanted any more."""
        if self._heard is not None:
            self._connection.forget(self._heard)
            self._heard = None
        if self._scope is not None:
            self._scope.cancel()
        elif self._response is not None:
            self._response.heed(None)
            self._response.close()
        self._answers.call_off(message)

    def _answered(self, outcome: Response | WireFault) -> None:
        self._heard = None
        if isinstance(outcome, WireFault):
            self._flight.end(outcome)
            return
        self._response = outcome
        if not self._flight.waiting:
            outcome.close()
            return
        kind = outcome.content_type if outcome.status == HTTPStatus.OK else ""
        if kind == EVENTS:
            self._stream = EventStream(self._site.limit)
            self._follow()
        elif kind == JSON and (body := outcome.whole()) is not None:
            self._settle(body)
        else:
            self._go_into(outcome)

    def _settle(self, body: bytes) -> None:
        try:
            if len(body) > self._site.limit:
                raise self._site.oversized()
            self._flight.settle(self._answers.matched(body, self._flight))
        except AnswerInvalid as exc:
            self._flight.settle(exc)

    def _follow(self) -> None:
        """Take what there is of an event stream, and come back when there is more.

        What is too much for one turn is left to a task, which takes as many as it needs.
        """
        response, stream = self._response, self._stream
        if response is None or stream is None:
            return
        if not self._flight.waiting:
            response.close()
            return
        chunk = response.here()
        try:
            if chunk:
                stream.feed(chunk)
            answer = self._answers.hear(stream, self._flight, Budget())
        except AnswerInvalid as exc:
            response.close()
            self._flight.settle(exc)
            return
        if answer is not None:
            self._site.linger(response)
            self._flight.settle(answer)
        elif chunk is None or response.ended or not stream.drained:
            self._go_into(response)
        else:
            response.heed(self._follow)

    def _go_into(self, response: Response) -> None:
        self._scope = CancelHandle()  # a callback has no task, and so no scope
        self._tasks.start_soon(self._wait_for, response, self._scope)

    async def _wait_for(self, response: Response, scope: CancelHandle) -> None:
        stream = self._stream or EventStream(self._site.limit)
        with scope:
            try:
                answer = await self._answers.answer_in(response, self._flight, stream)
            except (WireFault, RpcError) as exc:
                self._flight.end(exc)
            else:
                self._flight.settle(answer)
