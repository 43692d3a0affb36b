"""Finds the authorization server of an MCP server, and checks it."""

from urllib.parse import urlsplit

from yarl import URL

from multitap.config import OAuth
from multitap.http.client.origins import show_url
from multitap.records import dataclass
from multitap.upstream.oauth.challenge_words import parameters, scheme
from multitap.upstream.oauth.guarded_fetch import FetchedReply, GuardedFetch
from multitap.upstream.oauth.issuer_metadata import IssuerMetadata, ResourceMetadata, parse_metadata
from multitap.upstream.oauth.oauth_errors import LoginFailed, clean

_RESOURCE = "/.well-known/oauth-protected-resource"
_OAUTH, _OPENID = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
# MCP asks clients to send it with discovery, so that servers can answer in their version
_HEADERS = {"Mcp-Protocol-Version": "2025-11-25"}
_BUSY = 429
_BROKEN = 500


@dataclass(frozen=True, slots=True)
class Discovery:
    """The result of discovery for one server."""

    resource: str
    """The resource of the tokens, always sent (RFC 8707)."""
    issuer: IssuerMetadata
    is_described: bool
    """False for an old server without metadata, whose issuer follows older conventions."""
    scope: str | None
    """The scope that the server asks for, if any."""
    takes_proofs: bool
    """Whether tokens are to be bound to a key (DPoP)."""


async def discover(
    fetch: GuardedFetch, server: str, challenge: str, known: OAuth, usual: str | None = None
) -> Discovery:
    """Find the authorization server of a server.

    Args:
        fetch: How to ask.
        server: The server's URL.
        challenge: Its `WWW-Authenticate`; empty if it did not say anything.
        known: The OAuth settings.
        usual: The issuer of the last login, preferred where the server names several.

    Raises:
        LoginFailed: There is none, or the metadata contradict each other or the configuration.
        RequestFailed: A server cannot be reached now.
    """
    said = parameters(challenge)
    described = await _resource(fetch, server, said.get("resource_metadata"))
    if described is None:
        issuer = await _undescribed_issuer(fetch, server, known)
        found = issuer or _usual_endpoints(server)
    else:
        name = _choose_issuer(described.authorization_servers, known, usual)
        issuer = found = await _issuer(fetch, name, known)
    asked = said.get("scope")
    if asked is None and described is not None and described.scopes_supported is not None:
        asked = " ".join(described.scopes_supported)
    wants_proofs = scheme(challenge) == "dpop" or bool(described and described.takes_proofs)
    return Discovery(
        resource=described.resource if described else canonical(server),
        issuer=found,
        is_described=issuer is not None,
        scope=asked,
        takes_proofs=wants_proofs and "ES256" in (found.dpop_signing_alg_values_supported or ()),
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


def _choose_issuer(names: tuple[str, ...], known: OAuth, usual: str | None) -> str:
    if known.issuer is not None:
        wanted = [name for name in names if same_issuer(name, known.issuer)]
        if not wanted:
            raise LoginFailed(
                f"it wants a login at {clean(names[0])}, and `oauth.issuer` is "
                f"{clean(known.issuer)}"
            )
        return wanted[0]
    return next((name for name in names if usual and same_issuer(name, usual)), names[0])


async def _issuer(fetch: GuardedFetch, name: str, known: OAuth) -> IssuerMetadata:
    addresses = [known.metadata_url] if known.metadata_url else _issuer_addresses(name)
    for address in addresses:
        reply = await fetch.describe(address, _HEADERS)
        if reply.status >= _BROKEN:
            raise LoginFailed(f"{clean(address)} answers with HTTP {reply.status}")
        found = parse_metadata(reply.body, IssuerMetadata) if _is_ok(reply) else None
        if found is not None:
            # or one authorization server could impersonate another
            if not same_issuer(found.issuer, name):
                raise LoginFailed(
                    f"the metadata of {clean(name)} is about another issuer: {clean(found.issuer)}"
                )
            return found
    raise LoginFailed(f"the authorization server {clean(name)} does not describe itself")


def _issuer_addresses(name: str) -> list[str]:
    url = urlsplit(name)
    origin, path = f"{url.scheme}://{url.netloc}", url.path.rstrip("/")
    if not path:
        return [f"{origin}{_OAUTH}", f"{origin}{_OPENID}"]
    return [f"{origin}{_OAUTH}{path}", f"{origin}{_OPENID}{path}", f"{origin}{path}{_OPENID}"]


async def _undescribed_issuer(
    fetch: GuardedFetch, server: str, known: OAuth
) -> IssuerMetadata | None:
    """The issuer by the rules of 2025-03-26: the server is its own authorization server."""
    origin = str(URL(server).origin())
    # or the server could describe the configured issuer with a token endpoint of its own
    if known.issuer is not None and not same_issuer(known.issuer, origin):
        return await _issuer(fetch, known.issuer, known)
    reply = await fetch.describe(known.metadata_url or f"{origin}{_OAUTH}", _HEADERS)
    found = parse_metadata(reply.body, IssuerMetadata) if _is_ok(reply) else None
    if found is not None and not same_issuer(found.issuer, origin):
        raise LoginFailed(f"its metadata is about another issuer: {clean(found.issuer)}")
    return found


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


def same_issuer(one: str, other: str) -> bool:
    """Whether two issuers are the same, apart from a trailing slash of a root."""
    if one == other:
        return True
    shorter, longer = sorted((one, other), key=len)
    return longer == f"{shorter}/" and not urlsplit(shorter).path


def _is_ok(reply: FetchedReply) -> bool:
    return reply.status == 200  # noqa: PLR2004
