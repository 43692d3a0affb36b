"""The token endpoint: exchanges grants for tokens, and revokes them."""

import base64
import time
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import quote

import msgspec
from yarl import URL

from multitap.upstream.oauth.client_assertion import ASSERTION_TYPE, client_assertion
from multitap.upstream.oauth.client_identity import ClientIdentity
from multitap.upstream.oauth.guarded_fetch import FetchedReply, GuardedFetch
from multitap.upstream.oauth.oauth_errors import GrantRefused, LoginFailed, clean
from multitap.upstream.oauth.proof_key import ProofKey

_KINDS = frozenset({"bearer", "dpop"})


class Grant(msgspec.Struct, frozen=True):
    """The tokens of a grant."""

    access_token: str
    is_bound: bool
    """Whether it needs a proof of possession."""
    expires_at: float | None
    refresh_token: str | None
    scope: str | None

    def __repr__(self) -> str:
        return "<Grant>"


class TokenEndpoint:
    """Sends requests of one client to one authorization server.

    Args:
        fetch: How to ask.
        issuer: The authorization server.
        client: Our client identity.
        proof_key: The key that tokens should be bound to, if any.

    Raises:
        GrantRefused: From every method: it says no.
        LoginFailed: What it says makes no sense.
        RequestFailed: It cannot be reached now.
    """

    def __init__(
        self,
        fetch: GuardedFetch,
        issuer: str,
        client: ClientIdentity,
        proof_key: ProofKey | None = None,
    ) -> None:
        self._fetch = fetch
        self._issuer = issuer
        self._client = client
        self._proof_key = proof_key

    async def grant(self, address: str, form: Mapping[str, str]) -> Grant:
        """Tokens in exchange for a grant."""
        reply = await self._post(address, form)
        said = reply.decode_json()
        if reply.status != HTTPStatus.OK:
            raise _refusal(reply.status, said)
        return _parse_grant(said)

    async def revoke(self, address: str, token: str, kind: str) -> None:
        """Revoke a token (RFC 7009)."""
        reply = await self._post(address, {"token": token, "token_type_hint": kind})
        if reply.status != HTTPStatus.OK:
            raise _refusal(reply.status, reply.decode_json())

    async def _post(self, address: str, form: Mapping[str, str]) -> FetchedReply:
        reply = await self._post_once(address, form, None)
        nonce = reply.headers.get("DPoP-Nonce")
        wants_nonce = reply.decode_json().get("error") == "use_dpop_nonce"
        if self._proof_key is not None and nonce and wants_nonce:
            reply = await self._post_once(address, form, nonce)
        return reply

    async def _post_once(
        self, address: str, form: Mapping[str, str], nonce: str | None
    ) -> FetchedReply:
        filled, headers = self._authenticate(form)
        if self._proof_key is not None:
            headers["DPoP"] = self._proof_key.proof("POST", URL(address), nonce=nonce)
        return await self._fetch.post_form(address, filled, headers)

    def _authenticate(self, form: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """The form and headers with our client authentication."""
        client, filled = self._client, dict(form)
        if client.auth == "client_secret_basic" and client.secret is not None:
            # RFC 6749, section 2.3.1: both are encoded like parts of a form first
            pair = f"{quote(client.client_id, safe='')}:{quote(client.secret, safe='')}"
            return filled, {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        filled["client_id"] = client.client_id
        if client.auth == "client_secret_post" and client.secret is not None:
            filled["client_secret"] = client.secret
        elif client.auth == "private_key_jwt" and client.private_key is not None:
            filled["client_assertion_type"] = ASSERTION_TYPE
            filled["client_assertion"] = client_assertion(
                client.client_id, self._issuer, client.private_key
            )
        return filled, {}


def _refusal(status: int, said: Mapping[str, object]) -> LoginFailed:
    # never the body itself: error pages may quote tokens
    if isinstance(error := said.get("error"), str) and error:
        return GrantRefused(error, str(said.get("error_description") or ""))
    return LoginFailed(f"the authorization server answers with HTTP {status}")


def _parse_grant(said: Mapping[str, object]) -> Grant:
    token, kind = said.get("access_token"), said.get("token_type")
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
        raise LoginFailed("the authorization server gave no usable access token")
    if str(kind).lower() not in _KINDS:
        raise LoginFailed(f"the authorization server gave a token of type {clean(kind)}")
    return Grant(
        access_token=token,
        is_bound=str(kind).lower() == "dpop",
        expires_at=_expiry(said.get("expires_in")),
        refresh_token=_text(said.get("refresh_token")),
        scope=_text(said.get("scope")),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _expiry(seconds: object) -> float | None:
    # some servers send it as a text
    try:
        return time.time() + float(seconds) if isinstance(seconds, int | float | str) else None
    except ValueError:
        return None
