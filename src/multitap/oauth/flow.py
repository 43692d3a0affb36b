"""The login flow: from a refused request to tokens."""

from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from multitap.config.models import HttpServer, OAuth
from multitap.http.addresses import is_safe
from multitap.oauth.account import describe_change, same_place
from multitap.oauth.discovery import Discovery, discover
from multitap.oauth.endpoints import GuardedFetch
from multitap.oauth.errors import GrantRefused, LoginFailed, clean
from multitap.oauth.grants import AuthorizationRequest, Grant, TokenEndpoint, bearer_form
from multitap.oauth.identity import (
    ClientIdentity,
    ProofKey,
    configured_client,
    register,
    remembered_client,
)
from multitap.trust.stored_logins import LoginSecrets, StoredLogin

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

    def __init__(self, config: HttpServer, settings: OAuth, before: StoredLogin | None) -> None:
        self._fetch = GuardedFetch(config.url)
        self._config = config
        self._settings = settings
        self._before = before

    async def by_person(
        self, send: Send, *, server: str, redirect: str, challenge: str | None, scope: str | None
    ) -> StoredLogin:
        """Let a person log in at the authorization server; `scope` replaces that of the server.

        The server's challenge is None if it accepted the request.
        """
        discovery = await self._discover(challenge)
        scope = _with_offline(scope or self._settings.scope or discovery.scope, discovery)
        client = await self._client(discovery, redirect, scope)
        proof_key = ProofKey() if discovery.takes_proofs else None
        terms = _Terms(
            discovery=discovery,
            client=client,
            proof_key=proof_key,
            redirect=redirect,
            scope=scope,
        )
        if self._settings.client_secret or self._settings.private_key:
            # a compromised server must not get our secret by naming another issuer
            self._check_issuer(self._login(server, terms))
        try:
            grant = await self._request_grant(send, terms)
        except GrantRefused as exc:
            if exc.error != "invalid_client" or not client.registered:
                raise
            # it no longer knows our client
            client = await register(self._fetch, discovery.issuer, redirect, scope)
            terms = replace(terms, client=client)
            grant = await self._request_grant(send, terms)
        return self._login(server, terms, grant)

    async def by_machine(self, server: str, challenge: str | None, check: Check) -> StoredLogin:
        """Log in with what the configuration has: a secret, a key or a signed statement.

        `check` is called before any of that is used.
        """
        discovery = await self._discover(challenge)
        client = configured_client(self._settings, discovery.issuer)
        if client is None:
            raise LoginFailed("`oauth.client_id` is needed to log in without a person")
        scope = self._settings.scope or discovery.scope
        proof_key = ProofKey() if discovery.takes_proofs else None
        terms = _Terms(
            discovery=discovery, client=client, proof_key=proof_key, redirect="", scope=scope
        )
        for address in (discovery.issuer.issuer, discovery.issuer.token_endpoint):
            if not is_safe(address):  # a person may have to judge it
                raise LoginFailed(f"{clean(address)!r} is not a plain web address")
        await check(self._login(server, terms))
        if self._settings.grant == "jwt_bearer":
            config = self._config
            form = await bearer_form(
                self._settings,
                discovery.issuer.issuer,
                discovery.resource,
                within=config.home.paths if config.provenance == "project" else None,
            )
        else:
            form = {"grant_type": "client_credentials", "resource": discovery.resource}
        if scope:
            form["scope"] = scope
        endpoint = TokenEndpoint(self._fetch, discovery.issuer.issuer, client, proof_key)
        grant = await endpoint.grant(discovery.issuer.token_endpoint, form)
        return self._login(server, terms, grant)

    async def renew(self, login: StoredLogin, proof_key: ProofKey | None) -> StoredLogin:
        """Renew a login, only at the issuer and with the client that it was granted to."""
        secrets = _secrets(login)
        endpoint = TokenEndpoint(self._fetch, login.issuer, self._client_of(login), proof_key)
        form = {
            "grant_type": "refresh_token",
            "refresh_token": secrets.refresh_token or "",
            "resource": login.resource,
        }
        grant = await endpoint.grant(login.token_endpoint, form)
        fresh = replace(
            secrets,
            access_token=grant.access_token,
            expires_at=grant.expires_at,
            # it may stay the same
            refresh_token=grant.refresh_token or secrets.refresh_token,
        )
        return replace(login, secrets=fresh, scope=grant.scope or login.scope)

    async def revoke(self, login: StoredLogin) -> None:
        """Revoke the tokens of a login (RFC 7009)."""
        if login.revocation_endpoint is None:
            raise LoginFailed(f"{clean(login.issuer)} has no way to revoke tokens")
        secrets = _secrets(login)
        endpoint = TokenEndpoint(self._fetch, login.issuer, self._client_of(login))
        if secrets.refresh_token is not None:
            # the refresh token first: it could be used to get a new access token in between
            address = login.revocation_endpoint
            await endpoint.revoke(address, secrets.refresh_token, "refresh_token")
        await endpoint.revoke(login.revocation_endpoint, secrets.access_token, "access_token")

    async def _discover(self, challenge: str | None) -> Discovery:
        usual = self._before.issuer if self._before else None
        server = self._config.url
        discovery = await discover(self._fetch, server, challenge or "", self._settings, usual)
        if challenge is None and not discovery.is_described:
            raise LoginFailed("it does not ask for a login")
        return discovery

    def _check_issuer(self, login: StoredLogin) -> None:
        if self._settings.issuer is None and self._before and not same_place(self._before, login):
            change = describe_change(self._before, login)
            raise LoginFailed(f"{change}; if that is right, set `oauth.issuer`")

    async def _client(
        self, discovery: Discovery, redirect: str, scope: str | None
    ) -> ClientIdentity:
        return (
            configured_client(self._settings, discovery.issuer)
            or remembered_client(self._before, discovery.issuer.issuer, redirect)
            or await register(self._fetch, discovery.issuer, redirect, scope)
        )

    def _client_of(self, login: StoredLogin) -> ClientIdentity:
        secret = _secrets(login).client_secret
        if login.client_id == self._settings.client_id and not login.registered:
            secret = self._settings.client_secret
        key = self._settings.private_key if login.client_auth == "private_key_jwt" else None
        return ClientIdentity(login.client_id, login.client_auth, secret, key, login.registered)

    async def _request_grant(self, send: Send, terms: "_Terms") -> Grant:
        discovery, client = terms.discovery, terms.client
        rules = self._fetch.rules
        request = AuthorizationRequest(discovery, client, terms.redirect, terms.scope, rules)
        form = request.form(await send(request.address))
        endpoint = TokenEndpoint(self._fetch, discovery.issuer.issuer, client, terms.proof_key)
        return await endpoint.grant(discovery.issuer.token_endpoint, form)

    def _login(self, server: str, terms: "_Terms", grant: Grant | None = None) -> StoredLogin:
        """The login that a grant gives; without one, where it would be asked for."""
        issuer, client = terms.discovery.issuer, terms.client
        scope = grant.scope if grant else None
        return StoredLogin(
            server=server,
            url=self._config.url,
            issuer=issuer.issuer,
            resource=terms.discovery.resource,
            token_endpoint=issuer.token_endpoint,
            revocation_endpoint=issuer.revocation_endpoint,
            client_id=client.client_id,
            client_auth=client.auth,
            registered=client.registered,
            redirect_uri=terms.redirect,
            scope=scope or terms.scope or "",
            by_machine=self._settings.grant != "authorization_code",
            secrets=None if grant is None else _new_secrets(terms, grant),
        )


class _Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a login."""

    discovery: Discovery
    client: ClientIdentity
    proof_key: ProofKey | None
    redirect: str
    scope: str | None


def _with_offline(scope: str | None, discovery: Discovery) -> str | None:
    """Add the scope for a refresh token, if the issuer has one (OpenID Connect)."""
    offered = discovery.issuer.scopes_supported or ()
    if scope is None or OFFLINE not in offered or OFFLINE in scope.split():
        return scope
    return f"{scope} {OFFLINE}"


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


def _secrets(login: StoredLogin) -> LoginSecrets:
    if login.secrets is None:
        raise LoginFailed("the login has no tokens")
    return login.secrets
