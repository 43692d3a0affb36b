"""Grants: a person's consent or a program's identity, exchanged for tokens."""

import base64
import hashlib
import secrets
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import anyio
import msgspec
from yarl import URL

from multitap.config.models import OAuth
from multitap.config.project_bounds import read_inside
from multitap.files import open_regular
from multitap.http.addresses import is_safe
from multitap.oauth.account import LOGIN_TIMEOUT
from multitap.oauth.discovery import Discovery
from multitap.oauth.endpoints import AddressRules, FetchedReply, GuardedFetch
from multitap.oauth.errors import GrantRefused, LoginFailed, clean
from multitap.oauth.identity import ASSERTION_TYPE, ClientIdentity, ProofKey, client_assertion
from multitap.trust.single_use import Issued

_REDIRECT_LIMIT = 16 * 1024  # characters of a redirect
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - a grant
_ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - the name of a kind
_ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
_ASSERTION_LIMIT = 64 * 1024  # bytes of an assertion
_OK = 200
_KINDS = frozenset({"bearer", "dpop"})


class AuthorizationRequest:
    """One authorization request to a person, answered once.

    Raises:
        LoginFailed: They would not be safe where it sends them.
    """

    def __init__(
        self,
        discovery: Discovery,
        client: ClientIdentity,
        redirect: str,
        scope: str | None,
        rules: AddressRules,
    ) -> None:
        issuer = discovery.issuer
        methods = issuer.code_challenge_methods_supported or ()
        # without PKCE, a stolen code is as good as a token; MCP requires clients to refuse
        if discovery.is_described and "S256" not in methods:
            raise LoginFailed(f"{clean(issuer.issuer)} does not offer PKCE with S256")
        if issuer.authorization_endpoint is None:
            raise LoginFailed(f"{clean(issuer.issuer)} has no page to log in")
        self._page = rules.check(issuer.authorization_endpoint)
        self._discovery = discovery
        self._client = client
        self._redirect = redirect
        self._scope = scope
        # 86 characters; RFC 7636 allows 43 to 128
        self._verifier = secrets.token_urlsafe(64)
        self._state = secrets.token_urlsafe(32)
        self._states = Issued(1)
        self._states.issue(self._state, issuer.issuer, redirect, life=LOGIN_TIMEOUT)

    @property
    def address(self) -> str:
        """The URL to send the person to.

        Raises:
            LoginFailed: A browser may open another host than it seems to name.
        """
        query = {
            "response_type": "code",
            "client_id": self._client.client_id,
            "redirect_uri": self._redirect,
            "state": self._state,
            "code_challenge": challenge_of(self._verifier),
            "code_challenge_method": "S256",
            "resource": self._discovery.resource,
        }
        if self._scope:
            query["scope"] = self._scope
            if "offline_access" in self._scope.split():
                query["prompt"] = "consent"  # OpenID Connect gives no refresh token without
        # characters that a shell interprets, which a scope may have, are encoded as well
        page = quote(str(self._page.update_query(query)), safe="%~:/?&=+,;@#[]")
        if not is_safe(page):
            raise LoginFailed(f"the login page {clean(self._page)!r} is not a plain web address")
        return page

    def form(self, redirected: str) -> dict[str, str]:
        """The grant in the URL that the person was redirected to.

        Raises:
            LoginFailed: It does not belong to this request, or was used before.
            GrantRefused: The person or the authorization server refused.
        """
        response = {
            name: values[0]
            for name, values in parse_qs(urlsplit(redirected[:_REDIRECT_LIMIT]).query).items()
        }
        issuer = self._discovery.issuer.issuer
        # all of this before anything else is believed, an error included
        is_ours = self._states.take(response.get("state", ""), issuer, self._redirect)
        self._states.forget()  # one answer counts, right or wrong
        if not is_ours:
            raise LoginFailed("the redirect does not belong to this login (wrong `state`)")
        self._check_issuer(response.get("iss"))
        if "error" in response:
            raise GrantRefused(response["error"], response.get("error_description", ""))
        if not response.get("code"):
            raise LoginFailed("the redirect carries no code")
        return {
            "grant_type": "authorization_code",
            "code": response["code"],
            "redirect_uri": self._redirect,
            "code_verifier": self._verifier,
            "resource": self._discovery.resource,
        }

    def _check_issuer(self, named: str | None) -> None:
        """Check that the answer comes from the authorization server that was asked."""
        issuer = self._discovery.issuer
        if named is None:
            if issuer.authorization_response_iss_parameter_supported:
                raise LoginFailed("the redirect does not name the authorization server (`iss`)")
        elif named != issuer.issuer:
            raise LoginFailed("the redirect is from another authorization server (`iss`)")


