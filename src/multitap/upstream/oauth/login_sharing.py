"""What the replicas of a cluster tell each other about logins."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from multitap.trust.secrets.token_store import StoredLogin


class SharedLogin(msgspec.Struct, frozen=True):
    """What all replicas know of one login."""

    login: StoredLogin | None
    """None: somebody logged out."""
    changed_at: float
    """Of two, the later one holds."""


class RenewalPermit(Protocol):
    """The right to use a refresh token, which is good for one use."""

    @property
    def is_valid(self) -> bool:
        """Whether no other replica can have it at this moment."""
        ...


class LoginSharing(Protocol):
    """Logins as the other replicas have them."""

    async def find(self, server: str, url: str) -> SharedLogin | None:
        """What they know; None: nothing, or they cannot be asked now."""
        ...

    async def tell(self, server: str, url: str, shared: SharedLogin) -> None:
        """Tell them, unless they know something newer; delivery is not confirmed."""
        ...

    def renewing(self, server: str, url: str) -> AbstractAsyncContextManager[RenewalPermit]:
        """Within the block, no other replica renews that login.

        Raises:
            RequestFailed: Nobody can say whether another one does.
        """
        ...

    async def follow(self, on_change: Callable[[], Awaitable[None]]) -> None:
        """Call back whenever they may have changed a login, until cancelled."""
        ...
