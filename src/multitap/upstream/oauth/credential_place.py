"""Where a program that logs in by itself sends its credentials: to the first issuer only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from multitap.config import HttpServer, OAuth
from multitap.faults import AuthRequired
from multitap.later import Later
from multitap.trust.secrets.token_store import StoredLogin
from multitap.upstream.oauth.login_storage import LoginStorage

if TYPE_CHECKING:
    from multitap.upstream.oauth import login_flow
else:
    login_flow = Later("multitap.upstream.oauth.login_flow")

Agree = Callable[[StoredLogin, StoredLogin | None], Awaitable[None]]
"""Raises `LoginFailed` unless a person lets credentials be sent to a new place; with it comes the
place that they were sent to before, if any."""


class CredentialPlace:
    """The issuer and token endpoint that get a program's secret, key or statement.

    The server names the issuer, and a compromised server may name another one. So the first issuer
    is stored, and only a person can change it, unless the configuration has one.

    Args:
        name: The server's configured name.
        config: Its URL and OAuth settings.
        storage: Stores the place, like a login.
    """

    def __init__(self, name: str, config: HttpServer, storage: LoginStorage) -> None:
        self.first: StoredLogin | None = None
        """The stored place, as of the last `reload`."""
        self._name = name
        self._config = config
        self._stored_as = config.login_name(name)
        self._storage = storage
        self._is_configured = (config.oauth or OAuth()).issuer is not None

    async def reload(self) -> bool:
        """Read the store again; returns whether the place has changed.

        Raises:
            TokenStoreError: The store cannot be used.
        """
        if self._is_configured:
            return False  # a person's word; and its own metadata name its token endpoint
        before = self.first
        self.first = await self._storage.find(self._stored_as, self._config.url, before)
        return self.first != before

    async def check(self, place: StoredLogin) -> None:
        """Check a place before it gets anything; the first one is stored.

        Raises:
            AuthRequired: It is another one.
            TokenStoreError: The first one cannot be stored.
        """
        if self._is_configured:
            return
        if self.first is None:
            async with self._storage.renewing(self._stored_as, self._config.url):
                await self.reload()  # another process may have been first
                if self.first is None:
                    # before it gets anything: else each attempt could name another place
                    self.first = await self._storage.add(place)
        if not login_flow.same_place(self.first, place):
            change = login_flow.describe_change(self.first, place)
            words = self._config.redact(f"cannot log in: {change}")
            await self._storage.note_failure(self._stored_as, words)
            hint = f"if that is right, run `multitap login {self._name}`"
            raise AuthRequired(words, hint=hint)

    async def ask_about(self, agree: Agree, place: StoredLogin) -> None:
        """Let a person decide about a new place, and store it.

        Raises:
            LoginFailed: They do not agree.
            TokenStoreError: It cannot be stored.
        """
        if self.first is None or not login_flow.same_place(self.first, place):
            await agree(place, self.first)
            self.first = await self._storage.add(place)
