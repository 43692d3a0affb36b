"""The pending requests of one wire: their remaining time, and what ends them early."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from time import perf_counter
from typing import Any, NoReturn, Self

import anyio
import msgspec

from multitap.errors import AnswerInvalid, AnswerTimeout, WireClosed, WireFault
from multitap.wire.jsonrpc import Envelope, RequestId, encode
from multitap.wire.request import Request
from multitap.wire.wire import LONG, SEVERAL, owner_of


class UnclearOwner:
    """Waits until all calls but those of one owner are answered: the question is theirs then.

    An answered call asks nothing more. A cancelled one may still run at the server, and the
    question may be its own: then the owner never becomes certain.
    """

    __slots__ = ("_calls", "outcome")

    def __init__(self, calls: Mapping[object, object]) -> None:
        self._calls = dict(calls)
        self.outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        """The call it belongs to; `SEVERAL` if that cannot be known."""

    def on_end(self, request: object, *, answered: bool) -> None:
        """Note that one of the requests has ended."""
        if request not in self._calls or self.outcome.done():
            return
        if not answered:
            self.outcome.set_result(SEVERAL)
            return
        del self._calls[request]
        if (call := common(self._calls)) is not SEVERAL:
            self.outcome.set_result(call)


def common(calls: Mapping[object, object]) -> object | None:
    """One of the calls if all have the same owner, `SEVERAL` if not; None without calls."""
    pending_calls = list(calls.values())
    if not pending_calls:
        return None
    same = all(owner_of(call) is owner_of(pending_calls[0]) for call in pending_calls)
    return pending_calls[-1] if same else SEVERAL


logger = logging.getLogger(__name__)

DOUBT = 10.0
"""Seconds to wait until it is certain which call a question belongs to."""
_ID_BITS = 31  # some servers keep ids in 32 bits
_IDS = (1 << _ID_BITS) - 1
_HALF = 16  # bits; shifting by at least half of an id makes its mixing its own inverse


_LONG_REQUEST = (
    b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":{%b,"_meta":{"progressToken":%d%b%b}}}'
)


class ProgressReport(msgspec.Struct):
    """The progress that a server reports for a request."""

    progressToken: int | str  # noqa: N815 - the wire's spelling
    progress: float
    total: float | None = None
    message: str | None = None


class PendingRequest(msgspec.Struct, eq=False):
    """One request, from before it is sent until its answer has arrived.

    `await pending.news()` waits for the answer, a fault, or `stir`; without a task, `on_news` is
    called for the next of them. Longer work on the request runs in a task inside `with pending`,
    which ends with the deadline or with the wire.
    """

    pending_requests: "PendingRequests"
    request: Request
    id: int
    sent: bool = False
    """Whether the server may have received it."""
    answer: Envelope | None = None
    """Its answer, on a stream that several requests share."""
    reply: Any = None
    """What came back on a connection of its own; its wire knows what that is."""
    fault: Exception | None = None
    """Why there will be no answer."""
    connection: Any = None
    """The connection of its own on which it was sent; its wire knows what that is."""
    on_news: Callable[[], None] | None = None
    _waiter: asyncio.Future[None] | None = None
    _since: float = 0.0
    _held: int = 0
    _expired: bool = False
    _task: asyncio.Task[Any] | None = None
    _cancelling: int = 0

    @property
    def waiting(self) -> bool:
        """Whether there is neither an answer nor a fault yet."""
        return self.answer is None and self.fault is None

    def message(self) -> bytes:
        """The encoded request; it asks for progress if it may take long."""
        request, number = self.request, self.id
        meta, params, method = request.meta, request.params, request.method
        if request.stamp:
            meta = b"%b,%b" % (request.stamp, meta) if meta else request.stamp
        is_long = method in LONG
        # that of an extension is a client's own text, which could end its string and begin another
        # method: a call that no policy has seen
        name = method.encode() if is_long else encode(method)[1:-1]
        # for all long requests: progress renews the deadline, even without a listener
        if is_long or request.on_progress is not None:
            if params:  # the usual case
                comma = b"," if meta else b""
                return _LONG_REQUEST % (number, name, params, number, comma, meta)
            token = b'"progressToken":%d' % number
            meta = b"%b,%b" % (token, meta) if meta else token
        if meta:
            params = b'%b,"_meta":{%b}' % (params, meta) if params else b'"_meta":{%b}' % meta
        elif params is None:
            return b'{"jsonrpc":"2.0","id":%d,"method":"%b"}' % (number, name)
        # joined bytes: arguments of clients are passed on without encoding them again
        return b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":{%b}}' % (number, name, params)

    def news(self) -> Awaitable[None]:
        """A future for the next news; only call it while `waiting`."""
        self._waiter = waiter = self.pending_requests.loop.create_future()
        self.on_news = None
        self._since = perf_counter()
        return waiter

    def listen(self, on_news: Callable[[], None]) -> None:
        """Call `on_news` once, at the next news."""
        self.on_news = on_news
        self._since = perf_counter()

    def raise_fault(self) -> NoReturn:
        """Raise the fault, and drop it to break the reference cycle with its frames."""
        fault, self.fault = self.fault, None
        raise fault or RuntimeError("there is no answer, and no fault") from None

    def stir(self, _: object = None) -> None:
        """Wake the waiter."""
        if (on_news := self.on_news) is not None:
            self.on_news = None
            self.request.waited += perf_counter() - self._since
            on_news()
            return
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            self.request.waited += perf_counter() - self._since
            waiter.set_result(None)

    def on_reply(self, outcome: object) -> None:
        """Take what came back on its connection, or the fault of it."""
        if not isinstance(outcome, WireFault):
            self.reply = outcome
        elif self.waiting:
            self.fault = outcome
        self.stir()

    def settle(self, answer: "Envelope | AnswerInvalid") -> bool:
        """Set its answer; the first one wins."""
        if self.answer is not None or self.fault is not None:
            return False
        if isinstance(answer, AnswerInvalid):
            self.fault = answer
        else:
            self.answer = answer
            # at once: later messages of the server no longer belong to it
            pending_requests = self.pending_requests
            if pending_requests.by_id.pop(self.id, None) is not None and pending_requests.doubts:
                pending_requests.clear_up(self, answered=True)
        self.stir()
        return True

    def cut(self, fault: WireFault) -> None:
        """End it now, with `fault`."""
        if self.waiting:
            self.fault = fault
            self._interrupt()

    def _interrupt(self) -> None:
        if self._waiter is not None or self.on_news is not None:
            self.stir()
        elif self._task is not None and not self._expired:
            if self._task is asyncio.current_task(self.pending_requests.loop):
                return  # it sees the fault when it wakes; a self-cancellation would surface later
            self._expired = True
            self._task.cancel()

    # Like `asyncio.timeout` at a third of its cost: progress only changes a number.
    def __enter__(self) -> Self:
        task = asyncio.current_task(self.pending_requests.loop)
        if task is None:
            raise RuntimeError("this takes a task")
        if self.fault is not None:
            self.raise_fault()
        self._task = task
        self._cancelling = task.cancelling()
        self._since = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: object
    ) -> None:
        task, self._task = self._task, None
        self.request.waited += perf_counter() - self._since
        if self._expired and task is not None:
            self._expired = False
            ours = task.uncancel() <= self._cancelling
            if ours and isinstance(exc, asyncio.CancelledError) and self.fault is not None:
                self.raise_fault()
        if isinstance(self.fault, WireClosed) and isinstance(exc, Exception):
            # the deadline or cancellation matters more than a closing connection
            self.raise_fault()

    def on_report(self, report: ProgressReport) -> None:
        """Handle progress: renew the deadline, and call the listener, if any."""
        self.request.deadline.renew(self.pending_requests.loop.time())
        if (on_progress := self.request.on_progress) is None:
            return
        try:
            on_progress(report.progress, report.total, report.message)
        except Exception:
            logger.exception("a progress callback raised")

    def hold(self, *, held: bool) -> None:
        """Stop the clock while the server waits for our answer, perhaps from a person."""
        self._held += 1 if held else -1
        self.request.deadline.renew(self.pending_requests.loop.time())

    def check(self, now: float) -> None:
        """End it if its time is over."""
        deadline = self.request.deadline
        if self._held:
            deadline.renew(now)
        if deadline.at <= now and self.waiting:
            self.fault = AnswerTimeout(deadline.words(self.request.method), sent=self.sent)
            self._interrupt()


class RequestNumbers:
    """Numbers requests 1, 2, 3 …, and disguises the numbers as ids that look random.

    No server can answer before it was asked, and yet each id that was issued can be told from
    all others without keeping any.
    """

    __slots__ = ("_factors", "_inverses", "issued")

    def __init__(self) -> None:
        random = Random()  # noqa: S311 - seeded by the system, and not a secret worth more
        self.issued = 0
        self._factors = tuple(random.getrandbits(_ID_BITS) | 1 for _ in range(2))
        self._inverses = tuple(pow(factor, -1, _IDS + 1) for factor in self._factors)

    def issue(self) -> int:
        """The id of the next request; they repeat after two billion."""
        self.issued = number = self.issued + 1
        first, second = self._factors
        mixed = number * first & _IDS
        mixed = (mixed ^ mixed >> _HALF) * second & _IDS
        return mixed ^ mixed >> _HALF

    def is_issued(self, request_id: object) -> bool:
        """Whether it is the id of some request, however old."""
        if type(request_id) is not int or not 0 <= request_id <= _IDS:
            return False
        first, second = self._inverses
        mixed = (request_id ^ request_id >> _HALF) * second & _IDS
        number = (mixed ^ mixed >> _HALF) * first & _IDS
        return 0 < number <= self.issued or self.issued > _IDS


class PendingRequests:
    """All pending requests of one wire."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()  # looked up once: that is a system call
        self.by_id: dict[RequestId, PendingRequest] = {}
        self.doubts: set[UnclearOwner] = set()
        self._numbers = RequestNumbers()
        self._owed = 0
        """How many requests were sent and given up: that many answers may still arrive."""
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        self._is_closed = False
        self._fault: WireFault | None = None

    def begin(self, request: Request) -> PendingRequest:
        """Begin a request.

        Raises:
            WireClosed: The wire is closed.
        """
        if self._is_closed:
            raise closing(self._fault, sent=False)
        by_id = self.by_id
        while (number := self._numbers.issue()) in by_id:
            pass
        pending = by_id[number] = PendingRequest(self, request, number)
        if request.deadline.at < self._due:
            self._wake_at(request.deadline.at)
        return pending

    def give_up(self, pending: PendingRequest) -> None:
        """Note that the answer of a request has no use any more."""
        self._owed += pending.sent

    def is_late(self, request_id: RequestId | None) -> bool:
        """Whether an answer is to a request that was given up; true once for each of these."""
        # counted: otherwise a server could repeat one answer forever, and none would be junk
        if not self._owed or not self._numbers.is_issued(request_id):
            return False
        self._owed -= 1
        return True

    def __len__(self) -> int:
        return len(self.by_id)

    def get(self, request_id: RequestId) -> PendingRequest | None:
        return self.by_id.get(request_id)

    def only(self) -> PendingRequest | None:
        """The only pending request, not counting endless streams; None if there are more."""
        pending_requests = self.by_id.values()
        waiting = [
            pending
            for pending in pending_requests
            if pending.waiting and pending.request.deadline.timeout is not None
        ]
        return waiting[0] if len(waiting) == 1 else None

    def of(self, call: object | None) -> list[PendingRequest]:
        """The requests of a call and its owner; all requests if the call is not certain."""
        calls = [pending for pending in self.by_id.values() if pending.request.call is not None]
        if call is None or call is SEVERAL:
            return calls
        return [pending for pending in calls if owner_of(pending.request.call) is owner_of(call)]

    def call_in_question(self) -> object | None:
        """The call of a server's message that does not name it.

        One of the pending calls if all have the same owner, `SEVERAL` if not.
        """
        return common(self._calls())

    def serve_only(self, owner: object) -> bool:
        """Whether all pending calls belong to this owner."""
        return all(owner_of(call) is owner for call in self._calls().values())

    def doubt(self) -> UnclearOwner:
        """A new `UnclearOwner` for a message that belongs to one of the pending calls."""
        doubt = UnclearOwner(self._calls())
        self.doubts.add(doubt)
        return doubt

    async def certain(self, doubt: UnclearOwner) -> object:
        """Wait until the call of a message is certain; `SEVERAL` if it is not in time."""
        try:
            with anyio.move_on_after(DOUBT):
                return await doubt.outcome
        finally:
            self.doubts.discard(doubt)
        return SEVERAL

    def _calls(self) -> dict[object, object]:
        calls = {pending: pending.request.call for pending in self.by_id.values()}
        return {pending: call for pending, call in calls.items() if call is not None}

    def leave(self, pending: PendingRequest, *, answered: bool = False) -> None:
        """Remove a request that has ended; repeated calls do nothing."""
        if self.by_id.pop(pending.id, None) is not None and self.doubts:
            self.clear_up(pending, answered=answered)

    def clear_up(self, pending: PendingRequest, *, answered: bool) -> None:
        """Let open doubts know that a request has ended."""
        for doubt in self.doubts:
            doubt.on_end(pending, answered=answered)

    # One timer for all: setting and cancelling one per request would cost more than the rest.
    def _wake_at(self, due: float) -> None:
        """Schedule the next check of all deadlines."""
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = None
        if due < math.inf:
            self._timer = self.loop.call_at(due, self._look)

    def _look(self) -> None:
        now = self.loop.time()
        for pending in tuple(self.by_id.values()):
            pending.check(now)
        deadlines = [pending.request.deadline.at for pending in self.by_id.values()]
        self._wake_at(min((at for at in deadlines if at > now), default=math.inf))

    def cut(self, fault: WireFault | None, spare: PendingRequest | None = None) -> None:
        """Fail all requests, because the wire is closed; `spare` ends by itself."""
        self._is_closed, self._fault = True, fault
        for pending in tuple(self.by_id.values()):
            if pending is not spare:
                pending.cut(closing(fault, sent=pending.sent))
        self._wake_at(math.inf)


def closing(fault: WireFault | None, *, sent: bool) -> WireClosed:
    """The error for a request on a closed wire; without `fault`, it was closed on purpose."""
    kind = type(fault) if isinstance(fault, WireClosed) else WireClosed
    return kind(str(fault or "the connection is closed"), sent=sent)
