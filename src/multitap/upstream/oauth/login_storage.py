"""Stores logins on disk and, in a cluster, with all replicas."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
from anyio import to_thread

from multitap.records import dataclass
from multitap.trust.secrets.token_store import StoredLogin, TokenStore
from multitap.upstream.oauth.login_sharing import LoginSharing, RenewalPermit, SharedLogin

_LATER = 0.001  # seconds: a new login must be later than the old one, even with different clocks


@dataclass(frozen=True, slots=True)
class _UnsharedPermit:
    """See `RenewalPermit`; the lock on the file is enough on one machine."""

    is_valid: bool = True


class LoginStorage:
    """Reads and stores logins; the later of disk and shared record wins.

    Args:
        store: The disk.
        sharing: The other replicas; None if there are none.
    """

    def __init__(self, store: TokenStore, sharing: LoginSharing | None = None) -> None:
        self._store = store
        self._sharing = sharing

    async def find(
        self, server: str, url: str, known: StoredLogin | None = None
    ) -> StoredLogin | None:
        """The login of a server, with its secrets; None if there is none for that URL.

        Args:
            server: Which server.
            url: Where it is.
            known: The login that was found last.

        Raises:
            TokenStoreError: The file cannot be used.
        """
        own = await to_thread.run_sync(self._store.find, server, url)
        if self._sharing is None:
            return own
        if own is None and known is not None:
            # a logout on this machine, which ends the login on all replicas
            later = max(time.time(), known.changed_at + _LATER)
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

    async def note_failure(self, server: str, words: str) -> None:
        """Record a failed login in the audit log."""
        await to_thread.run_sync(self._store.note_failure, server, words)

    @asynccontextmanager
    async def renewing(self, server: str, url: str) -> AsyncGenerator[RenewalPermit]:
        """Within the block, no other process or replica renews the login.

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
