"""The gateway as an OAuth resource server: metadata, challenges, admission by foreign tokens."""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol
from urllib.parse import parse_qs, quote, unquote_to_bytes, urlsplit

import anyio.to_thread

from multitap.config import Profile
from multitap.config.access import AccessSettings
from multitap.errors import ConfigError, MultitapError
from multitap.gateway.fronts.http import LOGOUT
from multitap.gateway.fronts.tokens import Admitted
from multitap.http.server.request import HttpRequest, Rejected, RequestHead, ToDo
from multitap.identity import proofs
from multitap.identity.access_tokens import MissingScopes, ProviderDown, TokenRefused, is_jwt
from multitap.identity.proofs import ProofRefused, Proofs
from multitap.identity.verifier import NotAdmitted, OwnTokens, TokenDecision, Verifier
from multitap.wire import jsonrpc

logger = logging.getLogger(__name__)

WELL_KNOWN = b"/.well-known/oauth-protected-resource"
MCP = b"/mcp"
_SSE = frozenset({b"/sse", b"/messages"})
_SCHEMES = frozenset({b"bearer", b"dpop"})
_MOST_LOGOUT = 64 * 1024  # bytes of a logout request, which anybody can send
_LISTENS = b"subscriptions/listen"


class SignInFront(Protocol):
    """Signs people in for clients that know only the URL of the gateway."""

    @property
    def server(self) -> OwnTokens:
        """Verifies the tokens that it issues."""
        ...

    @property
    def paths(self) -> Collection[bytes]:
        """The paths that are its own."""
        ...

    def route(self, head: RequestHead) -> Callable[[HttpRequest], ToDo] | None:
        """The handler of a request that belongs to a sign-in; None for all others."""
        ...


Expand = Callable[[AccessSettings], AccessSettings]
"""Expands the variables in the settings; raises `ConfigError`."""


