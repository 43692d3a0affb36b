"""Sends a request to a server: a slot, a session, possibly a retry, an answer."""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from msgspec import Raw

from multitap.config.models import Limits
from multitap.errors import (
    AnswerInvalid,
    AnswerTimeout,
    AuthRequired,
    BadAnswer,
    CallTimeout,
    MultitapError,
    Overloaded,
    OwnerChanged,
    OwnerMoving,
    RequestFailed,
    ServerError,
    Unavailable,
    WireClosed,
    WireFault,
    counted,
)
from multitap.limits import GENEROSITY, Shares
from multitap.tasks import Bell, Latch, now
from multitap.trust.questions import name_places
from multitap.upstream.availability import Availability
from multitap.upstream.handshake import Era
from multitap.upstream.report import ServerReport
from multitap.upstream.session import Session
from multitap.wire.jsonrpc import URL_ELICITATION_REQUIRED, RpcError, usual_result
from multitap.wire.request import Deadline, Request
from multitap.wire.wire import OnProgress

_MOST_REPEATS = 2  # attempts of a lost request
_BRISK = 0.1  # seconds since the last answer, after which a server counts as slow
_EARLY_PATIENCE = 30.0  # seconds that a notification waits for a server that starts
_MOST_EARLY = 64  # notifications that wait for one server
_MOST_QUIET, _LONGEST_SUBJECT = 20_000, 256  # subjects, twice as many as a server has tools
_STATELESS = Era.STATELESS  # read once: enum attributes are slow
_MIXING = frozenset({"stdio", "sse"})
"""Wires on which a server's messages do not name their call."""


class QueueFull(Exception):
    """The queue is full; the message says why."""


class CallSlots:
    """A semaphore with a bounded, fair queue; taking a free slot does not switch tasks.

    All holders have a fair share of slots and queue, and are served in turn, so that one does not
    block the others. Alone, a holder whose calls are answered may have all slots. The holder None
    stands for a single user, which may have everything.
    """

    def __init__(self, working: int, waiting: int) -> None:
        self.working = 0
        self.limit = working
        self._clock = asyncio.get_running_loop().time
        self._last_ended: tuple[object, float] = (None, -math.inf)
        """The holder whose call was the last to end, and when."""
        self._queue_limit = waiting
        self._waiting = 0
        self.held: dict[object, int] = {}
        """The slots of each holder other than None."""
        self.shared = 0
        """The sum of these slots."""
        self._waiting_shares = Shares(waiting, "waiting calls")
        self.queues: dict[object, deque[asyncio.Future[None]]] = {}

    @property
    def waiting(self) -> int:
        """How many calls wait for a slot."""
        return self._waiting

    def take(self, slot_holder: object = None) -> bool:
        """Take a slot if one is free."""
        if self.working >= self.limit:
            return False
        if slot_holder is not None:
            held = self.held.get(slot_holder, 0)
            is_over_share = held >= GENEROSITY * (self.limit - self.shared)
            if is_over_share and not self._may_exceed(slot_holder, held):
                return False
            self.held[slot_holder] = held + 1
            self.shared += 1
        self.working += 1
        return True

    def _may_exceed(self, slot_holder: object, held: int) -> bool:
        """Whether a holder may take what its share leaves to others: there are none now.

        Only while its calls end, so that the next one to come gets its share within a call: calls
        that hang never take all.
        """
        if held < self.shared or (self.queues and self.queues.keys() != {slot_holder}):
            return False
        last_holder, at = self._last_ended
        return last_holder == slot_holder and self._clock() - at < _BRISK

    async def wait(self, slot_holder: object = None) -> None:
        """Wait for a slot, and take it.

        Raises:
            QueueFull: The queue is full.
        """
        if self._waiting >= self._queue_limit:
            raise QueueFull(f"{counted(self._queue_limit, 'call')} already waiting for it")
        if slot_holder is not None and not self._waiting_shares.take(slot_holder):
            raise QueueFull(self._waiting_shares.refusal(slot_holder))
        turn = asyncio.get_running_loop().create_future()
        self._waiting += 1
        self.queues.setdefault(slot_holder, deque()).append(turn)
        # The caller found no slot, but may get here a turn of the loop later: all may be free by
        # now, with no call left that returns one.
        self.call_up_next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(slot_holder)  # it was ours already
            raise
        finally:
            self._waiting -= 1
            if slot_holder is not None:
                self._waiting_shares.give(slot_holder)

    def give(self, slot_holder: object = None) -> None:
        """Return a slot; the next waiting call, in fair order, gets it."""
        self.working -= 1
        if slot_holder is not None:
            self._last_ended = slot_holder, self._clock()
            self.shared -= 1
            if left := self.held[slot_holder] - 1:
                self.held[slot_holder] = left
            else:
                del self.held[slot_holder]
        if self.queues:
            self.call_up_next()

    def call_up_next(self) -> None:
        """Give a free slot to the next waiting call."""
        for other in tuple(self.queues):
            if self._call_up(other):
                break

    def _call_up(self, slot_holder: object) -> bool:
        """Give a slot to a waiting call of a holder, which then moves to the end of the order."""
        queue = self.queues[slot_holder]
        while queue and queue[0].done():
            queue.popleft()
        if not queue:
            del self.queues[slot_holder]
            return False
        if not self.take(slot_holder):
            return False
        queue.popleft().set_result(None)
        if self.queues.pop(slot_holder):
            self.queues[slot_holder] = queue
        return True


