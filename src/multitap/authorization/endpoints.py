"""The authorization server over HTTP: metadata, registration, consent, sign-in, tokens."""

import asyncio
import base64
import binascii
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

import msgspec
from mcp.server.auth.handlers.authorize import AuthorizationHandler
from mcp.server.auth.handlers.register import RegistrationHandler
from mcp.server.auth.handlers.revoke import RevocationHandler
from mcp.server.auth.handlers.token import TokenHandler
from mcp.server.auth.middleware.client_auth import ClientAuthenticator
from mcp.server.auth.settings import ClientRegistrationOptions
from mcp.shared.auth import JWT_BEARER_GRANT_TYPE

from multitap.authorization.clients import Clients, ClientUnknownNow, SignInClient, describe_target
from multitap.authorization.consent import (
    PAGES,
    consent_page,
    failure_page,
    onward_page,
    return_page,
)
from multitap.authorization.grants import AccessRequest, FileRecords, Grants, Hop, SignInRecords
from multitap.authorization.server import CALLBACK, CONSENT, AuthorizationServer
from multitap.config.access import AccessSettings
from multitap.errors import ConfigError, MultitapError
from multitap.files import file_stamp
from multitap.http.addresses import is_loopback
from multitap.http.server.pages import cookies, is_form, set_cookie
from multitap.http.server.request import JSON, HttpRequest, RequestHead, ToDo
from multitap.identity.access_tokens import ProviderDown
from multitap.identity.sign_in import ProviderAnswered, ProviderSignIn, SignInRefused, new_attempt
from multitap.identity.verifier import Verifier
from multitap.limits import Rate, RateLimit
from multitap.trust.single_use import Seal
from multitap.trust.vault import VaultError, private_folder
from multitap.trust.vault_key import VaultKeys

logger = logging.getLogger(__name__)

LARGEST = 16 * 1024
"""Bytes of a request's body."""
HOPS, OWN_HOPS = Rate(1200, 60.0), Rate(300, 60.0)
"""How often people are sent to the provider, together and from one address: each time is remembered
for ten minutes, and one stranger must not use up what all have."""
_BROWSER = re.compile(r"[A-Za-z0-9_-]{43}")
_BROWSER_LIFE = 3600  # seconds: longer than it may take to agree and to sign in together
_MOST_FIELDS = 64
_MOST_ADDRESSES = 10_000
_AGAIN = "Start again in the program that you want to connect."
_ID_JAG = "urn:ietf:params:oauth:grant-profile:id-jag"
# any page may call the others: they use no cookies, and where a request comes from allows nothing
_FOR_BROWSERS = frozenset({b"/authorize", CONSENT.encode(), CALLBACK.encode()})
_ANY_ORIGIN = b"access-control-allow-origin: *\r\n"

Handler = Callable[[HttpRequest], ToDo]


class SdkRequest(msgspec.Struct, frozen=True):
    """As much of a Starlette request as the SDK's handlers look at."""

    method: str
    query_params: Mapping[str, str]
    content: bytes = b""
    headers: Mapping[str, str] = {}

    async def form(self) -> Mapping[str, str]:
        return self.query_params

    async def body(self) -> bytes:
        return self.content


class SdkResponse(Protocol):
    """As much of a Starlette response as we look at."""

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def body(self) -> bytes | memoryview: ...


SdkHandler = Callable[[Any], Awaitable[SdkResponse]]


async def _ask(handler: SdkHandler, request: SdkRequest) -> SdkResponse:
    return await handler(request)


class ConsentQuestion(msgspec.Struct, frozen=True):
    """A question to the user of one browser."""

    request: AccessRequest
    browser: str