class ResourceServer:
    """Admits the tokens of identity providers.

    Args:
        access: The current settings; read again when they are another object.

    Raises:
        ConfigError: There is no public URL.
    """

    def __init__(
        self,
        public_url: str | None,
        access: Callable[[], AccessSettings],
        profiles: Callable[[], Mapping[str, Profile]],
        *,
        expand: Expand = lambda access: access,
        make_verifier: Callable[[AccessSettings], Verifier] = Verifier,
        make_sign_in: Callable[[AccessSettings, Verifier], SignInFront | None] | None = None,
    ) -> None:
        # configured, never from a Host or a proxy's header: it is what tokens are bound to
        self.public_url = canonical_url(public_url)
        self.host = urlsplit(self.public_url).hostname or ""
        self._prefix = urlsplit(self.public_url).path.encode()
        self._access = access
        self._profiles = profiles
        self._expand = expand
        self._make_verifier = make_verifier
        self._make_sign_in = make_sign_in
        self._settings = access()
        self.sign_in: SignInFront | None = None
        self.verifier = self._verifier_for(self._settings)
        self._proofs = Proofs()

    def follow_settings(self) -> bool:
        """Apply changed settings; whether there were any."""
        settings = self._access()
        if settings is self._settings or settings == self._settings:
            return False
        # also if they turn out to be wrong: or each look would try them again, and warn
        self._settings = settings
        try:
            verifier = self._verifier_for(settings, self.verifier)
        except ConfigError as exc:
            logger.warning("keeping the previous access settings: %s", exc)
            return False
        self.verifier = verifier
        return True

    def _verifier_for(self, settings: AccessSettings, before: Verifier | None = None) -> Verifier:
        expanded = self._expand(settings)
        verifier = self._make_verifier(expanded)
        verifier.public_url = self.public_url
        if before is not None:
            verifier.take_over(before)
        if self._make_sign_in is not None:
            self.sign_in = self._make_sign_in(expanded, verifier)
        verifier.own = None if self.sign_in is None else self.sign_in.server
        return verifier

    def admit_now(self, head: RequestHead) -> Admitted | Rejected | None:
        """Admit or reject a request by its token; None if a provider has to be asked first."""
        resource = resource_of(head.path)
        scheme, token = _credentials(head)
        try:
            verifier = self.verifier
            # remembered ones first: they need no URL of the resource
            decision = verifier.remembered(token, resource) or verifier.decide_now(
                token, resource, (self.url_of(resource),)
            )
            return None if decision is None else self._admit(head, decision, scheme, token)
        except (TokenRefused, NotAdmitted) as exc:
            return self._reject(resource, exc)

    async def admit(self, head: RequestHead) -> Admitted | Rejected:
        """Admit or reject a request by its token, and ask its provider if necessary."""
        resource = resource_of(head.path)
        scheme, token = _credentials(head)
        try:
            return self._admit(head, await self.decide(token, resource), scheme, token)
        except (TokenRefused, NotAdmitted, ProviderDown) as exc:
            return self._reject(resource, exc)
        except MultitapError as exc:  # the records of our own sign-ins cannot be read now
            logger.warning("a token cannot be checked: %s", exc)
            return self._reject(resource, ProviderDown(str(exc)))

    async def decide(self, token: bytes, resource: bytes = MCP) -> TokenDecision:
        """Decide about a token at a resource; see `Verifier.decide`."""
        while True:
            verifier = self.verifier
            decision = await verifier.decide(token, resource, (self.url_of(resource),))
            # rules or revocations may have changed while the provider was asked
            if verifier is self.verifier:
                return decision

    def url_of(self, resource: bytes) -> str:
        """The identifier of a resource: its URL."""
        return f"{self.public_url}{quote(resource.decode('latin-1'))}"

    def challenge(
        self,
        resource: bytes,
        error: str = "",
        description: str = "",
        scopes: Iterable[str] | None = None,
    ) -> tuple[tuple[bytes, bytes], ...]:
        """The `WWW-Authenticate` header of a refusal.

        Args:
            error: The error code; empty if there were no credentials.
            scopes: The scopes to ask for; by default, those that every request needs.
        """
        providers = self._settings.oidc.values()
        needed = [*dict.fromkeys(scope for provider in providers for scope in provider.scopes)]
        needed += [scope for scope in scopes or () if scope not in needed]
        members = {
            "resource_metadata": f"{self._origin}{WELL_KNOWN.decode()}{self._path_of(resource)}",
            "scope": " ".join(needed),
            "error": error,
            "error_description": description.replace('"', "'").replace("\\", "/"),
        }
        text = ", ".join(f'{name}="{value}"' for name, value in members.items() if value)
        values = [b"Bearer " + text.encode("ascii", "replace")]
        if error == "invalid_dpop_proof" or any(provider.require_dpop for provider in providers):
            algorithms = " ".join(proofs.ALGORITHMS)
            values.insert(0, f'DPoP algs="{algorithms}", {text}'.encode("ascii", "replace"))
        return tuple((b"www-authenticate", value) for value in values)

    def step_up(
        self, head: RequestHead, scopes: Collection[str]
    ) -> tuple[tuple[bytes, bytes], ...]:
        """The header that asks a client for a token with more scopes."""
        description = "this tool needs more scopes"
        owned = sorted(head.admitted.scopes)
        return self.challenge(
            resource_of(head.path), "insufficient_scope", description, [*owned, *scopes]
        )

    def is_sign_in(self, head: RequestHead) -> bool:
        """Whether a request belongs to a sign-in, which nobody needs a token for."""
        return self.sign_in is not None and head.path in self.sign_in.paths

    def route(self, head: RequestHead) -> Callable[[HttpRequest], ToDo] | None:
        """The handler of a request that needs no credentials, if it is one of ours."""
        if head.path.startswith(WELL_KNOWN) and head.method in {b"GET", b"HEAD"}:
            return self._describe
        if self.sign_in is not None and (handler := self.sign_in.route(head)) is not None:
            return handler
        if head.path.startswith(LOGOUT) and head.method == b"POST":
            length = head.headers.get(b"content-length", b"")
            head.keeps_body = length.isdigit() and int(length) <= _MOST_LOGOUT
            return self._log_out
        return None

    def is_over(self, head: RequestHead, now: float) -> bool:
        """Whether a stream of changes was opened with a token that has expired since."""
        # calls in progress are answered: they were allowed when they began
        return _listens(head) and head.admitted is not None and now >= head.admitted.expires

    def is_lasting(self, head: RequestHead) -> bool:
        """Whether a stream of changes was opened with a token that can end at any time."""
        admitted = head.admitted
        if not _listens(head) or admitted is None or not admitted.digest:
            return False
        # a JWT says itself when it ends; see `is_over`
        return not is_jwt(_credentials(head)[1].decode("latin-1"))

    async def has_ended(self, head: RequestHead) -> bool:
        """Whether the token of a request that was admitted would not be any more."""
        try:
            await self.decide(_credentials(head)[1], resource_of(head.path))
        except (TokenRefused, NotAdmitted):
            return True
        except (ProviderDown, MultitapError):  # also the records of our own sign-ins
            return False  # nothing is known; see `Issuer.introspect`
        return False

    def _describe(self, http_request: HttpRequest) -> None:
        resource = self._described(http_request.head.path.removeprefix(WELL_KNOWN))
        if resource is None:
            http_request.say(404, "there is no such resource")
            return
        document = jsonrpc.encode(self._metadata(resource))
        http_request.respond(200, (document,), extra=[(b"cache-control", b"max-age=300")])

    def _metadata(self, resource: bytes) -> dict[str, object]:
        providers = [*self._settings.oidc.values()]
        scopes = [*dict.fromkeys(scope for provider in providers for scope in provider.scopes)]
        document: dict[str, object] = {
            "resource": self.url_of(resource),
            # only ourselves if we can: clients choose one, and not each can use the provider
            "authorization_servers": [provider.issuer for provider in providers]
            if self.sign_in is None
            else [self.public_url],
            "bearer_methods_supported": ["header"],
            "resource_name": "Multitap",
        }
        if scopes:  # clients that see no challenge ask for all of these
            document["scopes_supported"] = scopes
        if any(provider.require_dpop for provider in providers):
            document["dpop_signing_alg_values_supported"] = [*proofs.ALGORITHMS]
        if providers and all(provider.require_dpop for provider in providers):
            document["dpop_bound_access_tokens_required"] = True
        return document

    def _described(self, suffix: bytes) -> bytes | None:
        """The resource that a metadata path is about."""
        path = suffix.removeprefix(self._prefix).rstrip(b"/") or MCP
        if path in {MCP, b"/sse"}:
            return path
        return path if profile_in(path) in self._profiles() else None

    async def _log_out(self, http_request: HttpRequest) -> None:
        head = http_request.head
        if not head.keeps_body:
            http_request.say(413, "a logout request has a short form and a Content-Length")
            return
        name = head.path.removeprefix(LOGOUT).decode("latin-1")
        form = parse_qs(http_request.body.decode("latin-1"))
        try:
            entry = await self.verifier.log_out(name, form.get("logout_token", [""])[0])
            await anyio.to_thread.run_sync(self.verifier.people.decide, entry)
        except TokenRefused as exc:
            error = jsonrpc.encode({"error": "invalid_request", "error_description": str(exc)})
            http_request.respond(400, (error,), extra=[(b"cache-control", b"no-store")])
        except (ProviderDown, MultitapError, OSError) as exc:
            logger.warning("a logout of %s cannot be applied: %s", name, exc)
            http_request.say(503, "the logout cannot be applied now")
        else:
            http_request.say(200, extra=[(b"cache-control", b"no-store")])

    def _admit(
        self, head: RequestHead, decision: TokenDecision, scheme: bytes, token: bytes
    ) -> Admitted:
        thumbprint, used = decision.token.key_thumbprint, b""
        provider = self.verifier.issuers[decision.token.issuer].provider
        if thumbprint:
            if scheme != b"dpop":
                raise ProofRefused("the token is bound to a key: use the DPoP scheme and a proof")
            url = f"{self.public_url}{quote(head.path.decode('latin-1'))}"
            proof = head.headers.get(b"dpop")
            used = self._proofs.check(proof, token, thumbprint, head.method, url)
            head.edition = None  # each proof is for one request
        elif scheme == b"dpop" or provider.require_dpop:
            raise ProofRefused("the token is not bound to a key")
        rights = decision.rights
        return Admitted(
            decision.principal,
            None,
            (),
            decision.rate,
            (*rights.grants, *rights.locked),
            rights.deny,
            rights.is_admin,
            decision.digest,
            decision.token.expires + provider.leeway,
            decision.token.scopes,
            used,
        )

    def refuse_used_proof(self, head: RequestHead) -> Rejected:
        """The rejection of a request whose proof another replica has seen."""
        return self._reject(resource_of(head.path), ProofRefused(proofs.USED))

    def _reject(self, resource: bytes, exc: Exception) -> Rejected:
        match exc:
            case ProviderDown():
                # never 401, with which a client throws away a good token and has people sign in
                seconds = max(1, math.ceil(exc.retry_after))
                reason = "the identity provider cannot be asked now: try again in a moment"
                return Rejected(503, reason, ((b"retry-after", b"%d" % seconds),))
            case NotAdmitted():
                return Rejected(403, str(exc))  # without a challenge: no other token would help
            case MissingScopes():
                challenge = self.challenge(resource, "insufficient_scope", str(exc))
                return Rejected(403, str(exc), challenge)
            case ProofRefused():
                return Rejected(
                    401, str(exc), self.challenge(resource, "invalid_dpop_proof", str(exc))
                )
            case _:
                return Rejected(401, str(exc), self.challenge(resource, "invalid_token", str(exc)))

    @property
    def _origin(self) -> str:
        url = urlsplit(self.public_url)
        return f"{url.scheme}://{url.netloc}"

    def _path_of(self, resource: bytes) -> str:
        return f"{self._prefix.decode()}{quote(resource.decode('latin-1'))}"


