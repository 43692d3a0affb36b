"""The logins of one hub, kept in step with the token store."""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import anyio

from multitap.config import HttpServer, OAuth
from multitap.faults import AuthRequired
from multitap.later import Later
from multitap.tasks import Tasks
from multitap.trust.secrets.token_store import TokenStore
from multitap.upstream.handlers import Login
from multitap.upstream.oauth.login_sharing import LoginSharing
from multitap.upstream.oauth.login_storage import LoginStorage

if TYPE_CHECKING:
    from multitap.upstream.oauth import account as oauth_account
    from multitap.upstream.oauth.account import Account
else:
    # lazily: imports the HTTP client, which a hub of programs alone does not need
    oauth_account = Later("multitap.upstream.oauth.account")

_LOOK = 0.5  # seconds between two checks of the store: a login takes effect within a second


class Logins:
    """The accounts at all servers; notices changes by other processes, such as `multitap login`.

    Args:
        tasks: Runs renewals, logins and the watch.
        login: Sends a person to an authorization server; None if there is none.
        sharing: Shares logins with other replicas; None if there are none.
    """

    def __init__(
        self, tasks: Tasks, login: Login | None, sharing: LoginSharing | None = None
    ) -> None:
        self.on_change: Callable[[str, bool], None] | None = None
        """Called when a server's login changes or fails, with whether there is one now."""
        self._tasks = tasks
        self._login = login
        self._store = TokenStore()
        self._sharing = sharing
        self._storage = LoginStorage(self._store, sharing)
        self._accounts: dict[tuple[str, str, OAuth | Literal[False] | None], Account] = {}

    def account(self, name: str, config: HttpServer) -> "Account | None":
        """The account at a server; None if the configuration has its own credentials."""
        given = any(header.lower() == "authorization" for header in config.headers)
        if config.oauth is False or given:
            return None
        key = (config.login_name(name), config.url, config.oauth)
        if (account := self._accounts.get(key)) is None:
            if not self._accounts:
                self._tasks.start_soon(self._watch, name="token store")
                if self._sharing is not None:
                    self._tasks.start_soon(self._sharing.follow, self._reload)
            account = self._accounts[key] = oauth_account.Account(
                name,
                config,
                storage=self._storage,
                tasks=self._tasks,
                login=self._login,
                on_change=self._on_changed,
            )
        return account

    def find(self, name: str) -> "Account | None":
        """The account at a server, if there is one."""
        accounts = [one for one in self._accounts.values() if one.name == name]
        return accounts[-1] if accounts else None

    def forgive(self, name: str) -> None:
        """Allow a person to be asked again after a failed login."""
        for account in self._accounts.values():
            if account.name == name:
                account.forgive()

    async def _watch(self) -> None:
        # polled: a check costs microseconds, and works on every file system
        stamp = self._store.stamp()
        while True:
            await anyio.sleep(_LOOK)
            if (fresh := self._store.stamp()) == stamp:
                continue
            stamp = fresh
            await self._reload()

    async def _reload(self) -> None:
        for account in tuple(self._accounts.values()):
            # unreadable now: read again when it is needed
            with contextlib.suppress(AuthRequired):
                if await account.reload():
                    self._on_changed(account)

    def _on_changed(self, account: "Account") -> None:
        if self.on_change is not None:
            self.on_change(account.name, account.is_logged_in)
