"""One gateway of a cluster: it owns servers, and reaches those of other replicas."""

import asyncio
import contextlib
import logging
import math
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any

import anyio
import msgspec

from multitap.cluster.breaker import SharedBreaker
from multitap.cluster.coordinator import Coordinator
from multitap.cluster.leases import Owner, OwnerLease, Ownership, ServerPool
from multitap.cluster.logins import SharedLogins
from multitap.cluster.membership import Member, Membership, agree_on_key, keep_key
from multitap.cluster.peers import UNIX, Line, Peers, open_peers
from multitap.cluster.wires import ForwardedWire, OwnedWire, open_forwarded
from multitap.config import ServerConfig, StdioServer
from multitap.errors import ConfigError, CoordinatorDown, OwnerChanged, OwnerUnreachable
from multitap.tasks import Tasks
from multitap.upstream.connect import Dial, LocalPlacement, Placement
from multitap.upstream.link import Link
from multitap.wire.wire import Wire

logger = logging.getLogger(__name__)

_UNREACHABLE = 10.0  # seconds for an owner that keeps its lease, and so is alive, to answer
_ASK_AGAIN = 0.5  # seconds between two attempts to connect to an owner
_KEEP = 1.0  # seconds between two checks that the coordinator still has the key
_PATIENCE = 3.0  # seconds for one such check, and for a renewed connection to the coordinator
_OUTDATED = (
    "the cluster has a new key, because its coordinator lost the old one: restart this replica,"
    " which no longer runs servers for the others"
)
_LAST = 0.2  # seconds between two looks at who else leaves; a drain takes seconds
_HASTE = 0.01  # seconds; polled, because a counter costs each request less than an event would


class ReplicaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a replica."""

    fingerprint: str
    """Of its configuration."""
    listen: str
    """Its address for other replicas: `HOST:PORT` or `unix:PATH`."""
    key: bytes | None = None
    """The cluster's key; None if the coordinator stores it."""
    labels: Mapping[str, str] | None = None
    allow_drift: bool = False
    is_fresh: bool = False
    """Whether the coordinator is new, so that no replica can own anything yet."""
    id: str | None = None


class ReplicaPlacements(msgspec.Struct, frozen=True):
    """See `Placements`."""

    placed: Callable[[str, ServerConfig, Dial], AbstractAsyncContextManager[Placement]]
    logins: SharedLogins

    def __call__(
        self, link: Link, config: ServerConfig, dial: Dial, /
    ) -> AbstractAsyncContextManager[Placement]:
        return self.placed(link.name, config, dial)


