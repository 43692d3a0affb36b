"""`multitap access check`: follows the steps of a client that knows only the URL."""

import secrets
from http import HTTPStatus
from typing import NoReturn
from urllib.parse import urlencode, urlsplit

import click

from multitap.cli.configuration import load_configuration
from multitap.cli.options import CommonOptions, config_options, json_option
from multitap.cli.problems.checks import Check, CheckResult
from multitap.cli.problems.doctor import show_check
from multitap.cli.signals import run_async
from multitap.cli.terminal import Exit, say_json
from multitap.config import HttpServer, OAuth, Settings
from multitap.config.access import AccessSettings, OidcIssuer, SignInSettings
from multitap.config.documents import is_list
from multitap.config.variables import expand_access
from multitap.errors import RequestFailed
from multitap.http.addresses import is_loopback
from multitap.identity.access_tokens import ProviderDown
from multitap.identity.issuer import Issuer
from multitap.oauth.discovery import (
    IssuerMetadata,
    ResourceMetadata,
    discover,
    find_issuer,
    parameters,
    parse_metadata,
    wanted_login,
)
from multitap.oauth.endpoints import GuardedFetch
from multitap.oauth.errors import GrantRefused, LoginFailed, clean
from multitap.oauth.grants import JWT_BEARER, TOKEN_EXCHANGE, challenge_of

_FORWARD = "have the proxy forward all paths, with the Host header of the client"


class _CannotGoOn(Exception):
    """A client would stop here."""


