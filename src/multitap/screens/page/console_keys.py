"""One-time links to the console, and the tokens that browsers get for them."""

import secrets
import time
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from multitap.errors import MultitapError
from multitap.gateway.fronts.token_sources import TokenSources
from multitap.http.server.rate_limit import Rate, RateLimit
from multitap.trust.access_tokens import AccessTokens
from multitap.trust.single_use import Issued, bind

if TYPE_CHECKING:
    from multitap.gateway.fronts.worker_peers import WorkerPeers

LIFE = 12 * 3600.0
"""Seconds for which an unused link, and then the browser's token, is valid."""
MOST_LINKS = 16
"""Unused links; the oldest is dropped when there are more."""
ATTEMPTS = "10/min"
"""Wrong keys; 256 bits cannot be guessed, but there is no reason to allow attempts."""
NAME = "console"
_LOOK = 0.02  # seconds between two checks, each a dictionary lookup
_PATIENCE = 5.0  # seconds; after that, the browser gets a token that becomes valid a moment later


class ConsoleKeys:
    """Gives a browser its own token for a one-time key.

    The token is listed and revoked like any other of the user's, and opens only the console.

    Args:
        sources: The tokens that are valid now.
        store: Stores new tokens.
    """

    workers: "WorkerPeers | None" = None
    """The other workers of the gateway: a browser's requests may reach any of them."""

    def __init__(self, sources: TokenSources, store: AccessTokens | None = None) -> None:
        self._sources = sources
        self._store = store or AccessTokens()
        # each `multitap console` makes one, and most are never used
        self._links = Issued(MOST_LINKS)
        self._wrong = RateLimit(Rate.parse(ATTEMPTS))

    def new_link(self, base: str) -> str:
        """A link for one browser.

        Args:
            base: The gateway's URL; if it listens on all addresses, loopback is used.
        """
        for anywhere, here in (("//0.0.0.0:", "//127.0.0.1:"), ("//[::]:", "//[::1]:")):
            base = base.replace(anywhere, here)
        return f"{base}/console/enter?key={self.new_key()}"

    def new_key(self) -> str:
        """A key for one browser."""
        key = secrets.token_urlsafe(32)
        self._links.issue(bind("console", key), life=LIFE)
        return key

    def is_admitted(self, given: bytes) -> str | None:
        """The id of the token in a cookie; None if it is not, or no longer, valid."""
        admitted = self._sources.keys.find_console(given)
        return None if admitted is None else admitted.principal

    async def exchange(self, key: str) -> str | None:
        """A token for a key; None if the key is wrong or already used.

        Raises:
            TooManyAttempts: Too many keys were wrong.
        """
        # the key is taken before the next await: two browsers cannot both use it
        digest = bind("console", key)
        if not self.take(digest) and not (self.workers and await self.workers.take_key(digest)):
            if wait := self._wrong.take(time.monotonic()):
                raise TooManyAttempts(wait)
            return None
        token, kept = await to_thread.run_sync(self._create)
        await self.wait_for_token(kept)
        if self.workers is not None:
            await self.workers.wait_for_token(kept)
        return token

    def take(self, digest: bytes) -> bool:
        """Whether a key was issued here; it is no longer valid after that."""
        return self._links.take(digest)

    async def wait_for_token(self, token_id: str) -> None:
        """Wait until a new token is valid here."""
        # the gateway reads the tokens four times a second, and the browser comes back at once
        with anyio.move_on_after(_PATIENCE):
            while token_id not in self._sources.keys.tokens:
                await anyio.sleep(_LOOK)

    async def leave(self, token_id: str) -> None:
        """End a browser's token."""
        try:
            await to_thread.run_sync(self._store.revoke, token_id)
        except MultitapError:
            return  # it has ended by itself

    def _create(self) -> tuple[str, str]:
        text, kept = self._store.create(NAME, expires=time.time() + LIFE, is_console=True)
        return text, kept.id


class TooManyAttempts(Exception):
    """Too many wrong keys; has the seconds to wait."""

    def __init__(self, wait: float) -> None:
        super().__init__(f"too many wrong keys: wait {wait:.0f} s")
        self.wait = wait
