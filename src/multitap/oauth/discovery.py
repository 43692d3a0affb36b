"""Finds the authorization server of an MCP server, and checks it."""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import urlsplit

import anyio
import msgspec
from yarl import URL

from multitap.config.models import HttpServer, OAuth
from multitap.errors import RequestFailed
from multitap.http.client.client import http_client
from multitap.http.client.messages import DEFAULTS, merge
from multitap.http.client.route import show_url, without_credentials
from multitap.oauth.endpoints import FetchedReply, GuardedFetch
from multitap.oauth.errors import LoginFailed, clean
from multitap.wire.http_origin import EVENTS, JSON

_PING_TIMEOUT = 20.0
_PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
_PING_HEADERS = {"Accept": f"{JSON}, {EVENTS}", "Content-Type": JSON}
_PARAMETER = re.compile(r'([A-Za-z_][\w-]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_ESCAPED = re.compile(r"\\(.)")
_SCHEME = re.compile(r"\s*([A-Za-z][\w-]*)(?:\s|$)")
_CHALLENGE_LIMIT = 8 * 1024  # characters that are parsed
_RESOURCE = "/.well-known/oauth-protected-resource"
_OAUTH, _OPENID = (
    "/.well-known/oauth-authorization-server",
    "/.well-known/openid-configuration",
)
# MCP asks clients to send it with discovery, so that servers can answer in their version
_HEADERS = {"Mcp-Protocol-Version": "2025-11-25"}
_BUSY = 429
_BROKEN = 500


async def wanted_login(config: HttpServer) -> str | None:
    """The `WWW-Authenticate` header for a request without credentials; None if it is accepted.

    Raises:
        RequestFailed: It cannot be reached.
    """
    url, credentials = without_credentials(URL(config.url))
    headers = merge(DEFAULTS, credentials, config.headers, _PING_HEADERS)
    method, body = ("GET", None) if config.transport == "sse" else ("POST", _PING)
    try:
        with anyio.fail_after(_PING_TIMEOUT):
            async with http_client(url) as client:
                response = await client.send(client.head(method, url, headers), body)
                response.close()
    except TimeoutError:
        raise RequestFailed(f"it did not answer within {_PING_TIMEOUT:g} s", sent=True) from None
    if response.status != HTTPStatus.UNAUTHORIZED:
        return None
    return response.header("WWW-Authenticate") or ""


def parameters(challenge: str) -> Mapping[str, str]:
    """The parameters of a challenge by lower-case name; the first of a name counts."""
    values: dict[str, str] = {}
    for name, quoted, bare in _PARAMETER.findall(challenge[:_CHALLENGE_LIMIT]):
        values.setdefault(name.lower(), _ESCAPED.sub(r"\1", quoted) or bare)
    return values


def scheme(challenge: str) -> str:
    """The scheme of a challenge: `bearer`, `dpop`."""
    match = _SCHEME.match(challenge)
    return match[1].lower() if match else ""


# Not the SDK's models: they rewrite addresses, which are compared as they were sent, require a
# login page even of issuers for programs, and do not know an issuer's proofs of possession.
class ResourceMetadata(msgspec.Struct, frozen=True):
    """The protected resource metadata of a server (RFC 9728)."""

    resource: str
    authorization_servers: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] | None = None
    dpop_signing_alg_values_supported: tuple[str, ...] | None = None
    dpop_bound_access_tokens_required: bool | None = None

    @property
    def takes_proofs(self) -> bool:
        required = self.dpop_bound_access_tokens_required
        return bool(required or self.dpop_signing_alg_values_supported)


