"""A request under way: how long it may still take, and what cuts it short."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from random import Random
from typing import Any, Self

import anyio
import msgspec

from multitap.tasks import WAIT
from multitap.wire.doubt import Doubt, common
from multitap.wire.envelope import Message, RequestId
from multitap.wire.request import Request
from multitap.wire.response import Response
from multitap.wire.wire import (
    SEVERAL,
    AnswerInvalid,
    AnswerTimeout,
    WireClosed,
    WireFault,
    party_of,
)

logger = logging.getLogger(__name__)

DOUBT = 10.0
"""Seconds a question waits until it is certain to which call it belongs."""
_REMEMBERED = 64
_ID_BITS = 31  # some servers keep ids in 32 bits


class Progress(msgspec.Struct):
    """What a server reports of a request it works on."""

    progressToken: int | str  # noqa: N815 - the wire's spelling
    progress: float
    total: float | None = None
    message: str | None = None


class Flight:
    """One request, from before it is sent until its answer is there.

    `await flight` waits for news: the answer, or whatever `stir` stands for. It raises the fault
    that ends the request. Where more has to be waited for than news, that happens in a task inside
    `with flight`, which ends with the deadline or with the wire.
    """

    __slots__ = (
        "_cancelling", "_expired", "_flights", "_held", "_task", "_wake", "answer", "call",
        "deadline", "fault", "id", "light", "method", "on_progress", "response", "sent",
    )  # fmt: skip

    def __init__(self, flights: "Flights", request: Request) -> None:
        self._flights = flights
        by_id = flights.by_id
        # an id that no server can guess, so that none can answer before it was asked
        while (number := flights.random_bits(_ID_BITS)) in by_id:
            pass
        self.id = number
        self.method = request.method
        self.on_progress = request.on_progress
        self.call = request.call
        self.deadline = request.deadline
        self.light = request.light
        self.sent = False
        """Whether the server may have seen it."""
        self.answer: Message | None = None
        """What came for it on a stream that several requests share."""
        self.response: Response | None = None
        """What came for it on a connection of its own."""
        self.fault: Exception | None = None
        """Why there will be no answer."""
        self._held = 0
        self._expired = False
        self._wake: Callable[[], None] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0

    @property
    def waiting(self) -> bool:
        """Whether neither its answer is there, nor a reason why there is none."""
        return self.answer is None and self.fault is None

    def __await__(self) -> Generator[Any, None, None]:
        if self.answer is None and self.fault is None:
            light = self.light
            try:
                if light is not None and light.task is None:
                    self._wake = light.step
                    yield WAIT
                else:
                    news = self._flights.loop.create_future()
                    self._wake = partial(_ring, news)
                    yield from news
            finally:
                self._wake = None
        if self.fault is not None:
            raise self._taken_fault()

    def _taken_fault(self) -> Exception:
        """Not kept here: an error keeps the frames that it passes, and they keep the flight."""
        fault, self.fault = self.fault, None
        return fault or RuntimeError("there is no fault")

    def stir(self, _: object = None) -> None:
        """There is news."""
        if (wake := self._wake) is not None:
            self._wake = None
            wake()

    def responded(self, outcome: Response | WireFault) -> None:
        """Its connection has a response for it, or broke."""
        if not isinstance(outcome, WireFault):
            self.response = outcome
        elif self.waiting:
            self.fault = outcome
        self.stir()

    def settle(self, answer: "Message | AnswerInvalid") -> bool:
        """Give it its answer; the first one wins."""
        if self.answer is not None or self.fault is not None:
            return False
        if isinstance(answer, AnswerInvalid):
            self.fault = answer
        else:
            self.answer = answer
            # at once: what the server says next does not belong to it any more
            self._flights.leave(self, answered=True)
        if (wake := self._wake) is not None:
            self._wake = None
            wake()
        return True

    def cut(self, fault: WireFault) -> None:
        """End it now, with `fault`."""
        if self.waiting:
            self.fault = fault
            self._interrupt()

    def _interrupt(self) -> None:
        if self._wake is not None:
            self.stir()
        elif self._task is not None and not self._expired:
            if self._task is asyncio.current_task(self._flights.loop):
                return  # it will see: cancelled by itself, it would stumble over that later on
            self._expired = True
            self._task.cancel()

    # This is `asyncio.timeout` at a third of its cost: progress only moves a number.
    def __enter__(self) -> Self:
        task = asyncio.current_task(self._flights.loop)
        if task is None:
            raise RuntimeError("this takes a task")
        if self.fault is not None:
            raise self._taken_fault()
        self._task = task
        self._cancelling = task.cancelling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: object
    ) -> None:
        task, self._task = self._task, None
        if self._expired and task is not None:
            self._expired = False
            ours = task.uncancel() <= self._cancelling
            if ours and isinstance(exc, asyncio.CancelledError) and self.fault is not None:
                raise self._taken_fault() from None
        if isinstance(self.fault, WireClosed) and isinstance(exc, Exception):
            # what a closing connection says of itself matters less
            raise self._taken_fault() from None

    def progressed(self, report: Progress) -> None:
        """The server is alive and at it, whoever wants to know."""
        self.deadline.renew(self._flights.loop.time())
        if self.on_progress is None:
            return
        try:
            self.on_progress(report.progress, report.total, report.message)
        except Exception:
            logger.exception("a progress callback raised")

    def hold(self, *, held: bool) -> None:
        """Stop the clock while the server waits for an answer of ours, perhaps of a person's."""
        self._held += 1 if held else -1
        self.deadline.renew(self._flights.loop.time())

    def check(self, now: float) -> None:
        """End it if its time is over."""
        if self._held:
            self.deadline.renew(now)
        if self.deadline.at <= now and self.waiting:
            self.fault = AnswerTimeout(self.deadline.words(self.method), sent=self.sent)
            self._interrupt()


