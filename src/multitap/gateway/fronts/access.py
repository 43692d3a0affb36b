"""Decides who may use an HTTP front: by Host, Origin, token and local user.

A page of another origin can use the gateway only if the configuration names that origin. Documents
about the gateway, below `/.well-known/`, are for everybody: they say how to get in, and no more.
"""

import hmac
import ipaddress
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

import msgspec

from multitap.catalog.audience import Audience
from multitap.errors import ConfigError
from multitap.gateway.fronts.tokens import ANYBODY, ActiveKeys, Admitted, Token, TokenSources
from multitap.http.addresses import is_loopback
from multitap.http.server.connections import address_of
from multitap.http.server.peer import Peer, PeerUsers
from multitap.http.server.proxies import TrustedProxies, parse_address
from multitap.http.server.request import HttpRequest, Rejected, RequestHead
from multitap.principal import FILE_ISSUER, Principal, local_principal
from multitap.trust.tokens import AccessTokens

PUBLIC = b"/.well-known/"
FOREIGN = Rejected(
    403, "pages of this Origin may not use the gateway; `serve.allow_origins` allows it"
)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:]+\]|[a-z0-9._-]+)(:\d{1,5})?")
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")
_METHODS = b"GET, POST, DELETE"
_EXPOSED = b"WWW-Authenticate, Mcp-Session-Id, Mcp-Protocol-Version, Retry-After, Last-Event-ID"
"""What scripts may read of a response besides its body: how to log in, and in which session."""
_REMEMBERED = b"7200"
"""Seconds; the longest time for which Chrome remembers the answer to a preflight."""
CREATE = "`multitap token create NAME` creates one"
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?")
_PAGE = re.compile(r"[a-z][a-z0-9+.-]*://(.+)")
_KNOWN = 256
"""Accepted combinations of Host, Origin and site that are remembered."""
_SINGLE = frozenset(
    {
        b"host",
        b"origin",
        b"authorization",
        b"dpop",
        b"content-type",
        b"mcp-session-id",
        b"sec-fetch-site",
    }
)
"""Headers that must not be repeated, because receivers would disagree about their value."""
_OWN_SITES = frozenset({b"", b"none", b"same-origin"})
"""`Sec-Fetch-Site` of requests that are not from other sites; other programs do not send it."""
_WRONG_HOST = Rejected(421, "this Host is not served here; `--allow-host` allows it")
_CHALLENGE = ((b"www-authenticate", b"Bearer"),)
_FORWARDED = frozenset(
    {b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip"}
)
"""Headers that proxies add, besides `X-Forwarded-…`."""


class Cors:
    """Answers browsers that ask what a page may do.

    Raises:
        ConfigError: One of them is not an origin.
    """

    def __init__(self, origins: Sequence[str] = ()) -> None:
        self.origins = frozenset(_origin(text).encode() for text in origins)

    def mark(self, head: RequestHead) -> None:
        """Set the headers with which a browser lets a page read the response, if it may."""
        origin = head.headers.get(b"origin", b"")
        if head.url.startswith(PUBLIC):
            head.cors = b"access-control-allow-origin: *\r\n"
        elif origin.lower() in self.origins:
            head.cors = (
                b"access-control-allow-origin: %b\r\nvary: origin\r\n"
                b"access-control-expose-headers: %b\r\n" % (origin, _EXPOSED)
            )


def is_preflight(head: RequestHead) -> bool:
    """Whether a browser asks if a page may make a request, which it then makes with a token."""
    return head.method == b"OPTIONS" and b"access-control-request-method" in head.headers


def answer_preflight(http_request: HttpRequest) -> None:
    """Say what a page may send."""
    head = http_request.head
    extra = [
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-max-age", _REMEMBERED),
    ]
    # any: `Mcp-Param-…` depend on the tools, and what a header says is checked when it is used
    names = head.headers.get(b"access-control-request-headers", b"")
    if _HEADER_NAMES.fullmatch(names):
        extra.append((b"access-control-allow-headers", names))
    # Chrome asks before a page of the internet may reach an address of this network
    if head.headers.get(b"access-control-request-private-network") == b"true":
        extra.append((b"access-control-allow-private-network", b"true"))
    http_request.say(204, extra=extra)


def _origin(text: str) -> str:
    origin = text.strip().lower()
    if _ORIGIN.fullmatch(origin) is None:
        raise ConfigError(
            f"{text!r} under `serve.allow_origins` is not an origin",
            hint="use a scheme, a host and its port, as in https://app.example.com:8443;"
            " `*` is not possible",
        )
    return origin


class AnonymousAccess(Enum):
    """How requests without a token are treated."""

    ADMITTED = "admitted"
    OWN_USER = "own user"
    """Admitted if it comes from our own user on this machine."""
    REFUSED = "refused"


class AccessRules(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `serve` about access."""

    host: str
    """Where the front listens."""
    hosts: tuple[str, ...] = ()
    """Further host names that it answers to."""
    token_file: Path | None = None
    """A file with more tokens; with it, every client needs a token."""
    require_token: bool = False
    """Whether every client needs a token."""
    insecure: bool = False
    """Whether no client needs a token."""
    origins: tuple[str, ...] = ()
    """The origins of web pages that may use it."""
    proxies: tuple[str, ...] = ()
    """Addresses of proxies whose word about their clients counts."""
    has_providers: bool = False
    """Whether identity providers admit people: then every client needs a token."""


class FrontAccess(msgspec.Struct, frozen=True):
    """The access rules of a running front."""

    access: "Access"
    sources: TokenSources
    is_token_required: bool
    is_user_unknown: bool
    """Whether a token is required only because this machine does not tell users apart."""


@contextmanager
def open_access(rules: AccessRules) -> Generator[FrontAccess]:
    """While entered, requests can be admitted or rejected.

    Raises:
        ConfigError: Other machines could connect without a token, or the tokens cannot be read.
    """
    sources = TokenSources(AccessTokens(), rules.token_file)
    _check_exposure(rules, sources)
    with PeerUsers() as users:
        # also if clients need tokens: the console lets no other users in
        is_told = users.can_tell(rules.host if is_loopback(rules.host) else "127.0.0.1")
        unnamed, is_user_unknown = _without_token(rules, is_told=is_told)
        access = Access(
            rules.host,
            sources.tokens,
            rules.hosts,
            keys=sources.keys,
            unnamed=unnamed,
            users=users if is_told else None,
            origins=rules.origins,
            proxies=rules.proxies,
        )
        yield FrontAccess(access, sources, unnamed is AnonymousAccess.REFUSED, is_user_unknown)


def _check_exposure(rules: AccessRules, sources: TokenSources) -> None:
    """Refuse to serve the network without tokens, unless the options allow it."""
    if is_loopback(rules.host) or rules.insecure or rules.require_token or len(sources):
        return
    if rules.has_providers:
        return
    raise ConfigError(
        f"{rules.host!r} is reachable from other machines, and there is no token yet",
        hint=f"{CREATE}; or listen on 127.0.0.1, or allow it: `--insecure`, or `insecure = true`"
        " under [serve]",
    )


def _without_token(rules: AccessRules, *, is_told: bool) -> tuple[AnonymousAccess, bool]:
    """How clients without a token are treated, and whether only because users are unknown."""
    # a proxy on this machine may run as our user, and need not say that it is one
    if rules.token_file is not None or rules.require_token or rules.has_providers:
        return AnonymousAccess.REFUSED, False
    if rules.insecure:
        return AnonymousAccess.ADMITTED, False
    if not is_loopback(rules.host):
        return AnonymousAccess.REFUSED, False
    return (AnonymousAccess.OWN_USER, False) if is_told else (AnonymousAccess.REFUSED, True)


class Access:
    """Admits or rejects each request by its headers alone.

    A token must be valid even if none is required, so that a revoked one is refused.

    Args:
        unnamed: How requests without a token are treated; by default, refused if there are tokens.
        users: Identifies local users; None if this system cannot.
        proxies: Addresses of proxies whose word about their clients counts.

    Raises:
        ConfigError: An origin or a proxy is not valid.
    """

    def __init__(
        self,
        host: str,
        tokens: tuple[Token, ...] = (),
        hosts: tuple[str, ...] = (),
        *,
        keys: ActiveKeys | None = None,
        unnamed: AnonymousAccess | None = None,
        users: PeerUsers | None = None,
        origins: tuple[str, ...] = (),
        proxies: tuple[str, ...] = (),
    ) -> None:
        self.cors = Cors(origins)
        self.proxies = TrustedProxies(proxies) if proxies else None
        self.tokens = tokens
        self.keys = keys
        self._unnamed = unnamed or (AnonymousAccess.REFUSED if tokens else AnonymousAccess.ADMITTED)
        self._users = users
        self._own_user = Admitted(local_principal())
        named = {*_LOOPBACK, *hosts, f"[{host}]" if ":" in host else host}
        self._anywhere = host in {"0.0.0.0", "::", ""}  # noqa: S104 - compared, not bound
        self._names = frozenset(name.lower() for name in named)
        self._known: set[tuple[bytes, bytes, bytes]] = set()

    def decide(
        self, headers: Mapping[bytes, bytes], peer: Peer | None = None
    ) -> Admitted | Rejected:
        """Admit or reject a request by its headers and its peer."""
        if (denied := self.check_address(headers)) is not None:
            return denied
        scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer":
            return self._bearer(credentials.strip())
        return self._without_token(headers, peer)

    def check_address(self, headers: Mapping[bytes, bytes]) -> Rejected | None:
        """Check Host, Origin and site only; returns the rejection, if any."""
        key = (
            headers.get(b"host", b""),
            headers.get(b"origin", b""),
            headers.get(b"sec-fetch-site", b""),
        )
        if key in self._known:
            return None
        if (denied := self._address(*key)) is not None:
            return denied
        # bounded: strangers can invent any number of them
        if len(self._known) < _KNOWN:
            self._known.add(key)
        return None

    def check_host(self, headers: Mapping[bytes, bytes]) -> Rejected | None:
        """Check Host only; returns the rejection, if any."""
        called = _name(headers.get(b"host", b"").decode("latin-1"))
        return None if called is not None and self._is_ours(called) else _WRONG_HOST

    def follow_proxy(self, head: RequestHead) -> Rejected | None:
        """Attribute a request to the client that a trusted proxy names.

        Returns the rejection, if the client asked the proxy for a host that is not ours: otherwise
        a page of another site could reach us by a name of its own.
        """
        peer, proxies = head.peer, self.proxies
        if proxies is None:
            return None
        peer.is_proxy = peer.is_proxy or proxies.trusts(parse_address(peer.host))
        nearest = peer.client or peer.host
        if not peer.is_proxy or not proxies.trusts(parse_address(nearest)):
            return None
        client = proxies.client(head.pairs)
        if client.address is not None:
            head.address = head.holder = address_of(client.address)
        if client.host is not None:
            named = _name(client.host)
            if named is None or not self._is_ours(named):
                return _WRONG_HOST
        return None

    def without_origin(self, headers: Mapping[bytes, bytes], peer: Peer) -> Rejected | None:
        """Check Host and local user only; returns the rejection, if any.

        For the console, which has its own credentials and rules about origins. Whether clients need
        a token or not, other users of this machine get nothing: they may have found a key.
        """
        if denied := self.check_host(headers):
            return denied
        if self._users is not None and peer.may_be_stranger(self._users):
            reason = "other users of this machine, and confined servers, may not use the console"
            return Rejected(403, reason)
        return None

    def find_token(self, secret: bytes) -> Admitted | None:
        """What one of the gateway's own tokens admits; None if it is unknown or has ended."""
        admitted = self._bearer(secret)
        return admitted if isinstance(admitted, Admitted) else None

    def is_active(self, key: str) -> bool:
        """Whether the token of a principal, given by its key, is still valid."""
        if any(token.principal == key for token in self.tokens):
            return True
        return self.keys is not None and key in self.keys.tokens

    def audience_of(self, key: str) -> Audience:
        """What the token of a principal, given by its key, shows; nothing if it has ended."""
        named = [token.profile for token in self.tokens if token.principal == key]
        named += [self.keys.tokens[key].profile] if self.keys and key in self.keys.tokens else []
        return Audience.of(*named) if named else Audience.of(deny=("*",))

    def _address(self, host: bytes, origin: bytes, site: bytes) -> Rejected | None:
        called = _name(host.decode("latin-1"))
        if called is None or not self._is_ours(called):
            return _WRONG_HOST
        if origin:
            page = _PAGE.fullmatch(origin.decode("latin-1").lower())
            came_from = _name(page[1]) if page else None
            # a page of our own, such as the console
            is_ours = came_from is not None and (came_from in self._names or came_from == called)
            if not is_ours and origin.lower() not in self.cors.origins:
                return Rejected(403, "this Origin may not use the gateway")
        elif site.lower() not in _OWN_SITES:  # images, scripts and links send no Origin
            return Rejected(403, "pages of other sites may not use the gateway")
        return None

    def _is_ours(self, name: str) -> bool:
        """Whether a Host is ours, as a protection against DNS rebinding.

        If we listen on all addresses, any numeric one is accepted. If tokens are required, every
        name is.
        """
        # rebinding needs a name; and a page that comes by one has no token of its user
        return name in self._names or (
            self._anywhere and (self._unnamed is AnonymousAccess.REFUSED or _is_address(name))
        )

    def _bearer(self, secret: bytes) -> Admitted | Rejected:
        admitted = None
        for token in self.tokens:  # no early exit: constant time
            if hmac.compare_digest(secret, token.secret):
                admitted = Admitted(
                    Principal(token.principal, FILE_ISSUER, token.subject or token.principal),
                    token.profile,
                )
        if admitted is None and self.keys is not None:
            admitted = self.keys.find(secret)
        return admitted or Rejected(401, "this token is unknown, expired or revoked", _CHALLENGE)

    def _without_token(
        self, headers: Mapping[bytes, bytes], peer: Peer | None
    ) -> Admitted | Rejected:
        if self._unnamed is AnonymousAccess.ADMITTED:
            return ANYBODY
        if self._unnamed is AnonymousAccess.REFUSED or peer is None or self._users is None:
            return Rejected(401, "a bearer token is required", _CHALLENGE)
        # the proxy may run as our user, but its clients can be anyone
        if any(name in _FORWARDED or name.startswith(b"x-forwarded-") for name in headers):
            return Rejected(401, "a request through a proxy needs a bearer token", _CHALLENGE)
        is_own = peer.is_own(self._users)
        if is_own is None:
            reason = "a bearer token is required: it is unknown which user connects"
            return Rejected(401, reason, _CHALLENGE)
        if not is_own:
            return Rejected(
                403, "other users of this machine, and confined servers, need a bearer token"
            )
        return self._own_user


def repeated_header(pairs: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The first header that must not be repeated and is, if any."""
    seen: set[bytes] = set()
    for name, _ in pairs:
        if name in seen:
            return name
        if name in _SINGLE:
            seen.add(name)
    return None


def _name(host: str) -> str | None:
    """A host without its port; None if it is not valid."""
    match = _HOST.fullmatch(host.strip().lower())
    return match[1] if match else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
