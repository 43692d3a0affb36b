"""The current credentials for one server: a token, and the key that it may be bound to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from yarl import URL

from multitap.http.client.headers import Headers
from multitap.later import Later
from multitap.redaction import Redactor
from multitap.trust.secrets.token_store import StoredLogin
from multitap.wire.streamable.http_origin import Challenge

if TYPE_CHECKING:
    from multitap.upstream.oauth import proof_key
else:
    # imported for tokens that are bound to a key: few are, and cryptography is slow to import
    proof_key = Later("multitap.upstream.oauth.proof_key")

_EARLY, _EARLY_PART = 30.0, 0.1
"""Seconds before its expiry that a token is renewed, at most this part of its lifetime."""
_NONE: Headers = {}


class Credentials:
    """One login in use, replaced by the next one.

    Args:
        redact: Learns what must not be repeated.
    """

    def __init__(self, redact: Redactor) -> None:
        self.login: StoredLogin | None = None
        self.proof_key: proof_key.ProofKey | None = None
        self.renew_at: float | None = None
        """When to renew the token, by the system's clock; None if its expiry is unknown."""
        self._redact = redact
        self._nonce: str | None = None
        self._headers: Headers | None = _NONE
        """The headers for all requests; None if each needs a proof of its own."""

    @property
    def token(self) -> str | None:
        return token_of(self.login)

    @property
    def refresh_token(self) -> str | None:
        secrets = self.login.secrets if self.login else None
        return secrets.refresh_token if secrets else None

    @property
    def shared_headers(self) -> Headers | None:
        """The headers for any request; None if each needs a proof of its own."""
        return self._headers

    @property
    def is_due(self) -> bool:
        return self.renew_at is not None and time.time() >= self.renew_at

    @property
    def is_expired(self) -> bool:
        secrets = self.login.secrets if self.login else None
        return secrets is None or time.time() >= (secrets.expires_at or 0.0)

    def use(self, login: StoredLogin | None) -> None:
        """Use a login from now on; None if there is none."""
        self.login = login
        self._headers, self.proof_key, self.renew_at = _NONE, None, None
        if login is None or (secrets := login.secrets) is None:
            return
        self._redact.learn(_secrets_of(login))
        if secrets.proof_key is not None:
            self.proof_key, self._headers = proof_key.ProofKey(secrets.proof_key), None
        else:
            self._headers = {"Authorization": f"Bearer {secrets.access_token}"}
        if secrets.expires_at is not None:
            left = max(secrets.expires_at - time.time(), 0.0)
            self.renew_at = secrets.expires_at - min(_EARLY, left * _EARLY_PART)

    def headers_for(self, method: str, url: URL) -> Headers:
        """The headers for one request."""
        if self._headers is not None or self.proof_key is None:
            return self._headers or _NONE
        token = self.token or ""
        proof = self.proof_key.proof(method, url, nonce=self._nonce, token=token)
        return {"Authorization": f"DPoP {token}", "DPoP": proof}

    def note_nonce(self, nonce: str | None) -> bool:
        """Use a nonce in the next proof; returns whether proofs are in use."""
        if self.proof_key is None or not nonce:
            return False
        self._nonce = nonce
        return True

    def is_newer(self, challenge: Challenge) -> bool:
        """Whether the current token is newer than the refused one."""
        shown = (challenge.authorization or "").partition(" ")[2]
        return self.token not in {None, shown}


def token_of(login: StoredLogin | None) -> str | None:
    """The access token of a login, if it has one."""
    return login.secrets.access_token if login and login.secrets else None


def _secrets_of(login: StoredLogin) -> Iterator[str]:
    """The secrets of a login."""
    if (secrets := login.secrets) is not None:
        yield secrets.access_token
        yield secrets.refresh_token or ""
        yield secrets.client_secret or ""
