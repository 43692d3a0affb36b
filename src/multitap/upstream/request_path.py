"""Sends a request to a server: a slot, a session, possibly a retry, an answer."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import anyio
from msgspec import Raw

from multitap.config import Limits
from multitap.errors import (
    BadAnswer,
    CallTimeout,
    MultitapError,
    Overloaded,
    ServerError,
    Unavailable,
)
from multitap.faults import (
    AnswerInvalid,
    AnswerTimeout,
    AuthRequired,
    OwnerChanged,
    RequestFailed,
    WireClosed,
    WireFault,
)
from multitap.shares import GENEROSITY
from multitap.tasks import in_task
from multitap.trust.questions.questions import name_places
from multitap.upstream.attempt import now
from multitap.upstream.attribution import Attribution
from multitap.upstream.availability import Availability
from multitap.upstream.call_slots import CallSlots, QueueFull
from multitap.upstream.server_report import ServerReport
from multitap.upstream.session import Era, Session
from multitap.upstream.signals import Latch
from multitap.wire.jsonrpc.request import Request
from multitap.wire.jsonrpc.vocabulary import URL_ELICITATION_REQUIRED
from multitap.wire.wire import RpcError

_MOST_REPEATS = 2  # of a request that got lost


class RequestPath:
    """Owns the slots of one server, and what its requests show about its health.

    Used by any task, through all the sessions of a link. It never opens or closes one: it takes
    the one that is there, or waits until the link's own task has another.

    Args:
        name: Which server.
        limits: How many requests may work and wait.
        availability: Where the session is found.
        attribution: Whether anybody waits for the end of requests.
        report: Who takes the secrets out of errors.
    """

    def __init__(
        self,
        name: str,
        limits: Limits,
        *,
        availability: Availability,
        attribution: Attribution,
        report: ServerReport,
    ) -> None:
        self.slots = CallSlots(limits.in_flight, limits.queue)
        self.doubted = Latch()
        """Set by a request whose failure is a reason to look after the server."""
        self.last_used = now()
        self._name = name
        self._availability = availability
        self._attribution = attribution
        self._report = report
        self._unanswered = False
        """Whether the last that is known of the server is that it let a request's time pass."""
        self._clock = asyncio.get_running_loop().time  # to find the loop costs more than to ask it

    async def request(self, request: Request) -> Raw:
        """Ask the server and return its result, undecoded.

        The one way of a request to a server: a slot is taken and given back here, and here it is
        decided whether what got lost is sent again.

        Raises:
            UpstreamError: Which one says what went wrong.
        """
        slots, slot_holder = self.slots, request.slot_holder
        # as `CallSlots.take` and `give` do it, which would be two more frames for every request
        held = slots.held.get(slot_holder, 0) + 1
        free = slots.limit - slots.shared
        if slots.working < slots.limit and (slot_holder is None or held <= GENEROSITY * free):
            slots.working += 1
            if slot_holder is not None:
                slots.held[slot_holder] = held
                slots.shared += 1
        else:
            await self._queue(request)
        try:
            try:
                session = self._availability.session or await self._session(request)
                result = await session.request(request)
            except (WireFault, RpcError) as fault:
                lost = fault
            else:
                self._unanswered = False
                return result
            return await self._go_into(request, lost)
        finally:
            slots.working -= 1
            if slot_holder is not None:
                slots.shared -= 1
                if left := slots.held[slot_holder] - 1:
                    slots.held[slot_holder] = left
                else:
                    del slots.held[slot_holder]
            if slots.queues:
                slots.call_up_next()
            self.last_used = self._clock()
            attribution = self._attribution
            if attribution.habits.asks or attribution.is_tried:
                attribution.habits.changed.ring()  # who waits for the end may have their turn

    async def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Notify the server, if it is there and of the era in which clients do that."""
        session = self._availability.session
        if session is not None and session.era is Era.HANDSHAKE:
            await session.wire.notify(method, params)

    async def settle(self, timeout: float) -> None:
        """Wait until it has read all that it was told, so that it says no more of calls given up.

        Args:
            timeout: Seconds after which it is left at that.
        """
        if (session := self._availability.session) is not None:
            with contextlib.suppress(WireFault):
                await session.alive(timeout)

    async def drain(self, timeout: float) -> None:
        """Take no new calls and wait for those under way."""
        self._availability.closing = True
        with anyio.move_on_after(timeout):
            while self.slots.working:
                await anyio.sleep(0.01)

    def serves_only(self, owner: object) -> bool:
        """Whether the server works on no call of anybody else."""
        session = self._availability.session
        return session is None or session.wire.serves_only(owner)

    def idle_for(self) -> float:
        """Seconds since the last request to the server."""
        return 0.0 if self.slots.working else now() - self.last_used

    def is_busy(self) -> bool:
        """Whether a call that is still within its time may be all that keeps the server busy."""
        return self.slots.working > 0 and not self._unanswered

    def proved_alive(self) -> None:
        """Note that the server answered, if only a health check."""
        self._unanswered = False

    async def public_error(self, fault: WireFault | RpcError, method: str) -> MultitapError:
        """The error for a caller, once the reason is known as well as it can be."""
        name, redact = self._name, self._report.redact
        words = redact(str(fault))
        match fault:
            case RpcError():
                data = redact.data(fault.data)
                if fault.code == URL_ELICITATION_REQUIRED:
                    data = name_places(name, data)
                return ServerError(name, words, code=fault.code, data=data)
            case AnswerTimeout():
                return CallTimeout(name, words, hint="raise `timeout` if it needs that long")
            case AnswerInvalid():
                return BadAnswer(name, words)
            # after a move the server itself may be well, and says nothing that is worth a wait
            case WireClosed() if not isinstance(fault, OwnerChanged):
                return await self._availability.wait_lost(
                    f"the connection was lost during {method!r}"
                )
            case AuthRequired():
                failure = self._availability.failure
                return Unavailable(name, words, hint=fault.hint, failure=failure)
            case _:
                if isinstance(fault, OwnerChanged):
                    words = f"the connection was lost during {method!r}: {words}"
                return Unavailable(name, words, failure=self._availability.failure)

    async def _queue(self, request: Request) -> None:
        await in_task(request.light)
        deadline, since = request.deadline, self._clock()
        try:
            with anyio.fail_after(deadline.at - since):
                await self.slots.wait(request.slot_holder)
        except QueueFull as exc:
            raise Overloaded(
                self._name,
                str(exc),
                hint="make fewer calls at once, or raise `limits.queue`",
            ) from None
        except TimeoutError:
            words = f"it is busy: no free slot within {deadline.timeout:g} s"
            raise CallTimeout(self._name, words) from None
        finally:
            request.queued = self._clock() - since

    async def _session(self, request: Request) -> Session:
        await in_task(request.light)
        since = self._clock()
        try:
            return await self._availability.session_by(request.deadline)
        finally:
            request.connecting += self._clock() - since

    async def _go_into(self, request: Request, fault: WireFault | RpcError) -> Raw:
        """Send a request again if it may be, or find out why it failed.

        A second time only if the first one met a session that is gone, and provably did nothing.
        """
        await in_task(request.light)
        fault.__traceback__ = None  # or it would keep the frames, and they what was received
        self._doubt(fault)
        repeats = 0
        while repeats < _MOST_REPEATS and _may_repeat(
            fault, harmless=request.repeatable and not repeats
        ):
            # not counted: nothing was done, the wire is closed, and the next owner is waited for
            repeats += not isinstance(fault, OwnerChanged) or fault.sent
            session = self._availability.session or await self._session(request)
            try:
                result = await session.request(request)
            except (WireFault, RpcError) as again:
                self._doubt(again)
                fault = again
            else:
                self._unanswered = False
                return result
        raise await self.public_error(fault, request.method) from None

    def _doubt(self, fault: WireFault | RpcError) -> None:
        """Let a failed request be a reason to look after the server."""
        if isinstance(fault, WireClosed):
            self._availability.lose()
        elif not isinstance(fault, AnswerInvalid | RpcError):
            self._unanswered = isinstance(fault, AnswerTimeout)
            self.doubted.set()


def _may_repeat(fault: WireFault | RpcError, *, harmless: bool) -> bool:
    """Whether a lost request may be sent again: it never arrived, or a second run does no harm."""
    return isinstance(fault, WireClosed | RequestFailed) and (harmless or not fault.sent)
