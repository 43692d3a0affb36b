"""A request under way: how long it may still take, and what cuts it short."""

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Self

import anyio
import msgspec

from multitap.wire import envelope
from multitap.wire.deadline import Timeout, deadline_of
from multitap.wire.doubt import Doubt, common
from multitap.wire.envelope import Message, RequestId
from multitap.wire.wire import (
    SEVERAL,
    AnswerInvalid,
    AnswerTimeout,
    OnEnd,
    OnProgress,
    Outcome,
    RpcError,
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


class Flight(ABC):
    """One request, from before it is sent until its answer is there."""

    __slots__ = (
        "_expired", "_flights", "_held", "call", "deadline", "id", "method", "on_progress", "sent",
    )  # fmt: skip

    def __init__(  # noqa: PLR0917 - each name would cost every call a little
        self,
        flights: "Flights",
        method: str,
        timeout: Timeout,
        hard_timeout: float | None = None,
        on_progress: OnProgress | None = None,
        call: object | None = None,
    ) -> None:
        self._flights = flights
        self.id = flights.unused_id()
        self.method = method
        self.on_progress = on_progress
        self.call = call
        self.sent = False
        """Whether the server may have seen it."""
        self._held = 0
        self._expired = False
        self.deadline = deadline_of(timeout, hard_timeout, flights.loop.time())

    @property
    @abstractmethod
    def waiting(self) -> bool:
        """Whether its answer is expected on a shared stream, and is not there yet."""

    @abstractmethod
    def settle(self, answer: "Message | AnswerInvalid") -> bool:
        """Give it its answer; the first one wins."""

    @abstractmethod
    def cut(self, fault: WireFault) -> None:
        """End it now, with `fault`."""

    @abstractmethod
    def _expire(self) -> None:
        """End it now, because its time is over."""

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
        if self.deadline.at <= now and not self._expired:
            self._expired = True
            self._expire()

    def _late(self) -> AnswerTimeout:
        return AnswerTimeout(self.deadline.words(self.method), sent=self.sent)


class Launched(Flight):
    """A request that nobody waits for: its outcome is told."""

    __slots__ = ("call_off", "on_end")

    on_end: OnEnd | None
    """Told of the outcome; None once it is."""
    call_off: Callable[[bytes], None] | None
    """Tells the server that the answer is not wanted any more, where it shall know."""

    @property
    def waiting(self) -> bool:
        return self.on_end is not None

    def settle(self, answer: Message | AnswerInvalid) -> bool:
        if self.on_end is None:
            return False
        self.end(answer if isinstance(answer, AnswerInvalid) else envelope.outcome(answer))
        return True

    def cut(self, fault: WireFault) -> None:
        self.end(fault)

    def give_up(self) -> None:
        """Its answer is not wanted any more: nobody is told, but for the server."""
        if self.on_end is not None:
            self.on_end = None
            self._leave("no longer wanted")

    def end(self, outcome: Outcome) -> None:
        """Say what became of it; the first one to know wins."""
        if (on_end := self.on_end) is not None:
            self.on_end = self.call_off = None  # which may lead back here
            self._flights.leave(self, answered=not isinstance(outcome, WireFault))
            if isinstance(outcome, Exception):  # a value from here on, which keeps no frames
                outcome.__traceback__ = None
            self._tell(on_end, outcome)

    def _expire(self) -> None:
        if (on_end := self.on_end) is not None:
            self.on_end = None
            self._leave("timed out")
            self._tell(on_end, self._late())

    def _leave(self, reason: str) -> None:
        call_off, self.call_off = self.call_off, None
        self._flights.leave(self)
        self._flights.given_up.append(self.id)
        if self.sent and call_off is not None:
            call_off(envelope.calling_off(self.id, reason))

    def _tell(self, on_end: OnEnd, outcome: Outcome) -> None:
        try:
            on_end(outcome)
        except Exception:  # boundary: whoever reads the stream has others to serve
            logger.exception("taking the outcome of %r failed", self.method)


class Attended(Flight):
    """A request that a task waits for, in more steps than one.

    Whatever is awaited inside `with flight` ends with the deadline, or when the wire does.

    Raises:
        AnswerTimeout: The deadline passed.
        WireClosed: The wire closed.
    """

    __slots__ = ("_answer", "_cancelling", "_cut", "_task")

    # This is `asyncio.timeout` at a third of its cost: progress only moves a number.
    def __enter__(self) -> Self:
        task = asyncio.current_task(self._flights.loop)
        if task is None:
            raise RuntimeError("a request belongs to a task")
        self._answer: asyncio.Future[Message] | None = None
        self._cut: WireFault | None = None
        self._task = task
        self._cancelling = task.cancelling()
        self._flights.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: object
    ) -> None:
        self._flights.leave(self, answered=exc is None or isinstance(exc, RpcError))
        if self._answer is not None and (self.waiting or self._answer.cancelled()):
            self._flights.given_up.append(self.id)
        elif exc is not None and self._answer is not None:
            _look_at(self._answer)
        if self._expired:
            ours = self._task.uncancel() <= self._cancelling
            if ours and isinstance(exc, asyncio.CancelledError):
                raise self._cut or self._late() from None
        if self._cut is not None and isinstance(exc, Exception):
            raise self._cut from None  # what a closing connection says of itself matters less

    def expect_answer(self) -> "asyncio.Future[Message]":
        """Where the answer arrives, if on a stream that several requests share."""
        self._answer = self._flights.loop.create_future()
        return self._answer

    @property
    def waiting(self) -> bool:
        return self._answer is not None and not self._answer.done()

    def settle(self, answer: Message | AnswerInvalid) -> bool:
        if self._answer is None or self._answer.done():
            return False
        if isinstance(answer, AnswerInvalid):
            self._answer.set_exception(answer)
        else:
            self._answer.set_result(answer)
        return True

    def cut(self, fault: WireFault) -> None:
        if not self._expired:
            self._cut = fault
            self._expired = True
            self._expire()

    def _expire(self) -> None:
        self._task.cancel()