class ServerHabits:
    """What all links to one server have seen it do during calls."""

    __slots__ = ("_on_learned", "asks", "changed", "task_tools")

    def __init__(
        self, *, asks: bool = False, on_learned: Callable[[], None] = lambda: None
    ) -> None:
        self.asks = asks
        """Whether it asks without naming the call, so that its clients' calls are kept apart."""
        self.changed = Bell()
        """Rings when it is seen to ask, and when a call ends."""
        self.task_tools: set[str] = set()
        """Tools that it refuses to run for callers that take no task."""
        self._on_learned = on_learned

    def learn(self) -> None:
        """Note that it asks without naming the call."""
        if not self.asks:
            self.asks = True
            self.changed.ring()
            self._on_learned()


class Attribution:
    """Decides whether a server's question surely belongs to one call of this link."""

    def __init__(self, habits: ServerHabits, *, mixes: bool) -> None:
        self.habits = habits
        self.is_mixing = mixes
        """Whether messages on its wire do not name their call."""
        self.quiet_subjects: set[str] = set()
        """Subjects that it has answered without asking."""

    def on_connected(self, session: Session) -> None:
        """Apply what is known of a new session."""
        self.is_mixing = session.wire.kind in _MIXING

    def may_mix(self, subject: str) -> bool:
        """Whether a request may cause questions that do not name their call.

        A subject is a tool's own name, or a method.
        """
        return self.habits.asks or (self.is_mixing and subject not in self.quiet_subjects)

    def is_quiet(self, subject: str) -> bool:
        """Whether it has answered this subject before without asking."""
        return subject in self.quiet_subjects

    def was_quiet(self, subject: str) -> None:
        """Remember that it answered a subject without asking."""
        # bounded: clients invent the methods of extensions, and a refusal is an answer
        is_kept = len(self.quiet_subjects) < _MOST_QUIET and len(subject) <= _LONGEST_SUBJECT
        if not self.habits.asks and is_kept:
            self.quiet_subjects.add(subject)