class ClientWalk:
    """What a client meets, step by step, up to where it could not go on."""

    def __init__(self, settings: Settings, access: AccessSettings) -> None:
        self._access = access
        self._servers = settings.servers
        # some write the whole address that clients use
        self._public = (settings.serve.public_url or "").rstrip("/").removesuffix("/mcp")
        self.checks: list[Check] = []

    async def run(self) -> list[Check]:
        """Take all steps; returns what was seen."""
        try:
            self._look_at_settings()
            challenge = await self._knock()
            fetch = GuardedFetch(self._url)
            await self._read_metadata(fetch, challenge)
            await self._find_server(fetch, challenge)
        except _CannotGoOn:
            # the providers are checked all the same
            pass
        for name, provider in self._access.oidc.items():
            try:
                await self._ask_provider(name, provider)
            except _CannotGoOn:
                continue
        return self.checks

    @property
    def _url(self) -> str:
        return f"{self._public}/mcp"

    def _pass(self, step: str, text: str) -> None:
        self.checks.append(Check(step, CheckResult.OK, text))

    def _warn(self, step: str, text: str, hint: str | None = None) -> None:
        self.checks.append(Check(step, CheckResult.WARN, text, hint))

    def _fail(self, step: str, text: str, hint: str) -> NoReturn:
        self.checks.append(Check(step, CheckResult.FAILED, text, hint))
        raise _CannotGoOn

    def _look_at_settings(self) -> None:
        if not self._access.oidc:
            hint = "`[access.oidc.NAME]` with `issuer` and `client_id` describes one"
            self._fail("settings", "there is no identity provider", hint)
        if not self._public:
            hint = 'write `public_url = "https://tap.example.com"` under [serve]'
            self._fail("settings", "the URL that people use is not known", hint)
        url = urlsplit(self._public)
        if url.scheme != "https" and not is_loopback(url.hostname or ""):
            hint = "use https: clients refuse to send tokens over anything else"
            self._fail("settings", f"{self._public} has no TLS", hint)
        self._pass("settings", self._public)
        if not self._access.rules:
            hint = "`[[access.rules]]` with a `name` alone lets in everyone whom a provider knows"
            self._warn("settings", "no rule lets anybody in", hint)
        for server, config in self._servers.items():
            exchange = config.exchange if isinstance(config, HttpServer) else None
            if exchange is not None and exchange.provider not in self._access.oidc:
                hint = f"describe it in [access.oidc.{exchange.provider}]"
                self._warn("settings", f"{server} names a provider that is not known", hint)

    async def _knock(self) -> str:
        """The first request of a client, without a token; returns the challenge."""
        try:
            challenge = await wanted_login(HttpServer(url=self._url))
        except (RequestFailed, OSError) as exc:
            hint = f"start it with `multitap serve --http`; behind a proxy, {_FORWARD}"
            self._fail("reach", f"{self._url}: {exc}", hint)
        if challenge is None:
            hint = "something else answers there, or an older gateway: start this one again"
            self._fail("reach", f"{self._url} does not ask for a token", hint)
        self._pass("reach", f"{self._url} answers 401, as it has to")
        place = parameters(challenge).get("resource_metadata")
        if place is None:
            hint = f"the running gateway has other settings, or a proxy removes headers: {_FORWARD}"
            self._fail("challenge", "it does not say where its metadata is", hint)
        self._pass("challenge", place)
        return challenge

    async def _read_metadata(self, fetch: GuardedFetch, challenge: str) -> None:
        """The metadata of the gateway, at all places where clients look."""
        url = urlsplit(self._public)
        well_known = f"{url.scheme}://{url.netloc}/.well-known/oauth-protected-resource"
        announced = parameters(challenge)["resource_metadata"]
        for place in dict.fromkeys((announced, f"{well_known}{url.path}/mcp", well_known)):
            try:
                reply = await fetch.describe(place, {})
            except (LoginFailed, RequestFailed) as exc:
                self._fail("resource", f"{place}: {exc}", _FORWARD)
            described = parse_metadata(reply.body, ResourceMetadata)
            if described is None or reply.status != HTTPStatus.OK:
                text = f"{place} answers {reply.status}"
                if place == announced:
                    self._fail("resource", text, _FORWARD)
                # a client that follows the challenge needs no other place
                self._warn("resource", text, _FORWARD)
            elif described.resource != self._url:
                hint = "`serve.public_url` has to be the URL that people type, without `/mcp`"
                self._fail("resource", f"it is about {clean(described.resource)}", hint)
            else:
                self._pass("resource", place)

    async def _find_server(self, fetch: GuardedFetch, challenge: str) -> None:
        """The authorization server that the metadata names, and how clients register there."""
        try:
            issuer = (await discover(fetch, self._url, challenge, OAuth())).issuer
        except (LoginFailed, RequestFailed) as exc:
            self._fail("server", str(exc), self._advice)
        name = clean(issuer.issuer)
        if "S256" not in (issuer.code_challenge_methods_supported or ()):
            text = f"{name} does not offer S256, so clients have to refuse it"
            self._fail("server", text, self._advice)
        self._pass("server", f"clients sign people in at {name}")
        if issuer.client_id_metadata_document_supported:
            self._pass("register", "clients may describe themselves at an address")
        if issuer.registration_endpoint is not None:
            self._pass("register", "clients may register themselves")
        elif not issuer.client_id_metadata_document_supported:
            self._warn("register", f"{name} knows only clients registered by hand", self._advice)

    async def _ask_provider(self, name: str, provider: OidcIssuer) -> None:
        """What the gateway itself needs of a provider."""
        fetch = GuardedFetch(provider.issuer)
        try:
            metadata = await find_issuer(fetch, provider.issuer)
            keys = await fetch.describe(metadata.jwks_uri or provider.issuer, {})
        except RequestFailed as exc:
            hint = "the gateway has to reach it: look at its firewall, proxies and names"
            self._fail(name, str(exc), hint)
        except LoginFailed as exc:
            hint = f"`access.oidc.{name}.issuer` is the issuer exactly as its metadata has it"
            self._fail(name, str(exc), hint)
        if metadata.issuer != provider.issuer:
            issuer = clean(metadata.issuer)
            self._fail(name, f"it calls itself {issuer}", f'write `issuer = "{issuer}"`')
        published = keys.decode_json().get("keys")
        if not is_list(published) or not published:
            self._fail(name, "it publishes no keys", "see `jwks_uri` in its metadata")
        self._pass(name, provider.issuer)
        self._look_at_exchanges(name, metadata)
        if self._access.sign_in is not None and self._access.sign_in.provider == name:
            await self._try_client(name, provider)
            for callback in self._callbacks:
                await self._try_page(name, provider, metadata, fetch, callback)
            self._look_at_renewal(name, self._access.sign_in, metadata)

    def _look_at_exchanges(self, name: str, metadata: IssuerMetadata) -> None:
        """Whether the provider offers what servers need that take exchanged tokens."""
        for server, config in self._servers.items():
            exchange = config.exchange if isinstance(config, HttpServer) else None
            if exchange is None or exchange.provider != name:
                continue
            grant = JWT_BEARER if exchange.kind == "on-behalf-of" else TOKEN_EXCHANGE
            # many providers do not list what they offer only to some clients
            if metadata.grant_types_supported and grant not in metadata.grant_types_supported:
                hint = f"allow our client there to exchange tokens, or see `servers.{server}`"
                self._warn(name, f"it does not say that it exchanges tokens for {server}", hint)
            else:
                self._pass(name, f"{server} takes tokens that are exchanged there")

    def _look_at_renewal(
        self, name: str, sign_in: SignInSettings, metadata: IssuerMetadata
    ) -> None:
        """Whether people stay signed in."""
        scopes = (*sign_in.scopes, *(metadata.scopes_supported or ()))
        grants = metadata.grant_types_supported
        # a provider that lists no grants does not say what it lacks
        if "offline_access" not in scopes and grants and "refresh_token" not in grants:
            hint = "allow refresh tokens for our client there, and the scope `offline_access`"
            minutes = f"{sign_in.token_life / 60:g} minutes"
            self._warn(name, f"people have to sign in again every {minutes}", hint)

    async def _try_client(self, name: str, provider: OidcIssuer) -> None:
        """Whether the provider accepts our client."""
        form = {
            "grant_type": "authorization_code",
            "code": "none",
            "redirect_uri": self._callbacks[0],
            "code_verifier": secrets.token_urlsafe(48),
        }
        try:
            endpoint, address = await Issuer(name, provider).token_endpoint()
            await endpoint.grant(address, form)
        except GrantRefused as exc:
            if exc.error in {"invalid_client", "unauthorized_client"}:
                hint = f"`client_id` and `client_secret` under [access.oidc.{name}]"
                self._fail(name, f"it does not accept our client: {exc}", hint)
            # a code that nobody got is refused only after the client was accepted
            self._pass(name, "it accepts our client")
        except (LoginFailed, RequestFailed, ProviderDown) as exc:
            self._warn(name, f"its token endpoint: {exc}")

    async def _try_page(
        self,
        name: str,
        provider: OidcIssuer,
        metadata: IssuerMetadata,
        fetch: GuardedFetch,
        callback: str,
    ) -> None:
        """Whether people can be sent to the provider, and back to us."""
        query = {
            "response_type": "code",
            "client_id": provider.client_id or "",
            "redirect_uri": callback,
            "scope": "openid",
            "state": "check",
            "nonce": "check",
            "code_challenge": challenge_of(secrets.token_urlsafe(48)),
            "code_challenge_method": "S256",
        }
        try:
            # its first answer only: the next page wants the cookies that it set
            reply = await fetch.describe(
                f"{metadata.authorization_endpoint}?{urlencode(query)}", {}, redirects=0
            )
        except LoginFailed:  # it sends the browser on, as it may
            self._pass(name, f"it sends people back to {callback}")
        except RequestFailed as exc:
            self._warn(name, f"its page to sign in: {exc}")
        else:
            if reply.status >= HTTPStatus.BAD_REQUEST:
                hint = f"register the redirect URI {callback} for our client there"
                self._fail(name, f"its page to sign in answers {reply.status}", hint)
            self._pass(name, f"its page to sign in takes {callback}")

    @property
    def _callbacks(self) -> list[str]:
        """The addresses to which the provider sends people back."""
        has_accounts = any(config.credentials == "per-user" for config in self._servers.values())
        pages = ["authorize/callback", *(["accounts/signed-in"] if has_accounts else [])]
        return [f"{self._public}/{page}" for page in pages]

    @property
    def _advice(self) -> str:
        if self._access.sign_in is not None:
            return "the running gateway may have other settings: start it again"
        return "`[access.sign_in]` lets the gateway sign people in for any client"


@click.command("check")
@config_options
@json_option
def check_access(options: CommonOptions, *, as_json: bool) -> int:
    """Follow the steps of a new client, and say what to fix

    Asks the gateway at `serve.public_url` and the identity providers, and stops where a client
    would.
    """
    loaded = load_configuration(options)
    expanded = expand_access(loaded.settings.access, loaded.scope)
    checks = run_async(ClientWalk(loaded.settings, expanded).run)
    if as_json:
        say_json(
            [
                {
                    "step": check.phase,
                    "result": check.verdict,
                    "text": check.text,
                    "fix": check.hint,
                }
                for check in checks
            ]
        )
    else:
        for check in checks:
            show_check(check)
    is_fine = all(check.verdict is not CheckResult.FAILED for check in checks)
    return Exit.DONE if is_fine else Exit.FAILED
