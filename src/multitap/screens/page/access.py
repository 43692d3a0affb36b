"""Who may use the console: one-time links, browsers' tokens, requests of our own pages."""

import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from multitap.errors import MultitapError
from multitap.gateway.fronts.tokens import TokenSources
from multitap.http.server.pages import HtmlPages, set_cookie
from multitap.http.server.request import Rejected
from multitap.limits import Rate, RateLimit
from multitap.trust.single_use import Issued, bind
from multitap.trust.tokens import AccessTokens

if TYPE_CHECKING:
    from multitap.cluster.worker_peers import WorkerPeers

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

    def is_admitted(self, cookie: bytes) -> str | None:
        """The id of the token in a cookie; None if it is not, or no longer, valid."""
        admitted = self._sources.keys.find_console(cookie)
        return None if admitted is None else admitted.principal.key

    async def exchange(self, key: str) -> str | None:
        """A token for a key; None if the key is wrong or already used.

        Raises:
            TooManyAttempts: Too many keys were wrong.
        """
        if not await self.spend(key):
            return None
        token, token_id = await to_thread.run_sync(self._create)
        await self.wait_for_token(token_id)
        if self.workers is not None:
            await self.workers.wait_for_token(token_id)
        return token

    async def spend(self, key: str) -> bool:
        """Use up a key, or the link that has it; False if it is wrong or already used.

        Raises:
            TooManyAttempts: Too many keys were wrong.
        """
        # the key is taken before the next await: two browsers cannot both use it
        digest = bind("console", key.strip().rpartition("key=")[2])
        if self.take(digest) or (self.workers and await self.workers.take_key(digest)):
            return True
        if wait := self._wrong.take(time.monotonic()):
            raise TooManyAttempts(wait)
        return False

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
        text, stored = self._store.create(NAME, expires=time.time() + LIFE, is_console=True)
        return text, stored.id


class TooManyAttempts(MultitapError):
    """Too many wrong keys; has the seconds to wait."""

    def __init__(self, wait: float) -> None:
        super().__init__(f"too many wrong keys: wait {wait:.0f} s")
        self.wait = wait


COOKIE = "multitap_console"
MARK = b"x-multitap-console"
"""A header that a page of another origin cannot send without asking us first."""

PAGES = HtmlPages(
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data: blob:",
    "media-src data: blob:",
    "connect-src 'self'",
    # no string can become markup, even through a bug in our scripts
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)

_OWN_SITES = frozenset({b"", b"none", b"same-origin"})
"""Values of `Sec-Fetch-Site` for requests of our own pages or of a person."""


def foreign(method: bytes, headers: Mapping[bytes, bytes], *, is_form: bool) -> Rejected | None:
    """Why a request is refused, if a page of another origin may have made it.

    Cookies are shared by all ports of a host, and `SameSite` ignores ports, too. So the origin must
    match exactly, and a header is required that only our own scripts send.

    Args:
        is_form: Whether it comes from a plain form, which cannot send custom headers.
    """
    host, site = headers.get(b"host", b"").lower(), headers.get(b"sec-fetch-site", b"").lower()
    origin = headers.get(b"origin", b"").lower()
    own = (b"http://" + host, b"https://" + host)
    if method == b"GET":
        # a link in a mail may lead here: it brings no cookie, and learns nothing
        is_visit = headers.get(b"sec-fetch-mode") == b"navigate" and not origin
        if (origin and origin not in own) or (site not in _OWN_SITES and not is_visit):
            return _DENIED
        if is_visit and headers.get(b"sec-fetch-dest", b"document") != b"document":
            return _DENIED
        return None
    if is_form:
        # without a referrer, browsers do not name the origin of a form either
        is_own = origin in own or (origin in {b"", b"null"} and site == b"same-origin")
    else:
        is_own = origin in own and headers.get(MARK) == b"1"
    return None if is_own and site in _OWN_SITES else _DENIED


_DENIED = Rejected(403, "pages of other origins may not use the console", PAGES.safe)


def console_cookie(value: str, seconds: float, *, is_secure: bool) -> tuple[bytes, bytes]:
    """The header that sets a browser's cookie; zero seconds delete it."""
    return set_cookie(
        COOKIE, value, seconds, path="/console", same_site="Strict", is_secure=is_secure
    )