class Flights:
    """All requests of one wire that are under way."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()  # found once: to find it costs a system call
        self._by_id: dict[RequestId, Flight] = {}
        self._doubts: set[Doubt] = set()
        self.given_up: deque[RequestId] = deque(maxlen=_REMEMBERED)
        """Ids whose answers may still come, and are not wanted any more."""
        self._random = Random()  # noqa: S311 - seeded by the system; asking it each time costs more
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._by_id

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, request_id: RequestId) -> Flight | None:
        return self._by_id.get(request_id)

    def only(self) -> Flight | None:
        """The one that waits for an answer, if it is alone; a stream without end is none."""
        flights = self._by_id.values()
        waiting = [one for one in flights if one.waiting and one.deadline.timeout is not None]
        return waiting[0] if len(waiting) == 1 else None

    def of(self, call: object | None) -> list[Flight]:
        """Those made for `call` and by whoever made it; where it is not certain, for any call."""
        calls = [one for one in self._by_id.values() if one.call is not None]
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
        self._doubts.add(doubt)
        return doubt

    async def certain(self, doubt: Doubt) -> object:
        """The call that a message belongs to, once it is certain; `SEVERAL`: not in time."""
        try:
            with anyio.move_on_after(DOUBT):
                return await doubt.settled
        finally:
            self._doubts.discard(doubt)
        return SEVERAL

    def _calls(self) -> dict[object, object]:
        return {one: one.call for one in self._by_id.values() if one.call is not None}

    def unused_id(self) -> int:
        """An id no server can guess, so that none can answer before it was asked."""
        while (request_id := self._random.getrandbits(_ID_BITS)) in self._by_id:
            pass
        return request_id

    def enter(self, flight: Flight) -> None:
        self._by_id[flight.id] = flight
        if flight.deadline.at < self._due:
            self._wake_at(flight.deadline.at)

    def leave(self, flight: Flight, *, answered: bool = False) -> None:
        del self._by_id[flight.id]
        for doubt in self._doubts:
            doubt.ended(flight, answered=answered)

    # One timer for all of them: to set and cancel one for each costs more than the rest of it.
    def _wake_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = None
        if due < math.inf:
            self._timer = self.loop.call_at(due, self._look)

    def _look(self) -> None:
        now = self.loop.time()
        for flight in tuple(self._by_id.values()):
            flight.check(now)
        later = (one.deadline.at for one in self._by_id.values() if one.deadline.at > now)
        self._wake_at(min(later, default=math.inf))

    def cut(self, fault: WireFault | None, spare: Flight | None = None) -> None:
        """End them all, because the wire is closed; `spare` ends by itself."""
        for flight in tuple(self._by_id.values()):
            if flight is not spare:
                flight.cut(closing(fault, sent=flight.sent))
        self._wake_at(math.inf)


def _look_at(answer: "asyncio.Future[Message]") -> None:
    """Nobody else will: an error that is never looked at ends up in the log."""
    if not answer.cancelled():
        answer.exception()


def closing(fault: WireFault | None, *, sent: bool) -> WireClosed:
    """What a request is told when its wire is closed, because of `fault` or on purpose."""
    kind = type(fault) if isinstance(fault, WireClosed) else WireClosed
    return kind(str(fault or "the connection is closed"), sent=sent)
