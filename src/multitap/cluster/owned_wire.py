"""The pipes of a server that this replica owns, shared with the other replicas."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import anyio
from msgspec import Raw

from multitap.cluster.forwarded_wire import HANDSHAKE
from multitap.cluster.owner_lease import OwnerLease
from multitap.faults import OwnerChanged, WireClosed, WireFault
from multitap.tasks import in_task
from multitap.wire.jsonrpc.deadline import Deadline
from multitap.wire.jsonrpc.request import Request
from multitap.wire.wire import Inbound, OwnedCall, Params, Wire

PATIENCE = 5.0
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

    def __init__(self, wire: Wire, lease: OwnerLease, users: Iterable[RelayedWire]) -> None:
        self._wire = wire
        self._lease = lease
        self._users = users
        self._send = wire.request  # looked up once: every call passes here
        self.in_flight = 0
        """Requests in progress, without endless ones such as subscriptions."""
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

    def attach(self, inbound: Inbound) -> None:
        self._wire.attach(_SharedInbound(inbound, self._users))

    async def request(self, request: Request) -> Raw:
        # the last check before it is sent: the lease may have ended while it waited. Health checks
        # pass: they execute nothing, and without an answer the program would be ended.
        if not self._lease.is_valid and request.method not in HANDSHAKE:
            await in_task(request.light)
            await self._wait_regained(request.deadline)
        # a subscription has no end: draining would never end
        if request.deadline.timeout is None:
            return await self._send(request)
        self.in_flight += 1
        try:
            return await self._send(request)
        except WireClosed as exc:
            if self._lease.is_lost:  # the program was ended for that reason
                raise OwnerChanged("its owner lost the lease on it", sent=exc.sent) from None
            raise
        finally:
            self.in_flight -= 1

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
        with anyio.move_on_after(left if lease.is_leaving else min(left, PATIENCE)):
            while not lease.is_valid and not lease.is_lost and lease.has_successor:
                await lease.changed.wait()
        if not lease.has_successor:
            raise WireFault(_NO_REPLICA, sent=False)
        if lease.is_lost:
            # `watch` may not have run yet: the next attempt must not find this wire
            self.closed.set()
            raise OwnerChanged("another replica owns it now", sent=False)
        if not lease.is_valid:
            words = "its owner has left, and there is no other yet"
            # not a retryable fault: the next attempt would only wait as long again
            raise WireFault(words if lease.is_leaving else _UNCERTAIN, sent=False)


class _SharedInbound:
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