class Replica:
    """Owns some servers for the cluster, and reaches those that others own."""

    def __init__(
        self, coordinator: Coordinator, key: bytes, membership: Membership, peers: Peers
    ) -> None:
        self.coordinator = coordinator
        self.key = key
        """Seals the tickets of stateless clients; the same on all replicas."""
        self.membership = membership
        self.place = ReplicaPlacements(
            self._place, SharedLogins(coordinator, key, membership.me.id)
        )
        self._peers = peers
        self._links: Callable[[], Mapping[str, Link]] = dict
        self._owned: dict[str, OwnedWire] = {}
        self._ended: dict[str, asyncio.Event] = {}
        self._forwarded: dict[str, dict[ForwardedWire, Owner]] = {}
        self._is_outdated = False
        self.is_over = False
        """Whether all clients have their answers, so that no server is needed any more."""
        self._random = Random()  # noqa: S311 - any of several owners will do
        self.ownership: Ownership

    @property
    def id(self) -> str:
        return self.membership.me.id

    @property
    def concerns(self) -> tuple[str, ...]:
        """Current problems."""
        concerns: list[str] = []
        health = self.coordinator.health
        if not health.is_up:
            concerns.append(
                f"the cluster's coordinator is down ({health.reason}):"
                " programs keep running where they are, and nothing new is shared"
            )
        if self._is_outdated:
            concerns.append(_OUTDATED)
        if drifted := self.membership.drifted:
            names = ", ".join(sorted(member.id for member in drifted))
            concerns.append(f"the configuration differs from that of other replicas: {names}")
        return tuple(concerns)

    def attach(self, links: Callable[[], Mapping[str, Link]]) -> None:
        """Set the links of the hub, which is opened after the replica."""
        self._links = links

    def apply(self, servers: Mapping[str, ServerConfig]) -> None:
        """Set the servers: programs need an owner, all replicas connect to the others."""
        pools = {
            name: ServerPool(config.replicas, config.placement)
            for name, config in servers.items()
            if isinstance(config, StdioServer) and config.enabled
        }
        self.ownership.apply(pools)

    def find(self, server: str) -> Link | None:
        """The link to a server that we own now; None if we do not."""
        lease = self.ownership.lease(server)
        if lease is None or lease.is_leaving:
            return None
        return self._links().get(server)

    async def drain(self, timeout: float, on_last: Callable[[], None] = lambda: None) -> None:
        """Hand over all servers: finish requests, end the programs, release the leases.

        Args:
            on_last: Called if no replica is left that could take anything over.
        """
        # in this order: we acquire no more leases, others no longer rank us, and only then are our
        # servers free
        self.ownership.is_draining = True
        self.membership.describe(drains=True)
        with contextlib.suppress(CoordinatorDown):
            await self.membership.beat()
        async with anyio.create_task_group() as watching:
            watching.start_soon(self._watch_for_last, on_last)
            # side by side: one slow server must not use up the time of the others
            async with anyio.create_task_group() as tasks:
                for server in tuple(self.ownership.held):
                    tasks.start_soon(self._hand_over, server, timeout)
            watching.cancel_scope.cancel()

    async def _watch_for_last(self, on_last: Callable[[], None]) -> None:
        # repeated: the others may be stopped a moment after us
        while self.membership.candidates(None):
            await anyio.sleep(_LAST)
            with contextlib.suppress(CoordinatorDown):
                await self.membership.beat()
        on_last()
        for lease in self.ownership.held.values():
            lease.give_up()

    async def _hand_over(self, server: str, timeout: float) -> None:
        lease = self.ownership.held[server]
        # before the users are notified: requests that they send meanwhile are not begun
        lease.leave()
        for user in tuple(self._peers.users[server]):
            user.leave()
        with anyio.move_on_after(timeout):
            while (wire := self._owned.get(server)) is not None and wire.in_flight:
                await anyio.sleep(_HASTE)
        # looked up before `drop`, which closes the wire and so removes it
        ended = self._ended.get(server)
        self.ownership.drop(server)
        if ended is not None:  # before the lease: two of its processes must not run at once
            with anyio.move_on_after(timeout):
                await ended.wait()
            if not ended.is_set():
                return  # the lease expires by itself, as late as can be
        with contextlib.suppress(CoordinatorDown):
            await self.coordinator.leases.release(lease.name, lease.token)

    def _on_owner_changed(self, server: str) -> None:
        """Cut wires to the old owner of a server, and announce what we own."""
        if server not in self.ownership.held:
            self.membership.describe(owns=sorted(self.ownership.held))
        # a copy: a wire that is cut may leave at once
        for wire, owner in tuple(self._forwarded.get(server, {}).items()):
            self._follow_owner(server, wire, owner)
        self.membership.describe(owns=sorted(self.ownership.held))
        link = self._links().get(server)
        # after a failure of the old owner. An attempt in progress finds the new owner itself:
        # restarted, it would end the server that it is about to start.
        if link is not None and link.is_backing_off:
            link.retry()

    def _follow_owner(self, server: str, wire: ForwardedWire, owner: Owner) -> None:
        # by its name: the token changes when the coordinator has lost it, and an owner that lost
        # the server closes the wire itself
        others = {other.replica: other for other in self.ownership.owners.get(server, ())}
        if (now := others.get(owner.replica)) is None:
            wire.cut("another replica owns it now")
        else:
            wire.hold(is_late=now.is_late)

    @asynccontextmanager
    async def _place(
        self, name: str, config: ServerConfig, dial: Dial
    ) -> AsyncGenerator[Placement]:
        if self.is_over:
            # its owner stops as well, which is not a failure
            await anyio.sleep_forever()
        if not isinstance(config, StdioServer):
            # all replicas reach it, so they count its failures together
            is_shared = config.transport != "local"
            yield LocalPlacement(dial, breaker=self._breaker(name, config) if is_shared else None)
            return
        place = await self.ownership.wait_owner(name)
        if isinstance(place, OwnerLease):
            lease = place
            yield LocalPlacement(
                lambda name, config: self._open_owned(name, config, dial, lease),
                breaker=self._breaker(name, config),
            )
        else:
            owner = self._random.choice([one for one in place if not one.is_late] or place)
            yield LocalPlacement(
                lambda name, config: self._open_forwarded(name, config, owner), is_here=False
            )

    def _breaker(self, name: str, config: ServerConfig) -> SharedBreaker:
        return SharedBreaker(
            self.coordinator,
            name,
            replica=self.id,
            timeout=config.connect_timeout,
            is_alive=self.membership.is_alive,
        )

    @asynccontextmanager
    async def _open_owned(
        self, name: str, config: ServerConfig, dial: Dial, lease: OwnerLease
    ) -> AsyncGenerator[Wire]:
        ended = self._ended[name] = asyncio.Event()
        users = self._peers.users[name]
        try:
            async with dial(name, config) as wire, Tasks() as tasks:
                owned = self._owned[name] = OwnedWire(wire, lease, users)
                tasks.start_soon(owned.watch)
                try:
                    yield owned
                finally:
                    # first: `_hand_over` must not wait for requests on a closing wire
                    self._owned.pop(name, None)
                    owned.closed.set()
                    for user in tuple(users):
                        user.cut("its owner has ended it")
        finally:
            # only now the process is gone, and the lease may be released
            ended.set()
            # the next start may already have set its own
            if self._ended.get(name) is ended:
                del self._ended[name]

    @asynccontextmanager
    async def _open_forwarded(
        self, name: str, config: ServerConfig, owner: Owner
    ) -> AsyncGenerator[Wire]:
        line = await self._line_to(name, owner)
        wires = self._forwarded.setdefault(name, {})
        async with open_forwarded(name, line.connection, line.wires, config.redact) as wire:
            wires[wire] = owner
            self._follow_owner(name, wire, owner)  # it may have changed while we connected
            try:
                yield wire
            finally:
                del wires[wire]

    async def _line_to(self, name: str, owner: Owner) -> Line:
        """A connection to an owner; one that has too little CPU to answer is asked again.

        Raises:
            OwnerChanged: Another replica owns the server now.
            OwnerUnreachable: The owner does not answer, and no other replica takes over.
        """
        # One that died loses its lease, and with it the server, long before that. No network parts
        # us from one on this machine, which can only be busy: see `SocketCoordinator`.
        is_near = owner.address.startswith(UNIX)
        end = math.inf if is_near else anyio.current_time() + _UNREACHABLE
        while True:
            try:
                return await self._peers.line_to(owner.address)
            except OwnerUnreachable:
                if await self.ownership.wait_change(name, owner, timeout=_ASK_AGAIN):
                    raise OwnerChanged("another replica owns it now", sent=False) from None
                if anyio.current_time() >= end:
                    raise

    async def keep(self, *, is_shared: bool) -> None:
        """Store the cluster's key again whenever the coordinator has lost it."""
        records = self.coordinator.records
        while not self._is_outdated:
            await anyio.sleep(_KEEP)
            with contextlib.suppress(CoordinatorDown):
                self._is_outdated = not await keep_key(records, self.key, is_shared=is_shared)
        logger.error(_OUTDATED)
        # others cannot reach our servers: they need owners that they share a key with
        await self.ownership.hand_over()


