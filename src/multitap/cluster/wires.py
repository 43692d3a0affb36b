"""Wires to servers that another replica runs, or that this one runs for others."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import msgspec
from msgspec import Raw

from multitap.cluster import peer_messages as say
from multitap.cluster.peer_messages import PeerLine
from multitap.errors import (
    AnswerTimeout,
    BadAnswer,
    CallTimeout,
    Overloaded,
    OwnerChanged,
    OwnerMoving,
    OwnerUnreachable,
    RequestFailed,
    Unavailable,
    WireClosed,
    WireFault,
    ungrouped,
)
from multitap.redaction import Redactor
from multitap.tasks import Tasks
from multitap.wire import jsonrpc
from multitap.wire.exchange import Exchange
from multitap.wire.jsonrpc import Envelope, Params, RpcError
from multitap.wire.pending import PendingRequest, ProgressReport
from multitap.wire.request import Deadline, Request
from multitap.wire.wire import (
    SEVERAL,
    DirectWire,
    Evidence,
    Inbound,
    OwnedCall,
    Wire,
    owner_of,
)

if TYPE_CHECKING:
    from multitap.cluster.leases import OwnerLease

_JUNK = 1024 * 1024
_PUBLIC = {
    "Unavailable": Unavailable,
    "CallTimeout": CallTimeout,
    "Overloaded": Overloaded,
    "BadAnswer": BadAnswer,
}
"""Errors of the owner that are passed on unchanged: the owner has already retried."""

PATIENCE = 15.0
"""Seconds for an owner to finish its requests: well beyond its own limit for draining."""

CONNECTING = frozenset({"initialize", "server/discover"})
"""Requests that a link sends before the server is connected."""
HANDSHAKE = CONNECTING | {"ping"}
"""Requests that the owner answers by itself, after its own handshake with the server."""


class ForwardedWire:
    """See `Wire`. Messages of the server arrive with the call they belong to."""

    kind = "cluster"

    def __init__(self, server: str, number: int, connection: PeerLine, exchange: Exchange) -> None:
        self._server = server
        self._number = number
        self._connection = connection
        self._exchange = exchange
        self._loop = asyncio.get_running_loop()
        self._is_leaving = False
        self._in_time = asyncio.Event()
        self._in_time.set()
        self.closed = exchange.closed
        self.attach = exchange.inbound_messages.attach
        self.establish = _nothing_to_open

    @property
    def fault(self) -> WireFault | None:
        return self._exchange.fault

    async def request(self, request: Request) -> Raw:
        exchange, connection = self._exchange, self._connection
        if request.is_relayed:  # from a third replica, which has to ask the owner itself
            raise OwnerMoving("another replica owns it now", sent=False)
        if self._is_leaving or not self._in_time.is_set():
            await self._wait_for_owner(request)
        # refused rather than queued: `send` never waits, so this is what bounds the memory
        if connection.is_congested:
            raise RequestFailed("the replica that runs it does not keep up", sent=False)
        # nothing is awaited between this and `send`, so that an answer always finds its request
        pending = exchange.begin(request)
        call, ask = request.call, None
        try:
            # an id is unique for as long as the object lives, and the call keeps it alive
            owner = -1 if call is None else id(owner_of(call))
            now = self._loop.time()
            ask = say.Ask.of(self._number, pending.id, request, now=now, owner=owner)
            connection.send(ask)
            pending.sent = True
            if pending.waiting:
                await pending.news()
            if (answer := pending.answer) is None:
                pending.raise_fault()
        # nothing reached the server, so it is safe to send it again to the next owner
        except OwnerUnreachable as exc:
            exchange.fail(pending, exc, None)
            # the link itself looks for the new owner. A health check waits like a call: its failure
            # would end the wire, and with it the calls that the owner still works on.
            if request.method in CONNECTING:
                raise
            raise await self._leave(request) from None
        except BaseException as exc:
            if ask is not None and connection.withdraw(ask):
                pending.sent = False
            exchange.fail(pending, exc, self._calling_off(pending))
            raise
        return exchange.result(pending, answer)

    def hold(self, *, is_late: bool) -> None:
        """Send no requests while the owner is late with its lease: the next one may get them."""
        if is_late:
            self._in_time.clear()
        else:
            self._in_time.set()

    async def _wait_for_owner(self, request: Request) -> None:
        if not self._in_time.is_set() and request.method not in HANDSHAKE:
            with anyio.move_on_after(request.deadline.at - self._loop.time()):
                await self._in_time.wait()
            if self.closed.is_set():
                raise OwnerChanged("another replica owns it now", sent=False)
            if not self._in_time.is_set():
                raise AnswerTimeout("its owner does not answer", sent=False)
        if self._is_leaving:
            raise await self._leave(request)

    async def _leave(self, request: Request) -> WireFault:
        """Wait until the owner has finished its requests and closed the wire."""
        self._is_leaving = True
        left = request.deadline.at - self._loop.time()
        with anyio.move_on_after(min(left, PATIENCE)):
            await self.closed.wait()
        if not self.closed.is_set():
            # a timeout of this request must not close the wire: others may still be answered
            if left < PATIENCE:
                return AnswerTimeout("its owner has left, and there is no other yet", sent=False)
            # the next request has to find the new owner
            self.cut("its owner has left")
        return OwnerChanged("another replica owns it now", sent=False)

    async def notify(
        self,
        method: str,
        params: Params | None,
        *,
        headers: Mapping[str, str] | None = None,  # noqa: ARG002 - the owner's wire has none
    ) -> None:
        if not self.closed.is_set():
            self._connection.send(say.Tell(self._number, method, jsonrpc.encode(params or {})))

    def serves_only(self, owner: object) -> bool:  # noqa: ARG002 - what it says has its call with it
        return True

    def is_stopped(self) -> bool:
        return False

    def evidence(self) -> Evidence:
        return Evidence()

    def take(self, message: say.PeerMessage) -> None:  # noqa: C901 - one case for each kind
        """Handle a message of the owner."""
        exchange = self._exchange
        match message:
            case say.PeerAnswer(number=number, result=result):
                if (pending := exchange.pending_requests.get(number)) is not None:
                    pending.settle(Envelope(id=number, result=Raw(result)))
            case say.Failed():
                self._on_failed(message)
            case say.Progress(number=number):
                if (pending := exchange.pending_requests.get(number)) is not None:
                    pending.on_report(
                        ProgressReport(number, message.progress, message.total, message.message)
                    )
            case say.News():
                self._overheard(
                    Envelope(method=message.method, params=Raw(message.params)), message.number
                )
            case say.PeerQuestion():
                question_ = Envelope(
                    id=message.question, method=message.method, params=Raw(message.params)
                )
                self._overheard(question_, message.number)
            case say.Withdraw(question=question):
                params = jsonrpc.encode({"requestId": question})
                gone = Envelope(method="notifications/cancelled", params=Raw(params))
                exchange.inbound_messages.take(gone)
            case say.Leave():
                self._is_leaving = True
            case say.Close(reason=reason):
                self.cut(reason)
            case _:
                pass  # only sent to owners

    def cut(self, reason: str) -> None:
        """Close the wire: its connection or its owner is gone."""
        self._exchange.close(OwnerChanged(reason, sent=True))
        self._in_time.set()

    def _overheard(self, message: Envelope, number: int) -> None:
        call: object | None = None
        if number == say.SEVERAL_CALLS:
            call = SEVERAL
        elif number != say.NO_CALL:
            pending = self._exchange.pending_requests.get(number)
            if pending is None:
                return  # its call is over
            call = pending.request.call
        self._exchange.inbound_messages.take(message, call)

    def _on_failed(self, message: say.Failed) -> None:
        pending = self._exchange.pending_requests.get(message.number)
        if pending is None or not pending.waiting:
            return
        pending.fault = self._fault(message)
        pending.stir()

    def _fault(self, message: say.Failed) -> Exception:
        text, hint = message.message, message.hint
        if message.kind == "rpc":
            data = jsonrpc.decode(message.data) if message.data else None
            return RpcError(message.code, text, data)
        if message.kind == "unsent":
            return OwnerMoving(text, sent=False)
        if message.kind == "down":
            return OwnerUnreachable(text, sent=False, hint=hint)
        public: Exception = _PUBLIC.get(message.kind, Unavailable)(self._server, text, hint=hint)
        return public

    def _calling_off(self, pending: PendingRequest) -> Callable[[bytes], None] | None:
        if not pending.request.cancellable:
            return None
        return lambda _: self._connection.send(say.Cancel(self._number, pending.id))


def _nothing_to_open(protocol_version: str, *, stateless: bool) -> None:
    """Do nothing: the owner has done the handshake."""
    del protocol_version, stateless


_numbers = itertools.count(1)


@asynccontextmanager
async def open_forwarded(
    server: str,
    connection: PeerLine,
    wires: dict[int, ForwardedWire],
    redact: Redactor,
) -> AsyncGenerator[ForwardedWire]:
    """Reach a server through its owner."""
    number = next(_numbers)
    with ungrouped():
        async with Tasks() as tasks:

            async def respond(message: bytes) -> None:
                question_id = msgspec.json.decode(message, type=_Answered).id
                connection.send(say.PeerReply(number, question_id, message))

            exchange = Exchange(respond, tasks, server, _JUNK, redact)
            # before `Open` is sent: replies must find it
            wire = wires[number] = ForwardedWire(server, number, connection, exchange)
            connection.send(say.Open(number, server))
            # the connection may have closed before the wire was registered, so that it was not cut
            if connection.is_closed:
                wire.cut(connection.reason)
            try:
                yield wire
            finally:
                # first: late messages of the owner must not reach a closed exchange
                del wires[number]
                exchange.close(None)
                connection.send(say.Close(number, "its user left"))


class _Answered(msgspec.Struct):
    id: int


OWNER_PATIENCE = 5.0
"""Seconds that a request waits for a lease that could not be renewed; then it fails."""

_UNCERTAIN = "the cluster's coordinator is down, so its owner is uncertain"
_NO_REPLICA = "every replica of the cluster is stopping"

CHANGES = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/updated",
        "notifications/subscriptions/acknowledged",
    }
)
"""Notifications for all replicas, no matter which call they arrive with."""


class RelayedWire(Protocol):
    """Another replica that uses the server."""

    def tell(self, number: int | None, method: str, params: Raw) -> None:
        """Pass a notification on; None if it belongs to no call."""
        ...

    async def ask(self, number: int, method: str, params: Raw) -> Any:
        """Ask a client of the other replica; returns its answer.

        Raises:
            RpcError: It refuses, or cannot be asked.
        """
        ...

    def cut(self, reason: str) -> None:
        """The server's pipes are closed."""
        ...