def answer_of(flight: Flight) -> Message:
    """The answer to a request that was waited for."""
    if flight.answer is None:
        raise RuntimeError("there is no answer yet")
    return flight.answer


def _ring(news: "asyncio.Future[None]") -> None:
    if not news.done():
        news.set_result(None)


class Flights:
    """All requests of one wire that are under way."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()  # found once: to find it costs a system call
        self.by_id: dict[RequestId, Flight] = {}
        self.doubts: set[Doubt] = set()
        self.given_up: deque[RequestId] = deque(maxlen=_REMEMBERED)
        """Ids whose answers may still come, and are not wanted any more."""
        # seeded by the system; asking it each time costs more
        self.random_bits = Random().getrandbits  # noqa: S311
        self._timer: asyncio.TimerHandle | None = None
        self.due = math.inf

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.by_id

    def __len__(self) -> int:
        return len(self.by_id)

    def get(self, request_id: RequestId) -> Flight | None:
        return self.by_id.get(request_id)

    def only(self) -> Flight | None:
        """The one that waits for an answer, if it is alone; a stream without end is none."""
        flights = self.by_id.values()
        waiting = [one for one in flights if one.waiting and one.deadline.timeout is not None]
        return waiting[0] if len(waiting) == 1 else None

    def of(self, call: object | None) -> list[Flight]:
        """Those made for `call` and by whoever made it; where it is not certain, for any call."""
        calls = [one for one in self.by_id.values() if one.call is not None]
        if call is None or call is SEVERAL:
            return calls
        return [one for one in calls if party_of(one.call) is party_of(call)]

    def meant(self) -> object | None:
        """The call that a message of the server belongs to, which does not say so itself.

        One of them where all are of the same party, `SEVERAL` where they are not.
        """
        return common(self._calls())

    def serve_only(self, party: object) -> bool:
        """Whether no call of anybody else is under way."""
        return all(party_of(call) is party for call in self._calls().values())

    def doubt(self) -> Doubt:
        """That a message belongs to one of the calls under way, and not yet to which."""
        doubt = Doubt(self._calls())
        self.doubts.add(doubt)
        return doubt

    async def certain(self, doubt: Doubt) -> object:
        """The call that a message belongs to, once it is certain; `SEVERAL`: not in time."""
        try:
            with anyio.move_on_after(DOUBT):
                return await doubt.settled
        finally:
            self.doubts.discard(doubt)
        return SEVERAL

    def _calls(self) -> dict[object, object]:
        return {one: one.call for one in self.by_id.values() if one.call is not None}

    def leave(self, flight: Flight, *, answered: bool = False) -> None:
        """One of them has come to its end; the first time counts."""
        if self.by_id.pop(flight.id, None) is not None and self.doubts:
            for doubt in self.doubts:
                doubt.ended(flight, answered=answered)

    # One timer for all of them: to set and cancel one for each costs more than the rest of it.
    def wake_at(self, due: float) -> None:
        """Look at all deadlines then."""
        if self._timer is not None:
            self._timer.cancel()
        self.due = due
        self._timer = None
        if due < math.inf:
            self._timer = self.loop.call_at(due, self._look)

    def _look(self) -> None:
        now = self.loop.time()
        for flight in tuple(self.by_id.values()):
            flight.check(now)
        later = (one.deadline.at for one in self.by_id.values() if one.deadline.at > now)
        self.wake_at(min(later, default=math.inf))

    def cut(self, fault: WireFault | None, spare: Flight | None = None) -> None:
        """End them all, because the wire is closed; `spare` ends by itself."""
        for flight in tuple(self.by_id.values()):
            if flight is not spare:
                flight.cut(closing(fault, sent=flight.sent))
        self.wake_at(math.inf)


def closing(fault: WireFault | None, *, sent: bool) -> WireClosed:
    """What a request is told when its wire is closed, because of `fault` or on purpose."""
    kind = type(fault) if isinstance(fault, WireClosed) else WireClosed
    return kind(str(fault or "the connection is closed"), sent=sent)