class AuthorizationEndpoints:
    """Answers the requests of clients and browsers around a sign-in."""

    def __init__(self, server: AuthorizationServer) -> None:
        self.server = server
        self._pace = RateLimit(HOPS)
        self._paces: dict[str, RateLimit] = {}
        self._authorize = AuthorizationHandler(server)
        self._register = RegistrationHandler(server, ClientRegistrationOptions(enabled=True))
        authenticator = ClientAuthenticator(server)
        has_secrets = any(
            client.client_secret is not None for client in server.settings.clients.values()
        )
        self._takes_assertions = has_secrets
        self._token = TokenHandler(server, authenticator, identity_assertion_enabled=has_secrets)
        self._revoke = RevocationHandler(server, authenticator)
        self._metadata = msgspec.json.encode(self._describe())
        self._path = urlsplit(server.issuer).path
        path = self._path.encode()
        # clients look for both, and insert the path of an issuer that has one (RFC 8414)
        described = [
            b"/.well-known/oauth-authorization-server",
            b"/.well-known/openid-configuration",
        ]
        self._routes: dict[tuple[bytes, bytes], Handler] = {
            **{(b"GET", place): self._show_metadata for place in described},
            **{(b"GET", place + path): self._show_metadata for place in described},
            (b"GET", b"/authorize"): self._ask_for_consent,
            (b"POST", b"/authorize"): self._ask_for_consent,
            (b"POST", CONSENT.encode()): self._take_consent,
            (b"GET", CALLBACK.encode()): self._come_back,
            (b"POST", b"/token"): self._answer_token,
            (b"POST", b"/revoke"): self._answer_revocation,
        }
        if server.settings.registration:
            self._routes[b"POST", b"/register"] = self._answer_registration
        self.paths = frozenset(path for _, path in self._routes)
        """The paths that are its own."""

    def route(self, head: RequestHead) -> Handler | None:
        """The handler of a request that belongs to a sign-in; None for all others."""
        if head.path not in self.paths:
            return None
        if head.path not in _FOR_BROWSERS:
            head.cors = _ANY_ORIGIN
        handler = self._routes.get((head.method, head.path), _refuse_method)
        # without a length, the body could have any: strangers send these requests
        length = head.headers.get(b"content-length", b"")
        head.keeps_body = head.method == b"POST"
        if head.keeps_body and not (length.isdigit() and int(length) <= LARGEST):
            head.keeps_body = False
            return _refuse_length
        return handler

    def _describe(self) -> dict[str, object]:
        server, issuer = self.server, self.server.issuer
        grant_types = ["authorization_code", "refresh_token"]
        methods = ["none", "client_secret_post", "client_secret_basic"]
        metadata: dict[str, object] = {
            "issuer": issuer,
            "authorization_endpoint": f"{issuer}/authorize",
            "token_endpoint": f"{issuer}/token",
            "revocation_endpoint": f"{issuer}/revoke",
            "scopes_supported": server.scopes,
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": grant_types,
            "token_endpoint_auth_methods_supported": methods,
            "revocation_endpoint_auth_methods_supported": methods,
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            "client_id_metadata_document_supported": server.settings.documents,
        }
        if server.settings.registration:
            metadata["registration_endpoint"] = f"{issuer}/register"
        if self._takes_assertions:
            grant_types.append(JWT_BEARER_GRANT_TYPE)
            metadata["authorization_grant_profiles_supported"] = [_ID_JAG]
        return metadata

    def _show_metadata(self, http_request: HttpRequest) -> None:
        extra = [(b"cache-control", b"public, max-age=300")]
        http_request.respond(200, (self._metadata,), kind=JSON, extra=extra)

    async def _answer_registration(self, http_request: HttpRequest) -> None:
        await self._pass_on(http_request, self._register.handle, {})

    async def _answer_token(self, http_request: HttpRequest) -> None:
        fields = _fields(http_request)
        if fields is not None and self.server.resource_of(fields.get("resource")) is None:
            _say_error(http_request, "invalid_target", "this resource is not served here")
        elif fields is None:
            _say_error(http_request, "invalid_request", "a parameter appears twice")
        else:
            # to the end, also if the client hangs up: the provider may have used up its old tokens
            done = asyncio.Event()
            http_request.writer.tasks.start_soon(self._answer_grant, http_request, fields, done)
            await done.wait()

    async def _answer_grant(
        self, http_request: HttpRequest, fields: Mapping[str, str], done: asyncio.Event
    ) -> None:
        try:
            await self._pass_on(http_request, self._token.handle, fields)
        except Exception as exc:  # noqa: BLE001 - boundary: one broken request stays its own problem
            http_request.give_up(exc)
        finally:
            done.set()

    async def _answer_revocation(self, http_request: HttpRequest) -> None:
        fields = _fields(http_request)
        if fields is None:
            _say_error(http_request, "invalid_request", "a parameter appears twice")
            return
        fields.setdefault("client_secret", "")  # the SDK's model wants one, also of public clients
        await self._pass_on(http_request, self._revoke.handle, fields)

    async def _pass_on(
        self,
        http_request: HttpRequest,
        handle: SdkHandler,
        fields: Mapping[str, str],
    ) -> None:
        """Have the SDK answer a request of a client."""
        try:
            response = await _ask(handle, SdkRequest("POST", fields, http_request.body))
        except ProviderDown as exc:
            logger.warning("a sign-in cannot be renewed: %s", exc)
            _say_error(http_request, "temporarily_unavailable", str(exc), status=503)
            return
        except MultitapError as exc:  # the records cannot be read or written now
            logger.warning("a request of a client fails: %s", exc)
            _say_error(http_request, "temporarily_unavailable", "try again later", status=503)
            return
        if http_request.is_gone:
            return
        extra = [(b"cache-control", b"no-store"), (b"pragma", b"no-cache")]
        http_request.respond(response.status_code, (bytes(response.body),), kind=JSON, extra=extra)

    async def _ask_for_consent(self, http_request: HttpRequest) -> None:
        fields = _fields(http_request)
        if fields is None:
            _show_failure(http_request, "A parameter of the request appears twice.")
            return
        # before the SDK does: it would quote the id, and strangers write what they like into it
        try:
            client = await self.server.get_client(fields.get("client_id", ""))
        except ClientUnknownNow as exc:
            _show_failure(http_request, f"The program cannot be checked now: {exc}.", 503)
            return
        if client is None:
            _show_failure(http_request, "The program that asks is not known here.")
            return
        # without a method, `plain` is meant (RFC 7636), which is not offered
        fields.setdefault("code_challenge_method", "plain")
        response = await _ask(self._authorize.handle, SdkRequest("GET", fields))
        location = response.headers.get("location", "")
        here = f"{self.server.issuer}{CONSENT}?request="
        if location.startswith(here):
            self._show_consent(http_request, client, location.removeprefix(here))
        elif location:
            self._send_back(http_request, client, _with_query(location, iss=self.server.issuer))
        else:
            problem = msgspec.json.decode(bytes(response.body), type=dict[str, object])
            reason = str(problem.get("error_description") or problem.get("error"))
            _show_failure(http_request, f"The program asked in a wrong way: {reason}.")

    @staticmethod
    def _send_back(http_request: HttpRequest, client: SignInClient, location: str) -> None:
        """Tell a client what is wrong with its request.

        Nobody has agreed to anything yet. If a redirect followed at once, a link to us could lead
        to any site that somebody registered (RFC 9700, 4.11.2). So people decide, unless it is
        their own machine or a client of the configuration.
        """
        target = urlsplit(location)
        if client.is_configured or (target.scheme == "http" and is_loopback(target.hostname or "")):
            PAGES.redirect(http_request, location, status=302)
            return
        PAGES.show(http_request, return_page(location, describe_target(location)), 400)

    def _show_consent(self, http_request: HttpRequest, client: SignInClient, sealed: str) -> None:
        request = self.server.read_request(sealed)
        if request is None:
            _show_failure(http_request, "The request of the program cannot be read.")
            return
        # one cookie for all requests: a page that is loaded twice does not invalidate itself
        browser = self._browser(http_request.head) or secrets.token_urlsafe(32)
        question = self.server.grants.seal(ConsentQuestion(request, browser), "consent")
        provider = urlsplit(self.server.provider.issuer.provider.issuer).netloc
        PAGES.show(
            http_request,
            consent_page(client, request, provider, question, self._path + CONSENT),
            200,
            self._set_cookie(browser),
        )

    async def _take_consent(self, http_request: HttpRequest) -> None:
        """What a person has decided."""
        fields = _fields(http_request) or {}
        sealed = fields.get("request", "")
        consent = self.server.grants.unseal(sealed, ConsentQuestion, "consent", 600.0)
        browser = self._browser(http_request.head)
        if consent is None:
            _show_failure(http_request, "This page is too old.")
            return
        # the form of another browser, or of another site: its sender is not the person who agreed
        if browser is None or not secrets.compare_digest(browser, consent.browser):
            reason = "Your browser did not send our cookie, or the page is from another browser."
            _show_failure(http_request, reason, 403)
            return
        if not self._is_own_form(http_request.head):
            _show_failure(http_request, "The form was sent by another site.", 403)
            return
        request = consent.request
        where = describe_target(request.redirect_uri)
        if fields.get("decision") != "allow":
            back = self._back(request, error="access_denied", error_description="cancelled")
            PAGES.show(http_request, onward_page(back, where), 200)
            return
        if wait := self._wait(http_request.head.address):
            retry = (b"retry-after", b"%d" % (int(wait) + 1))
            busy = failure_page("Too many people sign in at this moment.", "Try again in a minute.")
            PAGES.show(http_request, busy, 429, retry)
            return
        # after the person has agreed, so nothing is stored for requests that nobody answers
        attempt = new_attempt(f"{self.server.issuer}{CALLBACK}")
        hop = Hop(request=request, browser=browser, attempt=attempt)
        state = self.server.grants.new_state()
        try:
            page = await self.server.provider.page(attempt, state)
            await self.server.grants.keep_hop(state, hop)
        except (ProviderDown, SignInRefused, MultitapError) as exc:
            logger.warning("nobody can sign in: %s", exc)
            _show_failure(http_request, "The place where you sign in does not answer.", 503)
            return
        PAGES.show(http_request, onward_page(page, urlsplit(page).netloc), 200)

    def _wait(self, address: str) -> float:
        """Count somebody who is sent to the provider; returns how long they have to wait."""
        now = time.monotonic()
        if (own := self._paces.get(address)) is None:
            if len(self._paces) >= _MOST_ADDRESSES:
                self._paces.clear()
            own = self._paces[address] = RateLimit(OWN_HOPS)
        return own.take(now) or self._pace.take(now)

    async def _come_back(self, http_request: HttpRequest) -> None:
        """A person comes back from the provider."""
        fields = _fields(http_request) or {}
        browser = self._browser(http_request.head) or ""
        try:
            hop = await self.server.grants.take_hop(fields.get("state", ""), browser)
            if hop is None:
                reason = "This sign-in was not begun in this browser, is too old, or was used."
                _show_failure(http_request, reason, 403)
                return
            answer = await self._finish(hop, fields)
        except SignInRefused as exc:
            logger.warning("a sign-in failed: %s", exc)
            _show_failure(http_request, f"The sign-in was refused: {exc}.", 403)
            return
        except (ProviderDown, MultitapError) as exc:
            logger.warning("a sign-in cannot be finished: %s", exc)
            _show_failure(http_request, "The place where you sign in does not answer.", 503)
            return
        PAGES.redirect(http_request, self._back(hop.request, **answer), status=302)

    async def _finish(self, hop: Hop, fields: Mapping[str, str]) -> dict[str, str]:
        """What the client gets after a person was at the provider."""
        try:
            signed_in = await self.server.provider.finish(hop.attempt, fields)
        except ProviderAnswered as exc:
            # the person agreed to this client in this browser, so it may know
            logger.info("a sign-in ended at the provider: %s", exc)
            return {"error": exc.error}
        return {"code": await self.server.finish(hop, signed_in)}

    def _back(self, request: AccessRequest, **values: str) -> str:
        """The address that takes the browser back to the client."""
        if request.state is not None:
            values["state"] = request.state
        return _with_query(request.redirect_uri, **values, iss=self.server.issuer)

    @property
    def _cookie_name(self) -> str:
        # the prefix makes browsers refuse a cookie that another host of the domain sets
        return "__Host-multitap-browser" if self._is_secure else "multitap-browser"

    @property
    def _is_secure(self) -> bool:
        return self.server.issuer.startswith("https:")

    def _browser(self, head: RequestHead) -> str | None:
        values = cookies(head.headers, self._cookie_name)
        return next(filter(_BROWSER.fullmatch, values), None)

    def _set_cookie(self, browser: str) -> tuple[bytes, bytes]:
        # not `Strict`: the provider is another site, and people come back from there
        return set_cookie(
            self._cookie_name, browser, _BROWSER_LIFE, same_site="Lax", is_secure=self._is_secure
        )

    def _is_own_form(self, head: RequestHead) -> bool:
        origin = head.headers.get(b"origin", b"").decode("latin-1").lower()
        site = head.headers.get(b"sec-fetch-site", b"").lower()
        own = urlsplit(self.server.issuer)
        # a page without a referrer sends `null`
        if origin not in {"", "null"}:
            return origin == f"{own.scheme}://{own.netloc}".lower()
        return site in {b"", b"same-origin"}