class RelayedCall(OwnedCall):
    """A call that a client of another replica makes."""

    __slots__ = ("_owner", "number", "wire")

    def __init__(self, wire: RelayedWire, number: int, owner: object) -> None:
        self.wire = wire
        self.number = number
        self._owner = owner

    @property
    def owner(self) -> object:
        return self._owner


class OwnedWire:
    """See `Wire`; nothing is sent without a valid lease."""

    def __init__(self, wire: Wire, lease: "OwnerLease", users: Iterable[RelayedWire]) -> None:
        self._wire = wire
        self._lease = lease
        self._users = users
        self._send = wire.request  # looked up once: every call passes here
        self._direct = wire if isinstance(wire, DirectWire) else None
        self._awaited = 0
        self._begun: set[PendingRequest] = set()
        """Those without a task."""
        self.kind = wire.kind
        self.closed = asyncio.Event()
        self.establish = wire.establish
        self.serves_only = wire.serves_only
        self.is_stopped = wire.is_stopped
        self.evidence = wire.evidence

    @property
    def fault(self) -> WireFault | None:
        if self._lease.is_lost:
            return OwnerChanged("another replica owns it now", sent=True)
        return self._wire.fault

    @property
    def in_flight(self) -> int:
        """How many requests are in progress, without endless ones such as subscriptions."""
        return self._awaited + len(self._begun)

    def attach(self, inbound: Inbound) -> None:
        self._wire.attach(SharedInbound(inbound, self._users))

    def begin(self, request: Request, on_news: Callable[[], None]) -> bool:
        """See `DirectWire`."""
        wire, begun = self._direct, self._begun
        if wire is None or request.deadline.timeout is None or not self._lease.is_valid:
            return False

        def on_end() -> None:
            if request.pending is not None:
                begun.discard(request.pending)
            on_news()

        is_sent = wire.begin(request, on_end)
        if is_sent and request.pending is not None and request.pending.waiting:
            begun.add(request.pending)
        return is_sent

    async def request(self, request: Request) -> Raw:
        if request.pending is not None:  # it is sent already
            self._begun.discard(request.pending)
        # the last check before it is sent: the lease may have ended while it waited. Health checks
        # pass: they execute nothing, and without an answer the program would be ended.
        elif not self._lease.is_valid and request.method not in HANDSHAKE:
            await self._wait_regained(request.deadline)
        # a subscription has no end: draining would never end
        if request.deadline.timeout is None:
            return await self._send(request)
        self._awaited += 1
        try:
            return await self._send(request)
        except WireClosed as exc:
            if self._lease.is_lost:  # the program was ended for that reason
                raise OwnerChanged("its owner lost the lease on it", sent=exc.sent) from None
            raise
        finally:
            self._awaited -= 1

    async def notify(
        self, method: str, params: Params | None, *, headers: Mapping[str, str] | None = None
    ) -> None:
        if self._lease.is_valid:
            await self._wire.notify(method, params, headers=headers)

    async def watch(self) -> None:
        """Close when the pipes close or the lease is lost, whichever is first."""
        async with anyio.create_task_group() as tasks:

            async def follow(ended: asyncio.Event) -> None:
                await ended.wait()
                self.closed.set()
                tasks.cancel_scope.cancel()

            tasks.start_soon(follow, self._wire.closed)
            tasks.start_soon(follow, self._lease.lost)

    async def _wait_regained(self, deadline: Deadline) -> None:
        """Wait while the lease cannot be renewed or is being released."""
        lease = self._lease
        left = deadline.at - anyio.current_time()
        # a lease that is being released ends by itself; one that cannot be renewed may not
        with anyio.move_on_after(left if lease.is_leaving else min(left, OWNER_PATIENCE)):
            while not lease.is_valid and not lease.is_lost and lease.has_successor:
                await lease.changed.wait()
        if not lease.has_successor:
            raise WireFault(_NO_REPLICA, sent=False)
        if lease.is_lost:
            # `watch` may not have run yet: the next attempt must not find this wire
            self.closed.set()
            raise OwnerChanged("another replica owns it now", sent=False)
        if not lease.is_valid:
            reason = "its owner has left, and there is no other yet"
            # not a retryable fault: the next attempt would only wait as long again
            raise WireFault(reason if lease.is_leaving else _UNCERTAIN, sent=False)


class SharedInbound:
    """Routes messages of the server to the replica whose call they belong to."""

    def __init__(self, inbound: Inbound, users: Iterable[RelayedWire]) -> None:
        self._inbound = inbound
        self._users = users
        self.on_unaddressed = inbound.on_unaddressed

    def notification(self, method: str, params: Raw, call: object | None) -> None:
        if isinstance(call, RelayedCall) and method not in CHANGES:
            call.wire.tell(call.number, method, params)
            return
        self._inbound.notification(method, params, None if isinstance(call, RelayedCall) else call)
        # a message that may belong to several calls is dropped rather than sent to the wrong one
        if method in CHANGES or call is None:
            # a copy: users come and go with their connections
            for user in tuple(self._users):
                user.tell(None, method, params)

    async def request(self, method: str, params: Raw, call: object | None) -> Any:
        if isinstance(call, RelayedCall):
            return await call.wire.ask(call.number, method, params)
        return await self._inbound.request(method, params, call)