class IssuerMetadata(msgspec.Struct, frozen=True):
    """The metadata of an authorization server (RFC 8414, OpenID Connect Discovery)."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    jwks_uri: str | None = None
    introspection_endpoint: str | None = None
    userinfo_endpoint: str | None = None
    scopes_supported: tuple[str, ...] | None = None
    grant_types_supported: tuple[str, ...] | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    dpop_signing_alg_values_supported: tuple[str, ...] | None = None
    client_id_metadata_document_supported: bool | None = None
    authorization_response_iss_parameter_supported: bool | None = None


_Metadata = TypeVar("_Metadata", ResourceMetadata, IssuerMetadata)


def parse_metadata(text: bytes, kind: type[_Metadata]) -> _Metadata | None:
    """Parse metadata; None if they are not valid."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """The result of discovery for one server."""

    resource: str
    """The resource of the tokens, always sent (RFC 8707)."""
    issuer: IssuerMetadata
    is_described: bool
    """False for a server without metadata, whose issuer follows the conventions of 2025-03-26."""
    scope: str | None
    """The scope that the server asks for, if any."""
    takes_proofs: bool
    """Whether tokens are to be bound to a key (DPoP)."""


async def discover(
    fetch: GuardedFetch, server: str, challenge: str, settings: OAuth, usual: str | None = None
) -> Discovery:
    """Find the authorization server of a server, from its URL and its `WWW-Authenticate`, if any.

    `usual` is the issuer of the last login, preferred where the server names several.

    Raises:
        LoginFailed: There is none, or the metadata contradict each other or the configuration.
        RequestFailed: A server cannot be reached now.
    """
    demands = parameters(challenge)
    described = await _resource(fetch, server, demands.get("resource_metadata"))
    if described is None:
        described_issuer = await _undescribed_issuer(fetch, server, settings)
        issuer = described_issuer or _usual_endpoints(server)
    else:
        name = _choose_issuer(described.authorization_servers, settings, usual)
        described_issuer = issuer = await find_issuer(fetch, name, settings)
    scope = demands.get("scope")
    if scope is None and described is not None and described.scopes_supported is not None:
        scope = " ".join(described.scopes_supported)
    wants_proofs = scheme(challenge) == "dpop" or bool(described and described.takes_proofs)
    return Discovery(
        resource=described.resource if described else canonical(server),
        issuer=issuer,
        is_described=described_issuer is not None,
        scope=scope,
        takes_proofs=wants_proofs and "ES256" in (issuer.dpop_signing_alg_values_supported or ()),
    )


async def _resource(fetch: GuardedFetch, server: str, named: str | None) -> ResourceMetadata | None:
    failed: int | None = None
    for address in _resource_addresses(server, named):
        reply = await fetch.describe(address, _HEADERS)
        if reply.status == _BUSY or reply.status >= _BROKEN:
            failed = reply.status
        described = parse_metadata(reply.body, ResourceMetadata) if _is_ok(reply) else None
        if described is not None and described.authorization_servers:
            # or any server could send us to the login of another one and get its tokens (RFC 9728,
            # 3.3)
            if not covers(described.resource, server):
                raise LoginFailed(
                    f"its metadata is about another resource: {clean(described.resource)}"
                )
            return described
    if failed is not None:  # it may have metadata, and without them we could ask the wrong server
        raise LoginFailed(f"its metadata cannot be fetched: HTTP {failed}")
    return None


def _resource_addresses(server: str, named: str | None) -> list[str]:
    url = urlsplit(server)
    # a password in the address is for the server alone
    origin = f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
    path = [f"{origin}{_RESOURCE}{url.path.rstrip('/')}"] if url.path.strip("/") else []
    return [*filter(None, [named]), *path, f"{origin}{_RESOURCE}"]


def _choose_issuer(names: tuple[str, ...], settings: OAuth, usual: str | None) -> str:
    if settings.issuer is not None:
        configured = [name for name in names if same_issuer(name, settings.issuer)]
        if not configured:
            raise LoginFailed(
                f"it wants a login at {clean(names[0])}, and `oauth.issuer` is "
                f"{clean(settings.issuer)}"
            )
        return configured[0]
    return next((name for name in names if usual and same_issuer(name, usual)), names[0])


async def find_issuer(fetch: GuardedFetch, name: str, settings: OAuth = OAuth()) -> IssuerMetadata:
    """The metadata of an authorization server.

    Raises:
        LoginFailed: It does not describe itself, or as another one.
        RequestFailed: It cannot be reached now.
    """
    addresses = [settings.metadata_url] if settings.metadata_url else _issuer_addresses(name)
    for address in addresses:
        reply = await fetch.describe(address, _HEADERS)
        if reply.status >= _BROKEN:
            raise LoginFailed(f"{clean(address)} answers with HTTP {reply.status}")
        issuer = parse_metadata(reply.body, IssuerMetadata) if _is_ok(reply) else None
        if issuer is not None:
            # or one authorization server could impersonate another
            if not same_issuer(issuer.issuer, name):
                raise LoginFailed(
                    f"the metadata of {clean(name)} is about another issuer: {clean(issuer.issuer)}"
                )
            return issuer
    raise LoginFailed(f"the authorization server {clean(name)} does not describe itself")


def _issuer_addresses(name: str) -> list[str]:
    url = urlsplit(name)
    origin, path = f"{url.scheme}://{url.netloc}", url.path.rstrip("/")
    # in the order of MCP's specification
    if not path:
        return [f"{origin}{_OAUTH}", f"{origin}{_OPENID}"]
    return [f"{origin}{_OAUTH}{path}", f"{origin}{_OPENID}{path}", f"{origin}{path}{_OPENID}"]


async def _undescribed_issuer(
    fetch: GuardedFetch, server: str, settings: OAuth
) -> IssuerMetadata | None:
    """The issuer by the rules of 2025-03-26: the server is its own authorization server."""
    origin = str(URL(server).origin())
    # or the server could describe the configured issuer with a token endpoint of its own
    if settings.issuer is not None and not same_issuer(settings.issuer, origin):
        return await find_issuer(fetch, settings.issuer, settings)
    reply = await fetch.describe(settings.metadata_url or f"{origin}{_OAUTH}", _HEADERS)
    issuer = parse_metadata(reply.body, IssuerMetadata) if _is_ok(reply) else None
    if issuer is not None and not same_issuer(issuer.issuer, origin):
        raise LoginFailed(f"its metadata is about another issuer: {clean(issuer.issuer)}")
    return issuer


def _usual_endpoints(server: str) -> IssuerMetadata:
    origin = str(URL(server).origin())
    return IssuerMetadata(
        issuer=origin,
        authorization_endpoint=f"{origin}/authorize",
        token_endpoint=f"{origin}/token",
        registration_endpoint=f"{origin}/register",
    )


def canonical(server: str) -> str:
    """A server's URL in canonical form, as a resource identifier."""
    return show_url(URL(server)).rstrip("/")


def covers(resource: str, server: str) -> bool:
    """Whether tokens for a resource are valid for a server: its URL, or a path above it."""
    try:
        wide, narrow = URL(resource), URL(server)
        same = wide.origin() == narrow.origin()
    except ValueError:
        return False
    path = wide.path.rstrip("/")
    return same and (narrow.path.rstrip("/") == path or narrow.path.startswith(f"{path}/"))


def same_issuer(issuer: str, other: str) -> bool:
    """Whether two issuers are the same, apart from a trailing slash of a root."""
    if issuer == other:
        return True
    shorter, longer = sorted((issuer, other), key=len)
    return longer == f"{shorter}/" and not urlsplit(shorter).path


def _is_ok(reply: FetchedReply) -> bool:
    return reply.status == 200  # noqa: PLR2004
