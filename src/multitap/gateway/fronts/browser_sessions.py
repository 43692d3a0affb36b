"""Who uses a browser at the gateway's pages: a sealed cookie that names the person."""

import secrets
import time
from collections.abc import Callable
from functools import cached_property

import msgspec

from multitap.gateway.connections import as_text, from_text
from multitap.http.server.request import RequestHead
from multitap.principal import NO_PERSON, Person, Principal
from multitap.trust.single_use import Seal

SESSION_LIFE = 3600.0
"""Seconds after which a browser has to sign in again."""
_PURPOSE = "session"


class BrowserSession(msgspec.Struct, frozen=True, array_like=True):
    """What a browser's cookie says."""

    issuer: str
    subject: str
    key: str
    """The principal's key, as long as which is valid the session is."""
    csrf: str

    @property
    def person(self) -> Person:
        return Person(self.issuer, self.subject)


class BrowserSessions:
    """The sessions of browsers, which only their cookies keep.

    Args:
        key: Seals them; replicas that share it know each other's.
        is_secure: Whether browsers come over TLS.
        is_valid: Whether the person of a session may still use the gateway.
    """

    def __init__(
        self, key: bytes, *, is_secure: bool, is_valid: Callable[[BrowserSession], bool]
    ) -> None:
        self._key = key
        self._is_secure = is_secure
        self._is_valid = is_valid
        # without TLS there can be no `__Host-` cookie; that is for loopback only
        self._cookie = b"__Host-multitap" if is_secure else b"multitap_accounts"

    def find(self, head: RequestHead) -> BrowserSession | None:
        """The session of a request; None if nobody has signed in, or may no longer come in."""
        for pair in head.headers.get(b"cookie", b"").split(b";"):
            name, _, value = pair.strip().partition(b"=")
            if name == self._cookie and (session := self._read(value)) is not None:
                return session
        return None

    def begin(self, principal: Principal) -> tuple[bytes, bytes] | None:
        """The header that begins a session; None for those who are not people."""
        person = principal.account_owner
        if person is None or person == NO_PERSON:
            return None
        session = BrowserSession(*person, principal.key, secrets.token_urlsafe(18))
        sealed = self._seal.seal(msgspec.json.encode(session), _PURPOSE)
        return self._header(as_text(sealed), SESSION_LIFE)

    def end(self) -> tuple[bytes, bytes]:
        """The header that ends a session."""
        return self._header("", 0)

    @cached_property
    def _seal(self) -> Seal:
        return Seal(self._key)

    def _read(self, value: bytes) -> BrowserSession | None:
        opened = self._seal.unseal(from_text(value.decode("latin-1")), _PURPOSE)
        if opened is None or time.time() - opened.time > SESSION_LIFE:
            return None
        session = msgspec.json.decode(opened.data, type=BrowserSession)
        return session if self._is_valid(session) else None

    def _header(self, value: str, seconds: float) -> tuple[bytes, bytes]:
        # Lax, not Strict: people come back from authorization servers of other sites
        parts = [f"{self._cookie.decode()}={value}", "Path=/", f"Max-Age={seconds:.0f}"]
        parts += ["HttpOnly", "SameSite=Lax", *(["Secure"] if self._is_secure else [])]
        return b"set-cookie", "; ".join(parts).encode()
