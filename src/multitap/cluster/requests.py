"""Requests that only another replica can answer, where a call or a session of its own waits."""

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
from msgspec import Raw

from multitap.catalog.audience import Audience
from multitap.cluster.bus import ReplicaBus, ReplicaMessage
from multitap.errors import CoordinatorDown
from multitap.gateway import client_errors
from multitap.gateway.client import (
    Client,
    OnOtherReplica,
    Outlet,
    session_request,
    stateless_request,
)
from multitap.gateway.gateway import Gateway
from multitap.principal import Principal
from multitap.tasks import CancelHandle
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import (
    SERVER_ERROR,
    ClientMessage,
    Result,
    RpcError,
    parse_client_message,
)

_FOREVER = 86_400.0  # seconds: the request's own deadline ends it long before


class RelayedRequest(msgspec.Struct, array_like=True):
    """A client's request on its way to another replica."""

    session_id: str
    """Empty in the stateless era."""
    principal: Principal
    holder: str
    audience: Audience
    body: bytes


class _RelayedOutcome(msgspec.Struct, array_like=True):
    result: bytes = b""
    code: int = 0
    message: str = ""
    data: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(RelayedRequest).decode
_decode_outcome = msgspec.msgpack.Decoder(_RelayedOutcome).decode

FindClient = Callable[[RelayedRequest], Awaitable[Client | None]]
"""Finds the client of a relayed request, as this replica knows it."""


class _RelayOutlet:
    """Sends messages that precede an answer to the client's replica, in order; an `Outlet`."""

    def __init__(self, bus: ReplicaBus, note: ReplicaMessage) -> None:
        self._bus = bus
        self._note = note
        self._waiting: deque[bytes] = deque()
        self._sent = asyncio.Event()
        self._sent.set()

    def send(self, message: bytes) -> bool:
        # one sender at a time: notes sent side by side could arrive in another order
        self._waiting.append(message)
        if self._sent.is_set():
            self._sent.clear()
            self._bus.tasks.start_soon(self._drain)
        return True

    async def flush(self) -> None:
        """Wait until all messages are sent, also those that the sender has already taken."""
        await self._sent.wait()

    async def _drain(self) -> None:
        try:
            while self._waiting:
                data = _encode((self._note.key, self._waiting.popleft()))
                with suppress(CoordinatorDown):
                    await self._bus.tell(self._note.sender, "relayed", data)
        finally:
            # no await since the queue was found empty, so nothing can have been left in it
            self._sent.set()


class RelayedRequests:
    """Sends requests to other replicas, and answers those that they send."""

    def __init__(self, gateway: Gateway, bus: ReplicaBus, find: FindClient) -> None:
        self._gateway = gateway
        self._bus = bus
        self._find = find
        self._outlets: dict[str, Outlet] = {}
        """The outlets of our relayed requests, by key."""
        self._running: dict[str, CancelHandle] = {}
        """Relayed requests in progress here, by key."""
        bus.on("request", self._answer)
        bus.on("relayed", self._on_relayed)
        bus.on("drop", self._on_drop)

    async def send(self, replica: str, request: RelayedRequest, outlet: Outlet) -> Result:
        """The answer of another replica to a client's request.

        Raises:
            RpcError: It refuses the request.
            Unavailable, CoordinatorDown: It cannot be asked.
        """
        key = secrets.token_urlsafe(9)
        # before it is sent: progress may come ahead of the reply
        self._outlets[key] = outlet
        try:
            reply = await self._bus.ask(
                replica, "request", _encode(request), within=_FOREVER, key=key
            )
        except BaseException:  # also when the client is gone
            # from a task of the bus: this one may be cancelled
            self._bus.tell_soon(replica, "drop", key.encode())
            raise
        finally:
            del self._outlets[key]
        outcome = _decode_outcome(reply)
        if outcome.code:
            data = msgspec.json.decode(outcome.data) if outcome.data else None
            raise RpcError(outcome.code, outcome.message, data)
        return outcome.result

    async def _answer(self, note: ReplicaMessage) -> bytes:
        relayed = _decode_request(note.data)
        message = parse_client_message(relayed.body)
        outlet = _RelayOutlet(self._bus, note)
        handle = self._running[note.key] = CancelHandle()
        outcome = _RelayedOutcome(code=client_errors.CANCELLED, message="Request cancelled")
        try:
            with handle:
                outcome = await self._outcome(relayed, message, outlet)
        finally:
            del self._running[note.key]
        # the answer must not overtake what precedes it
        await outlet.flush()
        return _encode(outcome)

    async def _outcome(
        self, relayed: RelayedRequest, message: ClientMessage, outlet: Outlet
    ) -> _RelayedOutcome:
        try:
            client = await self._find(relayed)
            if client is None:
                raise RpcError(SERVER_ERROR, "the session has ended")  # noqa: TRY301 - one way out
            result = await self._work(client, relayed, message, outlet)
        except OnOtherReplica:
            return _RelayedOutcome(
                code=SERVER_ERROR, message="the call has moved to another replica"
            )
        except Exception as exc:  # noqa: BLE001 - boundary: told to the replica that asked
            refused = client_errors.to_refusal(exc, message.method)
            data = b"" if refused.data is None else jsonrpc.encode(refused.data)
            return _RelayedOutcome(code=refused.code, message=str(refused), data=data)
        whole = b"".join(result) if isinstance(result, tuple) else bytes(result)
        return _RelayedOutcome(whole)

    async def _work(
        self, client: Client, relayed: RelayedRequest, message: ClientMessage, outlet: Outlet
    ) -> Result:
        params = client_errors.read_params(message)
        make = session_request if relayed.session_id else stateless_request
        request = make(client, message.id, outlet, params)
        if message.method == "tools/call":
            return await self._gateway.calls.answer(request)
        return await self._gateway.answer(request, message)

    async def _on_relayed(self, note: ReplicaMessage) -> None:
        key, message = msgspec.msgpack.decode(note.data, type=tuple[str, bytes])
        if (outlet := self._outlets.get(key)) is not None:
            outlet.send(message)

    async def _on_drop(self, note: ReplicaMessage) -> None:
        if (handle := self._running.get(note.data.decode())) is not None:
            handle.cancel()


def to_relay(client: Client, session_id: str, body: bytes | Raw) -> RelayedRequest:
    """A client's request as it is sent to another replica."""
    return RelayedRequest(session_id, client.principal, client.holder, client.audience, bytes(body))
