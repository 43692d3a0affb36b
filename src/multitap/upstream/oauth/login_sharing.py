"""The interface by which replicas of a cluster share logins."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from multitap.trust.secrets.token_store import StoredLogin


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
        """Whether no other replica can have it now."""
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
        """Within the block, no other replica renews the login.

        Raises:
            RequestFailed: The coordinator is down.
        """
        ...

    async def follow(self, on_change: Callable[[], Awaitable[None]]) -> None:
        """Call `on_change` whenever a shared login may have changed, until cancelled."""
        ...