def open_sign_in(
    access: AccessSettings,
    verifier: Verifier,
    public_url: str,
    cluster: tuple[SignInRecords, bytes] | None = None,
) -> AuthorizationEndpoints | None:
    """The authorization server of the settings; None if they have none.

    Args:
        cluster: The records and the key that all replicas share; None outside of a cluster.

    Raises:
        ConfigError: The key that encrypts sign-ins cannot be used, or people would send what they
            sign in with over a network in the clear.
    """
    settings = access.sign_in
    provider = access.oidc.get(settings.provider) if settings is not None else None
    if settings is None or provider is None:
        return None
    url = urlsplit(public_url)
    if url.scheme != "https" and not is_loopback(url.hostname or ""):
        raise ConfigError(
            f"nobody can sign in at {public_url}: it has no TLS",
            hint="`serve.public_url` has to be an https URL, of a proxy if you like",
        )
    if cluster is None:
        records = FileRecords()
        keys = VaultKeys(private_folder(), is_used=lambda: file_stamp(records.path) is not None)
        try:
            keys.seals()  # now: a keyring may be slow, or locked, and no request should find out
        except VaultError as exc:
            raise ConfigError(str(exc), hint=exc.hint) from None
        grants = Grants(records, keys.seals, settings.refresh_life)
    else:
        seals = [Seal(cluster[1])]
        grants = Grants(cluster[0], lambda: seals, settings.refresh_life)
    scopes = [*provider.scopes, *(scope for rule in access.rules for scope in rule.scopes)]
    server = AuthorizationServer(
        settings,
        public_url,
        scopes,
        clients=Clients(settings, grants),
        grants=grants,
        provider=ProviderSignIn(verifier.issuers[provider.issuer], settings.scopes),
        refusal=lambda holder: verifier.revocations.refusal(holder, ""),
    )
    return AuthorizationEndpoints(server)


