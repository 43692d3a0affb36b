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
    # with the HTTP client, which a hub of programs alone does not need
    oauth_account = Later("multitap.upstream.oauth.account")

_LOOK = 0.5  # seconds between two looks at the store: a login shows within a second


class Logins:
    """Who is logged in where; notices what other processes, such as `multitap login`, change.

    Args:
        tasks: Where renewals, logins and the watch run.
        login: Sends a person to an authorization server; None if there is none.
        sharing: What other replicas of a cluster know; None if there are none.
    """

    def __init__(
        self, tasks: Tasks, login: Login | None, sharing: LoginSharing | None = None
    ) -> None:
        self.on_change: Callable[[str, bool], None] | None = None
        """Called when a server's login comes, changes or fails, with whether there is one now."""
        self._tasks = tasks
        self._login = login
        self._store = TokenStore()
        self._sharing = sharing
        self._storage = LoginStorage(self._store, sharing)
        self._accounts: dict[tuple[str, str, OAuth | Literal[False] | None], Account] = {}

    def account(self, name: str, config: HttpServer) -> "Account | None":
        """The account with a server; None where the configuration says how to be authorized."""
        given = any(header.lower() == "authorization" for header in config.headers)
        if config.oauth is False or given:
            return None
        key = (name, config.url, config.oauth)
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
        """The account with a server as it was last reached; None where there is none."""
        accounts = [one for one in self._accounts.values() if one.name == name]
        return accounts[-1] if accounts else None

    def forgive(self, name: str) -> None:
        """Let a person be asked again who did not log in the last time."""
        for account in self._accounts.values():
            if account.name == name:
                account.forgive()

    async def _watch(self) -> None:
        # polled: one look costs microseconds, and works on every file system
        stamp = self._store.stamp()
        while True:
            await anyio.sleep(_LOOK)
            if (fresh := self._store.stamp()) == stamp:
                continue
            stamp = fresh
            await self._reload()

    async def _reload(self) -> None:
        for account in tuple(self._accounts.values()):
            # one that cannot be read now is looked at again when somebody needs it
            with contextlib.suppress(AuthRequired):
                if await account.reload():
                    self._on_changed(account)

    def _on_changed(self, account: "Account") -> None:
        if self.on_change is not None:
            self.on_change(account.name, account.is_logged_in)
