"""Logins at servers that all replicas share; one of them renews each."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import msgspec

from multitap.cluster.coordinator import Coordinator
from multitap.cluster.leases import OwnerLease
from multitap.errors import CoordinatorDown, RequestFailed
from multitap.oauth.storage import RenewalPermit, SharedLogin
from multitap.tasks import Tasks
from multitap.trust.single_use import Seal

TTL = 6.0
"""Seconds for which a replica that dies during a renewal blocks the others."""
_MARGIN = 0.5  # seconds before that at which its holder stops: two clocks may run differently
_RENEWAL = 1.5  # seconds between two renewals of the lease during a login's renewal
_LOOK = 0.1  # seconds between two checks whether the other replica is done
_KEEP = 5.0  # seconds between two checks without a message
_CHANNEL = "logins"
_TRIES = 5  # attempts of a change that races with others
_AWAY = "the login cannot be renewed while the cluster's coordinator is down"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SharedLogin).decode


class SharedLogins:
    """See `LoginSharing`; records are sealed with the cluster's key."""

    def __init__(self, coordinator: Coordinator, key: bytes, replica: str) -> None:
        self._coordinator = coordinator
        self._seal = Seal(key)
        self._replica = replica
        self._newest: dict[str, float] = {}
        """When each login last changed, as far as this replica knows."""

    async def find(self, server: str, url: str) -> SharedLogin | None:
        if not self._coordinator.health.is_up:
            return None
        with suppress(CoordinatorDown):
            name = _name(server, url)
            return self._open_sealed(name, await self._coordinator.records.read(name))
        return None

    async def tell(self, server: str, url: str, shared: SharedLogin) -> None:
        name, records = _name(server, url), self._coordinator.records
        with suppress(CoordinatorDown):
            for _ in range(_TRIES):
                stored = await records.read(name)
                stored_login = self._open_sealed(name, stored)
                if stored_login is not None and stored_login.changed_at >= shared.changed_at:
                    return
                if await records.swap(name, stored, self._seal.seal(_encode(shared), name)):
                    self._newest[name] = shared.changed_at
                    await self._coordinator.channels.publish(_CHANNEL, b"")
                    return

    @asynccontextmanager
    async def renewing(self, server: str, url: str) -> AsyncGenerator[RenewalPermit]:
        leases, name = self._coordinator.leases, _name(server, url)
        clock = asyncio.get_running_loop().time
        try:
            while True:
                # before it is asked: the coordinator's count begins later, and so ends later
                since = clock()
                token = await leases.acquire(name, self._replica, ttl=TTL)
                if token is not None:
                    break
                await anyio.sleep(_LOOK)
        except CoordinatorDown:
            # a refresh token that two replicas use is one that neither can use again
            raise RequestFailed(_AWAY, sent=False) from None
        lease = OwnerLease(name, token, clock, since + TTL - _MARGIN)
        try:
            async with Tasks() as tasks:
                tasks.start_soon(self._keep, lease)
                yield lease
        finally:
            # usually cancelled here; without this the others wait until it expires
            with anyio.CancelScope(shield=True), anyio.move_on_after(1), suppress(CoordinatorDown):
                await leases.release(name, token)

    async def follow(self, on_change: Callable[[], Awaitable[None]]) -> None:
        async with self._coordinator.channels.subscribe(_CHANNEL) as messages:
            while True:
                # also without a message: Redis may have lost what this replica still knows
                with suppress(TimeoutError):
                    async with asyncio.timeout(_KEEP):
                        await anext(messages)
                await on_change()

    async def _keep(self, lease: OwnerLease) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await anyio.sleep(_RENEWAL)
            since = clock()
            with suppress(CoordinatorDown):
                renewed = await self._coordinator.leases.renew({lease.name: lease.token}, ttl=TTL)
                if lease.name not in renewed:
                    lease.lose()
                    return
                lease.extend(since + TTL - _MARGIN)

    def _open_sealed(self, name: str, stored: bytes | None) -> SharedLogin | None:
        opened = None if stored is None else self._seal.unseal(stored, name)
        try:
            shared = None if opened is None else _decode(opened.data)
        except msgspec.MsgspecError:
            return None  # written by another version
        # an old copy: its refresh token was used, and some servers end a login that uses one again
        if shared is None or shared.changed_at < self._newest.get(name, shared.changed_at):
            return None
        self._newest[name] = shared.changed_at
        return shared


def _name(server: str, url: str) -> str:
    # a digest: addresses may contain secrets, and names of keys are not sealed
    return f"login/{hashlib.sha256(f'{server} {url}'.encode()).hexdigest()[:32]}"