class RequestPath:
    """Owns the slots of one server, and what requests show about its health.

    Used by any task, for all sessions of a link. It never opens or closes one: it uses the current
    one, or waits until the link's own task has opened another.
    """

    def __init__(
        self,
        limits: Limits,
        availability: Availability,
        attribution: Attribution,
        report: ServerReport,
    ) -> None:
        self.slots = CallSlots(limits.in_flight, limits.queue)
        self.doubted = Latch()
        """Set by a failed request, to trigger a health check."""
        self.last_used = now()
        self._name = report.name
        self._availability = availability
        self._attribution = attribution
        self._report = report
        self._early = 0
        self._unanswered = False
        """Whether the last request timed out and the server has not answered since."""
        self._clock = asyncio.get_running_loop().time  # looked up once: finding the loop is slow

    async def request(self, request: Request, begun: Session | None = None) -> Raw:
        """Send a request to the server and return its undecoded result.

        The only path of requests to a server: it takes and returns a slot, and decides whether a
        lost request is sent again. A request that was `begun` goes on in its session.

        Raises:
            UpstreamError: The request failed; the subclass says why.
        """
        if (on_progress := request.on_progress) is not None:
            request.on_progress = self._redacting(on_progress)
        if begun is None and not self.slots.take(request.slot_holder):
            await self._queue(request)
        try:
            try:
                session = begun or self._availability.session or await self._session(request)
                result = await session.request(request)
            except (WireFault, RpcError) as exc:
                fault = exc
            else:
                self._unanswered = False
                return result
            return await self._retry_or_raise(request, fault)
        finally:
            self._on_end(request)

    def begin(self, request: Request, on_news: Callable[[], None]) -> Session | None:
        """Send a request without a task; None if it has to wait for more than its answer.

        `on_news` is called once, when `result` may have its result, with the same session.
        """
        session = self._availability.session
        if session is None or (wire := session.direct) is None:
            return None
        if request.on_progress or request.is_relayed or not self.slots.take(request.slot_holder):
            return None
        is_sent = False
        try:
            if session.era is _STATELESS:
                session.address(request)
            is_sent = wire.begin(request, on_news)
        except WireFault:
            pass  # `request` says what is wrong
        finally:
            if not is_sent:
                self.slots.give(request.slot_holder)
        return session if is_sent else None

    def result(self, request: Request, session: Session) -> Raw | None:
        """The usual result of a request that was begun; None: `request` goes on with it."""
        pending = request.pending
        if pending is None or pending.answer is None:
            return None
        result = usual_result(pending.answer)
        if result is None or (session.era is _STATELESS and not session.is_final(request, result)):
            return None
        request.pending = None
        self._unanswered = False
        self._on_end(request)
        return result

    def _on_end(self, request: Request) -> None:
        """Return the slot of a request."""
        self.slots.give(request.slot_holder)
        self.last_used = self._clock()
        habits = self._attribution.habits
        if habits.asks:
            habits.changed.ring()  # waiting clients may have their turn

    async def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification, if the server is connected and of the handshake era."""
        session = self._availability.session
        if session is not None and session.era is Era.HANDSHAKE:
            # over HTTP it can be refused, which is nobody's business: it has no answer
            with contextlib.suppress(WireFault, RpcError):
                await session.wire.notify(method, params)

    async def notify(self, method: str, params: Mapping[str, Raw], capabilities: Raw) -> None:
        """Pass on a client's notification; dropped if the server is not up soon, or refuses it.

        Args:
            method: Its method.
            params: Its parameters, undecoded.
            capabilities: The client's, for a server that remembers none.
        """
        session = self._availability.session
        # like a call, it waits for a server that starts; a flood of them must not wait, though
        if session is None and not self._availability.is_asleep and self._early < _MOST_EARLY:
            self._early += 1
            try:
                patience = Deadline.since(now(), _EARLY_PATIENCE, None)
                session = await self._availability.session_by(patience)
            except Unavailable:
                return
            finally:
                self._early -= 1
        if session is not None:
            with contextlib.suppress(WireFault, RpcError):
                await session.notify(method, params, capabilities)

    async def settle(self, timeout: float) -> None:
        """Wait until the server has read all messages, so that cancelled calls send nothing more.

        Ends after `timeout` seconds at the latest.
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
        message = redact(str(fault))
        match fault:
            case RpcError():
                data = redact.data(fault.data)
                if fault.code == URL_ELICITATION_REQUIRED:
                    data = name_places(name, data)
                return ServerError(name, message, code=fault.code, data=data)
            case AnswerTimeout():
                return CallTimeout(name, message, hint="raise `timeout` if it needs that long")
            case AnswerInvalid():
                return BadAnswer(name, message)
            # after a change of owner the server itself may be fine: no reason to wait for
            case WireClosed() if not isinstance(fault, OwnerChanged):
                return await self._availability.wait_lost(
                    f"the connection was lost during {method!r}"
                )
            case AuthRequired():
                failure = self._availability.failure
                return Unavailable(
                    name, message, hint=fault.hint, failure=failure, wants_login=True
                )
            case _:
                if isinstance(fault, OwnerChanged):
                    message = f"the connection was lost during {method!r}: {message}"
                return Unavailable(name, message, failure=self._availability.failure)

    def _redacting(self, on_progress: OnProgress) -> OnProgress:
        redact = self._report.redact

        def redacted(done: float, total: float | None, message: str | None) -> None:
            on_progress(done, total, message and redact(message))

        return redacted

    async def _queue(self, request: Request) -> None:
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
            message = f"it is busy: no free slot within {deadline.timeout:g} s"
            raise CallTimeout(self._name, message) from None
        finally:
            request.queued = self._clock() - since

    async def _session(self, request: Request) -> Session:
        since = self._clock()
        try:
            return await self._availability.session_by(request.deadline)
        finally:
            request.connecting += self._clock() - since

    async def _retry_or_raise(self, request: Request, fault: WireFault | RpcError) -> Raw:
        """Send a failed request again if that is allowed, or raise why it failed.

        After a first retry, it is only repeated if it provably never arrived.
        """
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
