"""Leases on servers: which replica runs which."""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Protocol

import anyio
import msgspec

from multitap.cluster.coordinator import Coordinator, Lease
from multitap.errors import CoordinatorDown
from multitap.tasks import Bell

Clock = Callable[[], float]


class OwnerLease:
    """One lease that this replica holds, or held.

    It is valid until a moment of our own monotonic clock, counted from before the renewal was sent:
    the coordinator counts from a later moment, so it cannot give the lease away before that.
    """

    def __init__(self, name: str, token: int, clock: Clock, until: float) -> None:
        self.name = name
        self.token = token
        self.is_lost = False
        """Whether another replica may have it, so that the server here must end."""
        self.is_leaving = False
        """Whether it is about to be released: requests are finished, and none is begun."""
        self.has_successor = True
        """Whether another replica can take it: if not, nothing waits for that."""
        self.changed = Bell()
        self.lost = asyncio.Event()
        self._clock = clock
        self._until = until

    @property
    def is_valid(self) -> bool:
        """Whether no other replica can have it now."""
        return self._clock() < self._until and not self.is_lost and not self.is_leaving

    def extend(self, until: float) -> None:
        # a renewal that was in progress when it was lost must not restore it
        if not self.is_lost:
            self._until = max(self._until, until)
            self.changed.ring()

    def leave(self) -> None:
        """Begin no more requests: it will be released."""
        self.is_leaving = True

    def give_up(self) -> None:
        """No replica is left that could take it."""
        self.has_successor = False
        self.changed.ring()

    def lose(self) -> None:
        """End it for good."""
        # the flag before the events: woken tasks read it
        self.is_lost = True
        self.lost.set()
        self.changed.ring()


logger = logging.getLogger(__name__)

MARGIN = 0.2
"""Seconds before its end at which the holder stops relying on a lease: clocks may drift."""
RENEWAL = 0.4
"""Seconds between two renewals: three in a row may fail before the holder has to stop."""
LOOK = 0.2
"""Seconds between two checks of others' leases; adds to the time until a dead owner is replaced."""
EPOCH = "epoch"
"""A lease without a use: a new token means that the coordinator has lost its data."""
_LONG = 30 * 86400.0  # seconds; never renewed, since only its token counts
GRACE = 3.0
"""Seconds that an expired lease is left to a holder that is still connected: it may only have had
no time from a busy machine, and then goes on with its programs."""
COURTESY = 0.15
"""Seconds that each replica waits for those that rank before it, so that they do not race for
free servers."""


class ServerPool(msgspec.Struct, frozen=True):
    """How many replicas run a server, and the labels they need."""

    slots: int = 1
    labels: Mapping[str, str] | None = None


class Owner(msgspec.Struct, frozen=True):
    """The replica that runs a server, as last seen."""

    replica: str
    token: int
    address: str
    is_late: bool = False
    """Whether its lease has expired, though it may come back to it."""

    def is_same(self, other: "Owner") -> bool:
        return (self.replica, self.token) == (other.replica, other.token)


class Candidates(Protocol):
    """The replicas that could own a server."""

    def candidates(self, labels: Mapping[str, str] | None) -> Collection[str]:
        """The ids of all live replicas with these labels, ours included."""
        ...


def _nobody(_: str) -> bool:
    return False


def steady_clock() -> Clock:
    """A clock that also advances while the machine is suspended, if the system has one."""
    # the loop's clock stands still in a suspended machine, whose leases others take meanwhile
    if (boot_time := getattr(time, "CLOCK_BOOTTIME", None)) is not None:
        return partial(time.clock_gettime, boot_time)
    return time.monotonic


