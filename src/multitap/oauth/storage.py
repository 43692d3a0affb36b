"""The logins of one hub: on disk and, in a cluster, with all replicas."""

import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

import anyio
import msgspec
from anyio import to_thread

from multitap.config.models import HttpServer, OAuth
from multitap.errors import AuthRequired
from multitap.tasks import Tasks, keep_going
from multitap.trust.stored_logins import StoredLogin, TokenStore

if TYPE_CHECKING:
    from multitap.oauth.account import Account
    from multitap.wire.http_origin import Authorizer

_LATER = 0.001  # seconds: a new login must be later than the old one, even with different clocks
_LOOK = 0.5  # seconds between two checks of the store: a login takes effect within a second

Login = Callable[[str, str], Awaitable[str]]
"""Sends a person to a URL, for a server; returns the URL that they were redirected to."""


class SharedLogin(msgspec.Struct, frozen=True):
    """The shared record of one login."""

    login: StoredLogin | None
    """None after a logout."""
    changed_at: float
    """When it changed; the later of two records wins."""


class RenewalPermit(Protocol):
    """The permission to use a refresh token, which can be used once."""

    @property
    def is_valid(self) -> bool:
        """True while no other replica can have it."""
        ...


class LoginSharing(Protocol):
    """Shares logins with the other replicas."""

    async def find(self, server: str, url: str) -> SharedLogin | None:
        """The shared login; None if there is none, or the coordinator is down."""
        ...

    async def tell(self, server: str, url: str, shared: SharedLogin) -> None:
        """Share a login, unless there is a newer one; delivery is not confirmed."""
        ...

    def renewing(self, server: str, url: str) -> AbstractAsyncContextManager[RenewalPermit]:
        """While entered, no other replica renews the login.

        Raises:
            RequestFailed: The coordinator is down.
        """
        ...

    async def follow(self, on_change: Callable[[], Awaitable[None]]) -> None:
        """Call `on_change` whenever a shared login may have changed, until cancelled."""
        ...


class LoginStore(Protocol):
    """Logins on disk, by server name and URL; its methods may wait, and are called in threads."""

    def find(self, server: str, url: str) -> StoredLogin | None:
        """The login of a server, with its secrets; None if there is none for that URL."""
        ...

    def add(self, login: StoredLogin) -> None:
        """Store a login that a person just granted, with an audit entry."""
        ...

    def save(self, login: StoredLogin) -> None:
        """Store a login, in place of an earlier one of that server."""
        ...

    def remove(self, server: str, url: str) -> bool:
        """Forget a login; returns whether there was one."""
        ...

    def note_failure(self, server: str, reason: str) -> None:
        """Record a failed login and its reason."""
        ...

    def renewing(self, server: str, url: str) -> AbstractAsyncContextManager[None]:
        """Lock a login: while entered, no other process renews it."""
        ...


class _UnsharedPermit(msgspec.Struct, frozen=True):
    """See `RenewalPermit`; the lock on the file is enough on one machine."""

    is_valid: bool = True


class LoginStorage:
    """Reads and stores logins; the later of disk and shared record wins."""

    def __init__(self, store: LoginStore, sharing: LoginSharing | None = None) -> None:
        self._store = store
        self._sharing = sharing

    async def find(
        self, server: str, url: str, last: StoredLogin | None = None
    ) -> StoredLogin | None:
        """The login of a server, with its secrets; None if there is none for that URL.

        `last` is the login that was found the last time.

        Raises:
            TokenStoreError: The file cannot be used.
        """
        own = await to_thread.run_sync(self._store.find, server, url)
        if self._sharing is None:
            return own
        if own is None and last is not None:
            # a logout on this machine, which ends the login on all replicas
            later = max(time.time(), last.changed_at + _LATER)
            await self._sharing.tell(server, url, SharedLogin(None, later))
            return None
        shared = await self._sharing.find(server, url)
        if shared is None or (own is not None and own.changed_at > shared.changed_at):
            if own is not None:
                await self._sharing.tell(server, url, SharedLogin(own, own.changed_at))
            return own
        if own is None or own.changed_at < shared.changed_at:
            await self._take_over(server, url, own, shared.login)
        return shared.login

    async def add(self, login: StoredLogin) -> StoredLogin:
        """Store a login that a person has just granted, and record it in the audit log."""
        login = msgspec.structs.replace(login, changed_at=time.time())
        await to_thread.run_sync(self._store.add, login)
        await self._tell(login)
        return login

    async def save(self, login: StoredLogin) -> StoredLogin:
        """Store a renewed login."""
        later = max(time.time(), login.changed_at + _LATER)
        login = msgspec.structs.replace(login, changed_at=later)
        # the disk first: a renewed login that is not stored anywhere is lost
        await to_thread.run_sync(self._store.save, login)
        await self._tell(login)
        return login

    async def remove(self, server: str, url: str) -> bool:
        """Forget a login, at all replicas; returns whether there was one."""
        was_there = await to_thread.run_sync(self._store.remove, server, url)
        if self._sharing is not None:
            await self._sharing.tell(server, url, SharedLogin(None, time.time()))
        return was_there

    async def note_failure(self, server: str, reason: str) -> None:
        """Record a failed login in the audit log."""
        await to_thread.run_sync(self._store.note_failure, server, reason)

    @asynccontextmanager
    async def renewing(self, server: str, url: str) -> AsyncGenerator[RenewalPermit]:
        """While entered, no other process or replica renews the login.

        Raises:
            RequestFailed: The other replicas cannot be asked.
        """
        async with self._store.renewing(server, url):
            if self._sharing is None:
                yield _UnsharedPermit()
                return
            async with self._sharing.renewing(server, url) as permit:
                yield permit

    async def _take_over(
        self, server: str, url: str, own: StoredLogin | None, login: StoredLogin | None
    ) -> None:
        # kept on our disk as well: Redis may lose it
        if login is not None:
            await to_thread.run_sync(self._store.save, login)
        elif own is not None:
            await to_thread.run_sync(self._store.remove, server, url)

    async def _tell(self, login: StoredLogin) -> None:
        if self._sharing is not None:
            shared = SharedLogin(login, login.changed_at)
            await self._sharing.tell(login.server, login.url, shared)