def _fields(http_request: HttpRequest) -> dict[str, str] | None:
    """The parameters of a request, with credentials of its header; None if one appears twice."""
    head = http_request.head
    if head.method == b"POST":
        text = http_request.body.decode("latin-1") if is_form(head) else ""
    else:
        text = head.url.partition(b"?")[2].decode("latin-1")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        return None
    fields = dict(pairs)
    # forbidden (RFC 6749, 3.1): a proxy before us may have looked at the other one
    if len(fields) < len(pairs):
        return None
    scheme, _, credentials = head.headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"basic":
        try:
            decoded = base64.b64decode(credentials.strip(), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return fields
        name, _, secret = decoded.partition(":")
        name = unquote_plus(name)
        # a client authenticates itself in one way at a time (RFC 6749, 2.3)
        if fields.setdefault("client_id", name) != name or "client_secret" in fields:
            return None
        fields["client_secret"] = unquote_plus(secret)
    return fields


def _with_query(address: str, **values: str) -> str:
    mark = "&" if urlsplit(address).query else "?"
    return f"{address}{mark}{urlencode(values)}"


def _say_error(http_request: HttpRequest, error: str, reason: str, status: int = 400) -> None:
    body = msgspec.json.encode({"error": error, "error_description": reason})
    extra = [(b"cache-control", b"no-store")]
    if status == 503:  # noqa: PLR2004
        extra.append((b"retry-after", b"5"))
    http_request.respond(status, (body,), kind=JSON, extra=extra)


def _show_failure(http_request: HttpRequest, reason: str, status: int = 400) -> None:
    PAGES.show(http_request, failure_page(reason, _AGAIN), status)


def _refuse_length(http_request: HttpRequest) -> None:
    http_request.say(413, f"a request has a Content-Length of at most {LARGEST} bytes")


def _refuse_method(http_request: HttpRequest) -> None:
    http_request.say(405)