def challenge_of(verifier: str) -> str:
    """The S256 challenge of a verifier (RFC 7636)."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


async def bearer_form(
    settings: OAuth, issuer: str, resource: str, *, within: Path | None = None
) -> dict[str, str]:
    """The grant of a program with a signed assertion about itself (RFC 7523).

    Where an identity provider is configured, the statement is an ID token, and the provider gives
    the one that the authorization server takes (SEP-990). For a project's server, a file with the
    statement must be in the folder `within`.

    Raises:
        LoginFailed: There is no statement, or the provider gives none.
    """
    statement = await _statement(settings, within)
    if settings.identity_provider is not None:
        statement = await _exchange(
            settings, settings.identity_provider, statement, issuer, resource
        )
    return {"grant_type": JWT_BEARER, "assertion": statement, "resource": resource}


async def _statement(settings: OAuth, within: Path | None) -> str:
    """The assertion, read each time: platforms renew the file before it expires."""
    if settings.assertion_file is None:
        if not settings.assertion:
            raise LoginFailed("`oauth.assertion` or `oauth.assertion_file` is needed")
        return settings.assertion.strip()
    path = settings.assertion_file.expanduser()
    try:
        text = await anyio.to_thread.run_sync(_read, path, within)
    except OSError as exc:
        raise LoginFailed(f"{path} cannot be read: {exc.strerror}") from None
    if not text or len(text) > _ASSERTION_LIMIT or not text.isprintable():
        raise LoginFailed(f"{path} does not hold a JWT")
    return text


def _read(path: Path, within: Path | None) -> str:
    if within is not None:
        # A server that runs in the project may have put a link there since it started.
        return read_inside(within, path).strip()
    with open_regular(path) as file:
        return file.read(_ASSERTION_LIMIT + 1).decode("ascii", "replace").strip()


async def _exchange(
    settings: OAuth, provider: str, id_token: str, issuer: str, resource: str
) -> str:
    # the provider comes from the configuration, not from the server: use its own address
    client = ClientIdentity(settings.identity_client_id or settings.client_id or "")
    endpoint = TokenEndpoint(GuardedFetch(provider), provider, client)
    return await endpoint.assertion(provider, id_jag_form(id_token, issuer, resource=resource))


def id_jag_form(
    id_token: str, audience: str, *, resource: str | None = None, scope: str | None = None
) -> dict[str, str]:
    """Asks an identity provider for an assertion that another issuer accepts (SEP-990, leg 1)."""
    form = {
        "grant_type": TOKEN_EXCHANGE,
        "requested_token_type": _ID_JAG,
        "subject_token": id_token,
        "subject_token_type": _ID_TOKEN,
        "audience": audience,
    }
    return form | {
        name: value for name, value in {"resource": resource, "scope": scope}.items() if value
    }


class Grant(msgspec.Struct, frozen=True):
    """The tokens of a grant."""

    access_token: str
    is_bound: bool
    """Whether it needs a proof of possession."""
    expires_at: float | None
    refresh_token: str | None
    scope: str | None
    id_token: str | None = None
    """Says who gave it, where OpenID Connect is spoken."""

    def __repr__(self) -> str:
        return "<Grant>"


class TokenEndpoint:
    """Sends requests of one client to one authorization server.

    Tokens are bound to the proof key, if there is one.

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
        response = reply.decode_json()
        if reply.status != HTTPStatus.OK:
            raise _refusal(reply.status, response)
        return _parse_grant(response)

    async def assertion(self, address: str, form: Mapping[str, str]) -> str:
        """An assertion for another issuer (ID-JAG), which is no token for anything itself."""
        reply = await self._post(address, form)
        response = reply.decode_json()
        assertion = response.get("access_token")
        if (
            reply.status != _OK
            or response.get("issued_token_type") != _ID_JAG
            or not isinstance(assertion, str)
        ):
            error = response.get("error") or f"the provider answers with HTTP {reply.status}"
            raise GrantRefused(str(error), str(response.get("error_description") or ""))
        return assertion

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


def _refusal(status: int, response: Mapping[str, object]) -> LoginFailed:
    # never the body itself: error pages may quote tokens
    if isinstance(error := response.get("error"), str) and error:
        return GrantRefused(error, str(response.get("error_description") or ""))
    return LoginFailed(f"the authorization server answers with HTTP {status}")


def _parse_grant(response: Mapping[str, object]) -> Grant:
    token, kind = response.get("access_token"), response.get("token_type")
    # it goes into a header: a line break would begin another one
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
        raise LoginFailed("the authorization server gave no usable access token")
    if str(kind).lower() not in _KINDS:
        raise LoginFailed(f"the authorization server gave a token of type {clean(kind)}")
    return Grant(
        access_token=token,
        is_bound=str(kind).lower() == "dpop",
        expires_at=_expiry(response.get("expires_in")),
        refresh_token=_text(response.get("refresh_token")),
        scope=_text(response.get("scope")),
        id_token=_text(response.get("id_token")),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _expiry(seconds: object) -> float | None:
    # some servers send it as a text
    try:
        return time.time() + float(seconds) if isinstance(seconds, int | float | str) else None
    except ValueError:
        return None