class Logins:
    """The accounts at all servers; notices changes by other processes, such as `multitap login`.

    Args:
        login: Sends a person to log in; None if there is nobody.
        storage: Has the logins of one person, whose changes others notice; by default, those of
            the gateway itself.
    """

    def __init__(
        self,
        tasks: Tasks,
        login: Login | None,
        sharing: LoginSharing | None = None,
        *,
        storage: LoginStorage | None = None,
    ) -> None:
        self.on_change: Callable[[str, bool], None] | None = None
        """Called when a server's login changes or fails, with whether there is one now."""
        self.exchange: Callable[[str, HttpServer], Authorizer] | None = None
        """Authorizes one person's requests to servers that take exchanged tokens."""
        self._tasks = tasks
        self._login = login
        self._sharing = sharing
        self._own_storage = storage
        self._accounts: dict[tuple[str, str, OAuth | Literal[False] | None], Account] = {}
        self._seen: object = None
        """The stamp of the store as it was last read."""

    @cached_property
    def _store(self) -> TokenStore:
        return TokenStore()

    @cached_property
    def _storage(self) -> LoginStorage:
        return self._own_storage or LoginStorage(self._store, self._sharing)

    def account(self, name: str, config: HttpServer) -> "Account | None":
        """The account at a server; None if the configuration has its own credentials."""
        has_own = any(header.lower() == "authorization" for header in config.headers)
        if config.oauth is False or has_own:
            return None
        key = (config.login_name(name), config.url, config.oauth)
        if (account := self._accounts.get(key)) is None:
            if not self._accounts and self._own_storage is None:
                self._seen = self._store.stamp()
                self._tasks.start_soon(keep_going, self._watch, name="token store")
                if self._sharing is not None:
                    self._tasks.start_soon(self._sharing.follow, self.reload)
            # imports the HTTP client, which a hub of programs alone does not need
            from multitap.oauth.account import Account  # noqa: PLC0415

            account = self._accounts[key] = Account(
                name,
                config,
                storage=self._storage,
                tasks=self._tasks,
                login=self._login,
                on_change=self._on_changed,
            )
        return account

    def authorizer(self, name: str, config: HttpServer) -> "Authorizer | None":
        """What authorizes requests to a server; None if its configuration does."""
        if self.exchange is not None and config.exchange is not None:
            return self.exchange(name, config)
        return self.account(name, config)

    def find(self, name: str) -> "Account | None":
        """The account at a server, if there is one."""
        accounts = [account for account in self._accounts.values() if account.name == name]
        return accounts[-1] if accounts else None

    def refreshes(self) -> Iterator[tuple[str, str, int]]:
        """How often logins were renewed without a person, by server and outcome."""
        for account in self._accounts.values():
            for outcome, count in account.refreshes.items():
                yield account.name, outcome, count

    def forgive(self, name: str) -> None:
        """Allow a person to be asked again after a failed login."""
        for account in self._accounts.values():
            if account.name == name:
                account.forgive()

    async def _watch(self) -> None:
        # polled: a check costs microseconds, and works on every file system
        while True:
            await anyio.sleep(_LOOK)
            if (fresh := self._store.stamp()) != self._seen:
                await self.reload()
                self._seen = fresh

    async def reload(self) -> None:
        """Read all logins again; those that have changed are used from now on."""
        for account in tuple(self._accounts.values()):
            # unreadable now: read again when it is needed
            with contextlib.suppress(AuthRequired):
                if await account.reload():
                    self._on_changed(account)

    def _on_changed(self, account: "Account") -> None:
        if self.on_change is not None:
            self.on_change(account.name, account.is_logged_in)