def _listens(head: RequestHead) -> bool:
    return head.method == b"GET" or head.headers.get(b"mcp-method") == _LISTENS


def resource_of(path: bytes) -> bytes:
    """The resource that a path belongs to; each has tokens of its own."""
    # the old transport and the new one are two resources to clients, which know only one of them
    if path in _SSE:
        return b"/sse"
    return path if path.startswith(b"/mcp/") else MCP


def profile_in(path: bytes) -> str | None:
    """The profile in `/mcp/NAME`, if it is such a path."""
    if not path.startswith(b"/mcp/"):
        return None
    return unquote_to_bytes(path.removeprefix(b"/mcp/")).decode("utf-8", "replace")


def has_foreign_scheme(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request has credentials that an identity provider may have issued."""
    return headers.get(b"authorization", b"").partition(b" ")[0].lower() in _SCHEMES


def canonical_url(url: str | None) -> str:
    """The public URL in its canonical form.

    Raises:
        ConfigError: There is none, or it is not one.
    """
    if url is None:
        raise ConfigError(
            "`[access.oidc]` needs the URL under which people reach the gateway",
            hint='write `public_url = "https://tap.example.com"` under [serve]',
        )
    parts = urlsplit(url)
    if parts.scheme.lower() not in {"http", "https"} or not parts.hostname or parts.query:
        raise ConfigError(f"`serve.public_url`: {url!r} is not the URL of a gateway")
    path = parts.path.rstrip("/").removesuffix("/mcp")
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}{path}"


def _credentials(head: RequestHead) -> tuple[bytes, bytes]:
    scheme, _, credentials = head.headers.get(b"authorization", b"").partition(b" ")
    return scheme.lower(), credentials.strip()
