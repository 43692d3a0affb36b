"""Who uses a browser at the gateway's pages: sealed cookies that name the person.

Nothing is kept here: any replica that shares the key can go on with what another one began.
"""

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TypeVar

import msgspec

from multitap.http.server.pages import cookies, set_cookie
from multitap.http.server.request import RequestHead
from multitap.principal import NO_PERSON, Person, Principal
from multitap.trust.single_use import Seal, as_text, from_text

SESSION_LIFE = 3600.0
"""Seconds after which a browser has to sign in again."""
SIGN_IN_LIFE = 600.0
"""Seconds that a person may take at their provider."""
_SESSION, _PENDING, _LOGIN = "session", "sign-in", "login"
_T = TypeVar("_T")


class Visitor(msgspec.Struct, frozen=True):
    """Somebody who has proven who they are, in a browser."""

    principal: Principal
    issued: float = 0.0
    """When the provider's token was issued: a logout since then ends the session."""
    session: str = ""
    """The session at the provider, if it says."""
    is_admin: bool = False
    """Whether a rule lets them run the gateway."""
    rules_mark: str = ""
    """The rules that were applied: after a change, they have to sign in again."""


class PendingSignIn(msgspec.Struct, frozen=True, kw_only=True):
    """A sign-in at a provider that a browser has begun."""

    state: str
    provider: str
    nonce: str
    verifier: str
    then: str = ""
    """The page to go on to."""

    def __repr__(self) -> str:
        return "<PendingSignIn>"


class SignInProvider(msgspec.Struct, frozen=True):
    """An identity provider with which people sign in here."""

    label: str
    begin: Callable[[str], Awaitable[tuple[str, PendingSignIn]]]
    """The provider's page, and what to remember; given our redirect address."""
    finish: Callable[[str, PendingSignIn, Mapping[str, str]], Awaitable[Visitor]]
    """Who signed in; given our redirect address, and what the browser brings back."""


class BrowserSession(msgspec.Struct, frozen=True):
    """What a browser's cookie says."""

    visitor: Visitor
    csrf: str
    ends: float
    """In seconds since the epoch."""

    @property
    def person(self) -> Person:
        principal = self.visitor.principal
        return Person(principal.issuer, principal.subject)


class BrowserSessions:
    """The sessions of browsers, which only their cookies keep.

    Args:
        key: Seals them; replicas that share it know each other's.
    """

    def __init__(self, key: bytes, *, is_secure: bool, is_valid: Callable[[Visitor], bool]) -> None:
        self._key = key
        self._is_secure = is_secure
        self._is_valid = is_valid
        # `__Host-`: no other host of the domain can set it, or sign somebody in as another person.
        # Without TLS there is no such cookie; that is for loopback only.
        self._prefix = "__Host-multitap" if is_secure else "multitap_accounts"

    def find(self, head: RequestHead) -> BrowserSession | None:
        """The session of a request; None if nobody has signed in, or may no longer come in."""
        for value in cookies(head.headers, self._prefix):
            session = self._open(value, _SESSION, BrowserSession, SESSION_LIFE)
            if session is not None and self._is_valid(session.visitor):
                return session
        return None

    def begin(self, visitor: Visitor) -> tuple[bytes, bytes] | None:
        """The header that begins a session; None for those who are not people."""
        person = visitor.principal.account_owner
        if person is None or person == NO_PERSON:
            return None
        ends = time.time() + SESSION_LIFE
        session = BrowserSession(visitor, secrets.token_urlsafe(18), ends)
        return self._header(self._prefix, self._close(session, _SESSION), SESSION_LIFE)

    def end(self) -> tuple[bytes, bytes]:
        """The header that ends a session."""
        return self._header(self._prefix, "", 0)

    def begin_sign_in(self, pending: PendingSignIn) -> tuple[bytes, bytes]:
        """The header that remembers a sign-in, so that only the same browser can finish it."""
        return self._header(self._name(pending.state), self._close(pending, _PENDING), SIGN_IN_LIFE)

    def find_sign_in(self, head: RequestHead, state: str) -> PendingSignIn | None:
        """The sign-in with a state that this browser has begun, if it has."""
        for value in cookies(head.headers, self._name(state)):
            pending = self._open(value, _PENDING, PendingSignIn, SIGN_IN_LIFE)
            if pending is not None and secrets.compare_digest(
                pending.state.encode(), state.encode()
            ):
                return pending
        return None

    def end_sign_in(self, pending: PendingSignIn) -> tuple[bytes, bytes]:
        """The header that forgets a sign-in."""
        return self._header(self._name(pending.state), "", 0)

    def begin_login(self, state: str, replica: str) -> tuple[bytes, bytes]:
        """The header that remembers which replica has a login at a server's own provider."""
        return self._header(self._name(state), self._close((state, replica), _LOGIN), SIGN_IN_LIFE)

    def find_login(self, head: RequestHead, state: str) -> str | None:
        """The replica that has a login which this browser has begun, if it has."""
        for value in cookies(head.headers, self._name(state)):
            login = self._open(value, _LOGIN, tuple[str, str], SIGN_IN_LIFE)
            if login is not None and login[0] == state:
                return login[1]
        return None

    def _name(self, state: str) -> str:
        # several tabs may sign in at the same time
        return f"{self._prefix}-{state[:8]}"

    @cached_property
    def _seal(self) -> Seal:
        return Seal(self._key)

    def _close(self, content: object, purpose: str) -> str:
        return as_text(self._seal.seal(msgspec.msgpack.encode(content), purpose))

    def _open(self, value: str, purpose: str, kind: type[_T], life: float) -> _T | None:
        opened = self._seal.unseal(from_text(value), purpose)
        if opened is None or time.time() - opened.time > life:
            return None
        try:
            return msgspec.msgpack.decode(opened.data, type=kind)
        except msgspec.MsgspecError:  # of another version
            return None

    def _header(self, name: str, value: str, seconds: float) -> tuple[bytes, bytes]:
        # Lax, not Strict: people come back from authorization servers of other sites
        return set_cookie(name, value, seconds, same_site="Lax", is_secure=self._is_secure)