class Ownership:
    """Acquires and renews leases on servers, and knows the owners of the others.

    Args:
        peers: The replicas that could own servers.
        on_change: Called with a server whose owner changed, or that has none now.
        is_connected: Whether the process of a replica certainly lives.
        is_fresh: Whether the coordinator is as old as this run, so that it has lost nothing.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        replica: str,
        address: str,
        *,
        peers: Candidates,
        on_change: Callable[[str], None],
        is_connected: Callable[[str], bool] = _nobody,
        clock: Clock | None = None,
        is_fresh: bool = False,
    ) -> None:
        self._leases = coordinator.leases
        self._ttl = coordinator.lease_ttl
        self._replica = replica
        self._address = address
        self._peers = peers
        self._on_change = on_change
        self._is_connected = is_connected
        self._clock = clock or steady_clock()
        self._wanted: dict[str, ServerPool] = {}
        self.held: dict[str, OwnerLease] = {}
        """Our leases, by server."""
        self.owners: dict[str, tuple[Owner, ...]] = {}
        """The owners of servers that we do not run, as last seen."""
        self._free_since: dict[str, float] = {}
        self._changed = Bell()
        self._wake = asyncio.Event()
        self._patience = 0.0 if is_fresh else self._ttl
        self._epoch: tuple[int, float] | None = None
        """The token of `EPOCH`, and since when we have seen it."""
        self.is_draining = False
        """Whether no more leases are acquired, because this replica is leaving."""

    def apply(self, servers: Mapping[str, ServerPool]) -> None:
        """Set which servers need an owner; leases on others are dropped."""
        self._wanted = dict(servers)
        for name in [name for name in self.held if name not in self._wanted]:
            self._lose(name)
        self._wake.set()

    def lease(self, server: str) -> OwnerLease | None:
        """Our lease on a server, if we run it."""
        return self.held.get(server)

    async def wait_owner(self, server: str) -> OwnerLease | tuple[Owner, ...]:
        """Our own lease on a server, or its owners; waits until there is one."""
        while True:
            if (lease := self.held.get(server)) is not None:
                return lease
            if owners := self.owners.get(server):
                return owners
            await self._changed.wait()

    async def wait_change(self, server: str, owner: Owner, *, timeout: float) -> bool:
        """Wait until a server has another owner; False if it does not change in time."""
        with anyio.move_on_after(timeout):
            while any(owner.is_same(other) for other in self.owners.get(server, ())):
                await self._changed.wait()
            return True
        return False

    async def run(self) -> None:
        """Renew our leases, and acquire free ones, until cancelled."""
        renewed = -RENEWAL
        while True:
            if self._clock() - renewed >= RENEWAL:
                renewed = self._clock()
                await self._renew()
            await self._look()
            # asyncio's own: a scope of anyio whose time ends just when its task is cancelled would
            # take that for its own, and the task would never end
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._wake.wait()
                    self._wake = asyncio.Event()

    async def hand_over(self) -> None:
        """Release all leases, so that others can take them at once."""
        # first: `run` may be in the middle of taking a lease, and checks this after its await
        self.is_draining = True
        for name, lease in tuple(self.held.items()):
            # before the release: others may have it from then on
            self._lose(name)
            try:
                await self._leases.release(lease.name, lease.token)
            except CoordinatorDown:
                return  # they expire by themselves

    def drop(self, server: str) -> None:
        """Stop relying on a lease; it can be released after that."""
        self._lose(server)

    async def _renew(self) -> None:
        held = {lease.name: lease.token for lease in self.held.values()}
        if not held:
            return
        # taken before the request: the coordinator counts from a later moment
        since = self._clock()
        try:
            renewed = await self._leases.renew(held, ttl=self._ttl)
        except CoordinatorDown:
            return  # leases expire by themselves; the next renewal tries again
        for server, lease in tuple(self.held.items()):
            if lease.name in renewed:
                lease.extend(since + self._ttl - MARGIN)
            # the reply is not about a lease that was lost and taken again during the await
            elif held.get(lease.name) == lease.token:
                await self._missing(server, lease)

    async def _missing(self, server: str, lease: OwnerLease) -> None:
        """Handle a failed renewal: another replica took the lease, or the coordinator lost it."""
        leases = await self._look_up([lease.name])
        if leases is None:
            return
        if lease.name in leases or not lease.is_valid:
            logger.warning("%s: its lease went to another replica", server)
            self._lose(server)
            return
        # The coordinator lost it while it was ours; others leave us the time to take it again.
        since = self._clock()
        try:
            token = await self._leases.acquire(
                lease.name, self._replica, ttl=self._ttl, note=self._address.encode()
            )
        except CoordinatorDown:
            return
        if token is None:
            self._lose(server)
        # ours may have ended during the await, and another replica may have run it since
        elif lease.is_valid:
            lease.token = token
            lease.extend(since + self._ttl - MARGIN)
        else:
            self._lose(server)

    async def _look(self) -> None:
        others = {
            server: [f"{server}/{slot}" for slot in range(owned.slots)]
            for server, owned in self._wanted.items()
            if server not in self.held
        }
        names = [name for names in others.values() for name in names]
        leases = await self._look_up([EPOCH, *names])
        if leases is None or not await self._remembers(leases.get(EPOCH)):
            return
        for server, names in others.items():
            # a reload may have removed it during an await, above or earlier in this loop
            if server not in self._wanted:
                continue
            seen = {name: leases[name] for name in names if name in leases}
            owners = tuple(
                Owner(lease.holder, lease.token, lease.note.decode(), not lease.is_held)
                for lease in seen.values()
                if lease.holder != self._replica and self._is_taken(lease)
            )
            # a lease without any record may have been lost: its holder takes it again
            is_forgotten = not seen and self._is_new_epoch()
            if owners != self.owners.get(server, ()) and not is_forgotten:
                self.owners[server] = owners
                self._announce(server)
            for name in names:
                if server not in self.held:
                    await self._try(server, name, seen.get(name))

    async def _remembers(self, epoch: Lease | None) -> bool:
        """Note since when the coordinator has its data; False if it has just lost them."""
        if epoch is None:
            self._epoch = None
            with contextlib.suppress(CoordinatorDown):
                await self._leases.acquire(EPOCH, "all", ttl=_LONG)
            return False
        if self._epoch is None or self._epoch[0] != epoch.token:
            self._epoch = epoch.token, self._clock()
        return True

    def _is_new_epoch(self) -> bool:
        """Whether holders may still be taking their leases again after a loss."""
        return self._epoch is None or self._clock() - self._epoch[1] < self._patience

    async def _look_up(self, names: list[str]) -> Mapping[str, Lease] | None:
        try:
            return await self._leases.look(*names)
        except CoordinatorDown:
            return None

    async def _try(self, server: str, name: str, seen: Lease | None) -> None:
        """Acquire a lease if it is free and our rank allows it."""
        now = self._clock()
        if seen is not None and seen.holder != self._replica and self._is_taken(seen):
            self._free_since.pop(name, None)
            return
        free_for = now - self._free_since.setdefault(name, now)
        rank = self._rank(server, name)
        if rank is None or self.is_draining or free_for < rank * COURTESY:
            return
        # A lease without any record may have been granted before the coordinator lost its data: its
        # holder may still rely on it, and needs time to take it again.
        if self._epoch is None or (seen is None and self._is_new_epoch()):
            return  # the first is also for the guard below
        try:
            token = await self._leases.acquire(
                name,
                self._replica,
                ttl=self._ttl,
                note=self._address.encode(),
                guard=(EPOCH, self._epoch[0]),  # it may have been lost since we looked
            )
        except CoordinatorDown:
            return
        # in any case: if another replica has it, the wait starts again
        self._free_since.pop(name, None)
        if token is None:
            return
        # both may have changed during the await; released now, others need not wait for its end
        if server not in self._wanted or self.is_draining:
            with contextlib.suppress(CoordinatorDown):
                await self._leases.release(name, token)
            return
        # counted from `now`, which is before the coordinator was asked
        self.held[server] = OwnerLease(name, token, self._clock, now + self._ttl - MARGIN)
        self.owners.pop(server, None)
        self._announce(server)

    def _is_taken(self, lease: Lease) -> bool:
        """Whether another replica has a lease, or may still come back to it."""
        if lease.is_held or not lease.holder:
            return lease.is_held
        return lease.expires_in > -GRACE and self._is_connected(lease.holder)

    def _rank(self, server: str, name: str) -> int | None:
        """How many replicas rank before us; None if we may not run the server."""
        fit = self._peers.candidates(self._wanted[server].labels)
        if self._replica not in fit:
            return None
        # by a hash of both names: all replicas compute the same order, and each ranks first for its
        # share of the servers
        ranked = sorted(
            fit, key=lambda replica: hashlib.sha256(f"{name} {replica}".encode()).digest()
        )
        return ranked.index(self._replica)

    def _lose(self, server: str) -> None:
        # it may be gone already: another task may have lost it while we waited
        if (lease := self.held.pop(server, None)) is not None:
            lease.lose()
            self._announce(server)

    def _announce(self, server: str) -> None:
        self._changed.ring()
        self._on_change(server)
