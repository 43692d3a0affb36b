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
    OwnerMoving,
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
from multitap.wire.wire import OnProgress, RpcError

_MOST_REPEATS = 2  # attempts of a lost request


class RequestPath:
    """Owns the slots of one server, and what requests show about its health.

    Used by any task, for all sessions of a link. It never opens or closes one: it uses the current
    one, or waits until the link's own task has opened another.

    Args:
        name: Which server.
        limits: How many requests may work and wait.
        availability: Has the session.
        attribution: Whether anybody waits for the end of requests.
        report: Removes secrets from errors.
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
        """Set by a failed request, to trigger a health check."""
        self.last_used = now()
        self._name = name
        self._availability = availability
        self._attribution = attribution
        self._report = report
        self._unanswered = False
        """Whether the last request timed out and the server has not answered since."""
        self._clock = asyncio.get_running_loop().time  # looked up once: finding the loop is slow

    async def request(self, request: Request) -> Raw:
        """Send a request to the server and return its undecoded result.

        The only path of requests to a server: it takes and returns a slot, and decides whether a
        lost request is sent again.

        Raises:
            UpstreamError: The request failed; the subclass says why.
        """
        if (on_progress := request.on_progress) is not None:
            request.on_progress = self._redacting(on_progress)
        slots, slot_holder = self.slots, request.slot_holder
        # inlined from `CallSlots.take` and `give`, to save two frames
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
            habits = self._attribution.habits
            if habits.asks:
                habits.changed.ring()  # waiting clients may have their turn

    async def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification, if the server is connected and of the handshake era."""
        session = self._availability.session
        if session is not None and session.era is Era.HANDSHAKE:
            await session.wire.notify(method, params)

    async def settle(self, timeout: float) -> None:
        """Wait until the server has read all messages, so that cancelled calls send nothing more.

        Args:
            timeout: The most seconds to wait.
        """
        if (session := self._availability.session) is not None:
            with contextlib.suppress(WireFault):
                await session.alive(timeout)

    async def drain(self, timeout: float) -> None:
        """Accept no new calls, and wait for those in progress."""
        self._availability.closing = True
        with anyio.move_on_after(timeout):
            while self.slots.working:
                await anyio.sleep(0.01)

    def serves_only(self, owner: object) -> bool:
        """Whether all calls in progress belong to this owner."""
        session = self._availability.session
        return session is None or session.wire.serves_only(owner)

    def idle_for(self) -> float:
        """Seconds since the last request to the server."""
        return 0.0 if self.slots.working else now() - self.last_used

    def is_busy(self) -> bool:
        """Whether calls in progress, within their deadlines, may keep the server busy."""
        return self.slots.working > 0 and not self._unanswered

    def proved_alive(self) -> None:
        """Note that the server answered, if only a health check."""
        self._unanswered = False

    async def public_error(self, fault: WireFault | RpcError, method: str) -> MultitapError:
        """The error for a caller, once the reason is known as far as possible."""
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
            # after a change of owner the server itself may be fine: no reason to wait for
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

    def _redacting(self, on_progress: OnProgress) -> OnProgress:
        redact = self._report.redact

        def tell(done: float, total: float | None, message: str | None) -> None:
            on_progress(done, total, message and redact(message))

        return tell

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
        """Send a failed request again if that is allowed, or raise why it failed.

        After a first retry, it is only repeated if it provably never arrived.
        """
        await in_task(request.light)
        fault.__traceback__ = None  # or it would keep the frames and the response alive
        if request.is_relayed and isinstance(fault, OwnerChanged | OwnerMoving) and not fault.sent:
            raise fault  # it never ran: the replica that it comes from sends it to the new owner
        self._doubt(fault)
        repeats = 0
        while repeats < _MOST_REPEATS and _may_repeat(
            fault, harmless=request.repeatable and not repeats
        ):
            # not counted: the request had no effect, and waits for the next owner
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
        """Trigger a health check after a failed request."""
        if isinstance(fault, WireClosed):
            self._availability.lose()
        elif not isinstance(fault, AnswerInvalid | RpcError):
            self._unanswered = isinstance(fault, AnswerTimeout)
            self.doubted.set()


def _may_repeat(fault: WireFault | RpcError, *, harmless: bool) -> bool:
    """Whether a lost request may be sent again: it never arrived, or repeating is harmless."""
    return isinstance(fault, WireClosed | RequestFailed) and (harmless or not fault.sent)