@asynccontextmanager
async def open_replica(
    coordinator: Coordinator, options: ReplicaOptions
) -> AsyncGenerator[Replica]:
    """Join a cluster; leaving the block leaves it.

    Raises:
        ConfigError: Key, clock or configuration differ, or the coordinator cannot be reached.
    """
    try:
        patience = 0.0 if options.is_fresh else _PATIENCE
        key = await agree_on_key(coordinator.records, options.key, patience=patience)
    except CoordinatorDown as exc:
        raise ConfigError(str(exc), hint="check `--cluster`, and that Redis runs") from None
    name = options.id or f"{socket.gethostname()}-{secrets.token_hex(3)}"
    # peers may connect before the replica exists, which needs their address: it owns nothing yet
    late: list[Replica] = []

    def find(server: str) -> Any:
        return late[0].find(server) if late else None

    async with open_peers(key, name, find, listen=options.listen) as peers, Tasks() as tasks:
        me = Member(
            id=name,
            address=peers.address,
            fingerprint=options.fingerprint,
            labels=dict(options.labels or {}),
            started=time.time(),
        )
        membership = Membership(coordinator, me)
        replica = Replica(coordinator, key, membership, peers)
        late.append(replica)
        replica.ownership = Ownership(
            coordinator,
            name,
            peers.address,
            peers=membership,
            on_change=replica._on_owner_changed,  # noqa: SLF001 - one whole # pyright: ignore[reportPrivateUsage]
            is_connected=peers.is_connected,
            is_fresh=options.is_fresh,
        )
        try:
            # before any lease is acquired: a replica that cannot join must not run servers
            await membership.join(allow_drift=options.allow_drift)
        except CoordinatorDown as exc:
            raise ConfigError(str(exc), hint="check `--cluster`, and that Redis runs") from None
        tasks.start_soon(membership.run)
        tasks.start_soon(replica.ownership.run)
        tasks.start_soon(_keep_key, replica, options.key is None)
        try:
            yield replica
        finally:
            # we are usually cancelled here. Without a coordinator the leases expire by themselves,
            # so the wait is short.
            with anyio.CancelScope(shield=True), anyio.move_on_after(2):
                await replica.ownership.hand_over()
                await membership.leave()


async def _keep_key(replica: Replica, is_shared: bool) -> None:  # noqa: FBT001 - a task's argument
    await replica.keep(is_shared=is_shared)
