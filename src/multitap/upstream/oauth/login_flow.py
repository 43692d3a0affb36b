"""The login flow: from a refused request to tokens."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus

import msgspec
from yarl import URL

from multitap.config import HttpServer, OAuth
from multitap.http.browser_address import is_safe
from multitap.http.client.origins import same_origin
from multitap.records import dataclass
from multitap.trust.secrets.token_store import LoginSecrets, StoredLogin
from multitap.upstream.oauth.authorization_code import AuthorizationRequest
from multitap.upstream.oauth.challenge_words import parameters
from multitap.upstream.oauth.client_identity import (
    ClientIdentity,
    configured_client,
    register,
    remembered_client,
)
from multitap.upstream.oauth.discovery import Discovery, discover, same_issuer
from multitap.upstream.oauth.guarded_fetch import GRANT_TIMEOUT, GuardedFetch
from multitap.upstream.oauth.oauth_errors import GrantRefused, LoginFailed, clean
from multitap.upstream.oauth.proof_key import ProofKey
from multitap.upstream.oauth.token_endpoint import Grant, TokenEndpoint
from multitap.upstream.oauth.workload_identity import bearer_form
from multitap.wire.streamable.http_origin import Challenge

RENEWAL_TIMEOUT = GRANT_TIMEOUT
OFFLINE = "offline_access"

Send = Callable[[str], Awaitable[str]]
"""Sends a person to a URL; returns the URL that they were redirected to."""
Check = Callable[[StoredLogin], Awaitable[None]]
"""Raises `LoginFailed` unless credentials may be sent to the issuer of a login without tokens."""


class LoginFlow:
    """One login, or one renewal.

    Raises:
        LoginFailed: From every method: the login failed.
        RequestFailed: A server cannot be reached now.
    """

    def __init__(self, config: HttpServer, known: OAuth, before: StoredLogin | None) -> None:
        self._fetch = GuardedFetch(config.url)
        self._config = config
        self._known = known
        self._before = before

    async def by_person(
        self, send: Send, *, server: str, redirect: str, challenge: str | None, scope: str | None
    ) -> StoredLogin:
        """Let a person log in at the authorization server.

        Args:
            send: Sends them there.
            server: The server's name.
            redirect: The redirect URI.
            challenge: The server's challenge; None if it accepted the request.
            scope: The scope to request instead of the server's.
        """
        found = await self._discover(challenge)
        wanted = _with_offline(scope or self._known.scope or found.scope, found)
        client = await self._client(found, redirect, wanted)
        proof_key = ProofKey() if found.takes_proofs else None
        terms = _Terms(found, client, proof_key, redirect, wanted)
        if self._known.client_secret or self._known.private_key:
            # a compromised server must not get our secret by naming another issuer
            self._check_issuer(self._login(server, terms))
        try:
            grant = await self._request_grant(send, terms)
        except GrantRefused as exc:
            if exc.error != "invalid_client" or not client.registered:
                raise
            # it no longer knows our client
            client = await register(self._fetch, found, redirect, wanted)
            terms = replace(terms, client=client)
            grant = await self._request_grant(send, terms)
        return self._login(server, terms, grant)

    async def by_machine(self, server: str, challenge: str | None, check: Check) -> StoredLogin:
        """Log in with what the configuration has: a secret, a key or a signed statement.

        Args:
            server: The server's name.
            challenge: The server's challenge; None if it accepted the request.
            check: Called before any of that is used.
        """
        found = await self._discover(challenge)
        client = configured_client(self._known, found.issuer)
        if client is None:
            raise LoginFailed("`oauth.client_id` is needed to log in without a person")
        scope = self._known.scope or found.scope
        proof_key = ProofKey() if found.takes_proofs else None
        terms = _Terms(found, client, proof_key, "", scope)
        for address in (found.issuer.issuer, found.issuer.token_endpoint):
            if not is_safe(address):  # a person may have to judge it
                raise LoginFailed(f"{clean(address)!r} is not a plain web address")
        await check(self._login(server, terms))
        if self._known.grant == "jwt_bearer":
            config = self._config
            form = await bearer_form(
                self._known,
                found.issuer.issuer,
                found.resource,
                within=config.home.paths if config.provenance == "project" else None,
            )
        else:
            form = {"grant_type": "client_credentials", "resource": found.resource}
        if scope:
            form["scope"] = scope
        endpoint = TokenEndpoint(self._fetch, found.issuer.issuer, client, proof_key)
        grant = await endpoint.grant(found.issuer.token_endpoint, form)
        return self._login(server, terms, grant)

    async def renew(self, kept: StoredLogin, proof_key: ProofKey | None) -> StoredLogin:
        """Renew a login, only at the issuer and with the client that it was granted to."""
        secrets = _secrets(kept)
        endpoint = TokenEndpoint(self._fetch, kept.issuer, self._client_of(kept), proof_key)
        form = {
            "grant_type": "refresh_token",
            "refresh_token": secrets.refresh_token or "",
            "resource": kept.resource,
        }
        grant = await endpoint.grant(kept.token_endpoint, form)
        fresh = msgspec.structs.replace(
            secrets,
            access_token=grant.access_token,
            expires_at=grant.expires_at,
            # it may stay the same
            refresh_token=grant.refresh_token or secrets.refresh_token,
        )
        return msgspec.structs.replace(kept, secrets=fresh, scope=grant.scope or kept.scope)

    async def revoke(self, kept: StoredLogin) -> None:
        """Revoke the tokens of a login (RFC 7009)."""
        if kept.revocation_endpoint is None:
            raise LoginFailed(f"{clean(kept.issuer)} has no way to revoke tokens")
        secrets = _secrets(kept)
        endpoint = TokenEndpoint(self._fetch, kept.issuer, self._client_of(kept))
        if secrets.refresh_token is not None:
            # the refresh token first: it could be used to get a new access token in between
            address = kept.revocation_endpoint
            await endpoint.revoke(address, secrets.refresh_token, "refresh_token")
        await endpoint.revoke(kept.revocation_endpoint, secrets.access_token, "access_token")

    async def _discover(self, challenge: str | None) -> Discovery:
        usual = self._before.issuer if self._before else None
        server = self._config.url
        found = await discover(self._fetch, server, challenge or "", self._known, usual)
        if challenge is None and not found.is_described:
            raise LoginFailed("it does not ask for a login")
        return found

    def _check_issuer(self, login: StoredLogin) -> None:
        if self._known.issuer is None and self._before and not same_place(self._before, login):
            words = describe_change(self._before, login)
            raise LoginFailed(f"{words}; if that is right, set `oauth.issuer`")

    async def _client(self, found: Discovery, redirect: str, scope: str | None) -> ClientIdentity:
        return (
            configured_client(self._known, found.issuer)
            or remembered_client(self._before, found.issuer.issuer, redirect)
            or await register(self._fetch, found, redirect, scope)
        )

    def _client_of(self, kept: StoredLogin) -> ClientIdentity:
        secret = _secrets(kept).client_secret
        if kept.client_id == self._known.client_id and not kept.registered:
            secret = self._known.client_secret
        key = self._known.private_key if kept.client_auth == "private_key_jwt" else None
        return ClientIdentity(kept.client_id, kept.client_auth, secret, key, kept.registered)

    async def _request_grant(self, send: Send, terms: "_Terms") -> Grant:
        found, client = terms.found, terms.client
        rules = self._fetch.rules
        request = AuthorizationRequest(found, client, terms.redirect, terms.scope, rules)
        form = request.form(await send(request.address))
        endpoint = TokenEndpoint(self._fetch, found.issuer.issuer, client, terms.proof_key)
        return await endpoint.grant(found.issuer.token_endpoint, form)

    def _login(self, server: str, terms: "_Terms", grant: Grant | None = None) -> StoredLogin:
        """The login that a grant gives; without one, where it would be asked for."""
        issuer, client = terms.found.issuer, terms.client
        scope = grant.scope if grant else None
        return StoredLogin(
            server=server,
            url=self._config.url,
            issuer=issuer.issuer,
            resource=terms.found.resource,
            token_endpoint=issuer.token_endpoint,
            revocation_endpoint=issuer.revocation_endpoint,
            client_id=client.client_id,
            client_auth=client.auth,
            registered=client.registered,
            redirect_uri=terms.redirect,
            scope=scope or terms.scope or "",
            by_machine=self._known.grant != "authorization_code",
            secrets=None if grant is None else _new_secrets(terms, grant),
        )


@dataclass(frozen=True, slots=True)
class _Terms:
    """The parameters of a login."""

    found: Discovery
    client: ClientIdentity
    proof_key: ProofKey | None
    redirect: str
    scope: str | None


def wanted_scope(known: OAuth, challenge: Challenge, kept: StoredLogin | None) -> str | None:
    """The scope to ask for: the configured one, or what is needed besides what was granted."""
    asked = parameters(challenge.words).get("scope")
    # 403 asks for more rights than we have (step-up); any other refusal for a login as such
    if challenge.status != HTTPStatus.FORBIDDEN:
        return known.scope or asked
    had = (kept.scope if kept else "") or known.scope or ""
    return " ".join(dict.fromkeys([*had.split(), *(asked or "").split()])) or None


def _with_offline(scope: str | None, found: Discovery) -> str | None:
    """Add the scope for a refresh token, if the issuer has one (OpenID Connect)."""
    offered = found.issuer.scopes_supported or ()
    if scope is None or OFFLINE not in offered or OFFLINE in scope.split():
        return scope
    return f"{scope} {OFFLINE}"


def same_place(kept: StoredLogin, other: StoredLogin) -> bool:
    """Whether what is secret goes to the same issuer, and to a token endpoint of one origin."""
    if not same_issuer(kept.issuer, other.issuer):
        return False
    return same_origin(URL(kept.token_endpoint), URL(other.token_endpoint))


def describe_change(kept: StoredLogin, other: StoredLogin) -> str:
    """What is new about where a login is asked for."""
    if not same_issuer(kept.issuer, other.issuer):
        return (
            f"it wants a login at {clean(other.issuer)}, and its credentials were given for "
            f"{clean(kept.issuer)}"
        )
    return (
        f"{clean(kept.issuer)} wants credentials sent to {clean(other.token_endpoint)}, and they "
        f"were given for {clean(kept.token_endpoint)}"
    )


def _new_secrets(terms: _Terms, grant: Grant) -> LoginSecrets:
    # announcing proofs does not oblige a server to bind its tokens to them
    proof_key = terms.proof_key if grant.is_bound else None
    if grant.is_bound and proof_key is None:
        raise LoginFailed("the authorization server bound the token to a key that is not ours")
    return LoginSecrets(
        access_token=grant.access_token,
        expires_at=grant.expires_at,
        refresh_token=grant.refresh_token,
        # a configured secret stays in the configuration; an issued one is stored here
        client_secret=terms.client.secret if terms.client.registered else None,
        proof_key=proof_key.pem if proof_key else None,
    )


def _secrets(kept: StoredLogin) -> LoginSecrets:
    if kept.secrets is None:
        raise LoginFailed("the login has no tokens")
    return kept.secrets
