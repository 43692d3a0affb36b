"""The clients of the authorization server: configured, self-registered, or described at an address.

Registration stores nothing: what a client says about itself is sealed into the id that it gets, so
that no flood of registrations can fill anything, and every replica knows every client.
"""

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import anyio
import msgspec
from mcp.server.auth.provider import RegistrationError
from mcp.shared.auth import (
    JWT_BEARER_GRANT_TYPE,
    InvalidRedirectUriError,
    OAuthClientInformationFull,
)
from pydantic import AnyUrl

from multitap.authorization.grants import Grants
from multitap.config.access import RegisteredClient, SignInSettings
from multitap.errors import MultitapError, RequestFailed
from multitap.http.addresses import is_loopback
from multitap.limits import Rate, RateLimit
from multitap.oauth.endpoints import GuardedFetch
from multitap.oauth.errors import LoginFailed, clean
from multitap.oauth.identity import is_document
from multitap.trust.single_use import bind

LONGEST_REDIRECT = 512
"""Characters of a redirect URI."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_PLAIN = re.compile(r"[!-~]+")  # ASCII without spaces: browsers drop or convert others
_DANGEROUS = frozenset(
    {"javascript", "data", "vbscript", "file", "blob", "about", "filesystem", "view-source",
     "ws", "wss", "ftp", "mailto", "tel", "intent", "content", "chrome", "resource", "jar",
     "search", "search-ms", "shell", "res", "mk", "its", "hcp", "ldap", "smb", "ssh", "telnet",
     "sms", "callto", "market", "livescript", "mhtml"}
)  # fmt: skip
"""Schemes that run something in the browser or the system, or belong to no program that could be a
client."""
_OF_SYSTEMS = ("ms-", "x-apple", "chrome-", "moz-", "edge-")
"""How the schemes of systems and browsers begin: some of their programs run what they are given."""
logger = logging.getLogger(__name__)
PREFIX = "mtc_"
"""How the ids of self-registered clients begin."""
MOST_REDIRECTS, LONGEST_NAME = 8, 80  # both become part of an id, which goes into addresses
LARGEST_DOCUMENT = 5 * 1024
"""Bytes of a client's metadata document, as at other authorization servers."""
DOCUMENT_LIFE, FAILURE_LIFE = 3600.0, 60.0
"""Seconds for which a document is used without looking again, and a failure is remembered."""
STALE = 24 * 3600.0
"""Seconds for which a document is used that cannot be fetched again."""
MOST_DOCUMENTS = 1000
FETCHES, OWN_FETCHES = Rate(60, 60.0), Rate(10, 60.0)
"""How often documents are fetched, of all hosts and of one: each one is a request to somebody, and
strangers choose to whom."""
_AT_ONCE = 4  # fetches: any stranger can cause one, of an address of their choice
_PATIENCE = 10.0  # seconds to wait for a turn, and then for the document
_AWAY = "it describes itself at an address that the gateway cannot reach"
_LONGEST_ID = 4096
# a secret in a header is put into the form before the SDK looks at it: both ways are accepted
_POST = "client_secret_post"
_PURPOSE = "client id"
_CODE_GRANTS = ["authorization_code", "refresh_token"]
NOBODY = "https://192.0.2.1"
"""An address that nobody has (RFC 5737): documents are fetched as for a server that is in none of
our own networks, so from the internet only."""
_Value = TypeVar("_Value")


def why_refused(uri: str) -> str | None:
    """Why a client cannot have a redirect URI; None if it can."""
    if len(uri) > LONGEST_REDIRECT or not _PLAIN.fullmatch(uri) or "\\" in uri:
        return "it is too long, or has characters that a URL cannot have"
    if (url := _split(uri)) is None or not _SCHEME.fullmatch(url.scheme):
        return "it is not a URL"
    is_dangerous = url.scheme in _DANGEROUS or url.scheme.startswith(_OF_SYSTEMS)
    if "#" in uri or "@" in url.netloc or is_dangerous:
        return "it has a fragment, a user name, or a scheme that is not allowed"
    if url.scheme == "https" and not url.hostname:
        return "it has no host"
    if url.scheme == "http" and not is_loopback(url.hostname or ""):
        return "http is allowed only on the person's own machine"
    return None  # otherwise the scheme of a program, such as `cursor://`


def is_registered(uri: str, registered: Collection[str]) -> bool:
    """Whether a redirect URI is one of those that a client registered.

    Exactly, apart from the port of a loopback address: a program gets a free one from the system
    (RFC 8252).
    """
    if why_refused(uri) is not None:
        return False
    return any(uri == other or _same_loopback(uri, other) for other in registered)


def describe_target(uri: str) -> str:
    """Where a redirect URI leads, for people."""
    url = urlsplit(uri)
    if url.scheme == "http":
        return f"a program on your own computer ({url.netloc})"
    if url.scheme != "https":
        return f"a program on your own computer ({url.scheme}:)"
    return url.netloc


def is_local(uri: str) -> bool:
    """Whether any program of the person's computer could be at the other end."""
    return urlsplit(uri).scheme != "https"


def _same_loopback(uri: str, other: str) -> bool:
    url, registered = _split(uri), _split(other)
    if url is None or registered is None or url.scheme != "http" or registered.scheme != "http":
        return False
    return (
        is_loopback(url.hostname or "")
        and url.hostname == registered.hostname
        # an empty path and `/` are the same address
        and (url.path or "/") == (registered.path or "/")
        and url.query == registered.query
    )


def _split(uri: str) -> SplitResult | None:
    try:
        url = urlsplit(uri)
        _ = url.port  # raises for a port that is not a number
    except ValueError:
        return None
    return url


class ClientUnknownNow(MultitapError):
    """The document of a client cannot be fetched at this moment."""


class SignInClient(OAuthClientInformationFull):
    """A client, with our rules for its redirects."""

    registered_uris: tuple[str, ...] = ()
    """Its redirect URIs as it wrote them: the SDK rewrites addresses."""
    is_verified: bool = False
    """Whether its id is not just its own claim."""
    is_configured: bool = False
    """Whether who runs the gateway has written it down."""

    @property
    def short_id(self) -> str:
        """Its id, or a digest of one that is long."""
        if self.client_id.startswith(PREFIX):
            return f"{PREFIX}{bind(self.client_id).hex()[:16]}"
        return self.client_id

    def validate_redirect_uri(self, redirect_uri: AnyUrl | None) -> AnyUrl:
        # without one, the only registered one is meant (RFC 6749, 3.1.2.3)
        if redirect_uri is None and len(self.registered_uris) == 1:
            return AnyUrl(self.registered_uris[0])
        if redirect_uri is None or not is_registered(str(redirect_uri), self._comparable):
            raise InvalidRedirectUriError("this redirect URI is not registered for the client")
        return redirect_uri

    def validate_scope(self, requested_scope: str | None) -> list[str] | None:
        # scopes that we do not have are left out of the grant, as RFC 6749 allows
        return requested_scope.split() if requested_scope is not None else None

    @property
    def _comparable(self) -> tuple[str, ...]:
        # the SDK parses what a request names, so it may come in its spelling or in the client's
        return (*self.registered_uris, *(str(AnyUrl(uri)) for uri in self.registered_uris))


class _Registration(msgspec.Struct, frozen=True, array_like=True):
    """What is sealed into the id of a self-registered client."""

    name: str
    redirect_uris: tuple[str, ...]
    auth: str


class _Document(msgspec.Struct, frozen=True):
    """A client id metadata document."""

    client_id: str
    redirect_uris: tuple[str, ...]
    client_name: str = ""
    token_endpoint_auth_method: str = "none"  # noqa: S105 - a method
    client_secret: Any = None


class Clients:
    """Finds clients by their ids, and registers new ones."""

    def __init__(
        self,
        settings: SignInSettings,
        grants: Grants,
        fetch: GuardedFetch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._grants = grants
        self._fetch = fetch or GuardedFetch(NOBODY)
        self._clock = clock
        self._documents: dict[str, tuple[float, SignInClient]] = {}
        """Clients by address, and when each was described."""
        self._failures: dict[str, tuple[float, bool]] = {}
        """Until when an address is not tried again, and whether it could not be reached."""
        self._pace = RateLimit(FETCHES)
        self._paces: dict[str, RateLimit] = {}
        self._turn = anyio.Semaphore(_AT_ONCE)

    async def find(self, client_id: str) -> SignInClient | None:
        """The client with this id; None if there is none.

        Raises:
            ClientUnknownNow: It describes itself somewhere, which cannot be read at this moment.
        """
        if len(client_id) > _LONGEST_ID:
            return None
        # first: an id that is configured is never looked up elsewhere
        if (configured := self._settings.clients.get(client_id)) is not None:
            return _configured(client_id, configured)
        if client_id.startswith(PREFIX):
            return self._registered(client_id) if self._settings.registration else None
        if self._settings.documents and _is_address(client_id):
            return await self._described(client_id)
        return None

    def register(self, client: OAuthClientInformationFull) -> None:
        """Give a new client its id, and a secret if it wants one.

        Raises:
            RegistrationError: What it says about itself cannot be accepted.
        """
        uris = [str(uri) for uri in client.redirect_uris or ()]
        if len(uris) > MOST_REDIRECTS:
            raise RegistrationError(
                "invalid_redirect_uri", f"a client has at most {MOST_REDIRECTS} redirect URIs"
            )
        for uri in uris:
            if (reason := why_refused(uri)) is not None:
                raise RegistrationError("invalid_redirect_uri", reason)
        name = clean(client.client_name or "")[:LONGEST_NAME]
        auth = client.token_endpoint_auth_method or "none"
        registration = _Registration(name, tuple(uris), auth)
        client_id = PREFIX + self._grants.seal(registration, _PURPOSE)
        if len(client_id) > _LONGEST_ID:  # it goes into addresses
            raise RegistrationError("invalid_redirect_uri", "the redirect URIs are too long")
        client.client_id = client_id
        client.grant_types = [*_CODE_GRANTS]
        client.client_name = name or None
        if auth != "none":
            client.client_secret = self._grants.derive("client secret", client.client_id)

    def _registered(self, client_id: str) -> SignInClient | None:
        sealed = client_id.removeprefix(PREFIX)
        registration = self._grants.unseal(sealed, _Registration, _PURPOSE)
        if registration is None:
            return None
        has_secret = registration.auth != "none"
        return SignInClient(
            client_id=client_id,
            client_name=registration.name or None,
            registered_uris=registration.redirect_uris,
            token_endpoint_auth_method=_POST if has_secret else "none",
            client_secret=self._grants.derive("client secret", client_id) if has_secret else None,
            grant_types=[*_CODE_GRANTS],
        )

    async def _described(self, address: str) -> SignInClient | None:
        # without waiting for a turn: strangers may have taken them all
        if (client := self._fresh(address)) is not None or self._has_failed(address):
            return client
        with anyio.move_on_after(_PATIENCE):
            async with self._turn:
                # somebody else may have fetched it meanwhile
                if (client := self._fresh(address)) is not None or self._has_failed(address):
                    return client
                if not self._is_too_fast(address):
                    return await self._renew(address)
        if (client := self._stale(address)) is not None:
            return client
        raise ClientUnknownNow("too many programs describe themselves at this moment")

    def _fresh(self, address: str) -> SignInClient | None:
        described, client = self._documents.get(address, (0.0, None))
        return client if self._clock() < described + DOCUMENT_LIFE else None

    def _stale(self, address: str) -> SignInClient | None:
        described, client = self._documents.get(address, (0.0, None))
        return client if self._clock() < described + STALE else None

    def _has_failed(self, address: str) -> bool:
        until, is_away = self._failures.get(address, (0.0, False))
        if self._stale(address) is not None or self._clock() >= until:
            return False
        if is_away:
            raise ClientUnknownNow(_AWAY)
        return True

    def _is_too_fast(self, address: str) -> bool:
        now, host = self._clock(), urlsplit(address).netloc
        if (own := self._paces.get(host)) is None:
            own = RateLimit(OWN_FETCHES)
            _put(self._paces, host, own)
        if own.take(now) or self._pace.take(now):
            logger.debug("too many client documents are asked for: %s waits", clean(address))
            return True
        return False

    async def _renew(self, address: str) -> SignInClient | None:
        """Fetch a document; what it said before counts if it cannot be fetched now."""
        try:
            client = await self._fetch_document(address)
        except RequestFailed as exc:
            logger.warning(
                "the client document %s cannot be fetched: %s; a gateway that cannot reach the "
                "internet needs `documents = false` under [access.sign_in]",
                clean(address),
                exc,
            )
            if (client := self._stale(address)) is not None:
                return client
            _put(self._failures, address, (self._clock() + FAILURE_LIFE, True))
            raise ClientUnknownNow(_AWAY) from None
        if client is None:
            self._documents.pop(address, None)
            _put(self._failures, address, (self._clock() + FAILURE_LIFE, False))
        else:
            _put(self._documents, address, (self._clock(), client))
        return client

    async def _fetch_document(self, address: str) -> SignInClient | None:
        try:
            # the address is the client's name: with redirects, another site could answer for it
            reply = await self._fetch.describe(address, {}, redirects=0)
        except LoginFailed as exc:
            logger.warning("the client document %s is not fetched: %s", clean(address), exc)
            return None
        # a bad moment, not an answer: what the document said before still counts
        if reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise RequestFailed(f"HTTP {reply.status}", sent=True)
        reason = f"HTTP {reply.status}" if reply.status != HTTPStatus.OK else ""
        if not reason and len(reply.body) > LARGEST_DOCUMENT:
            reason = f"it has more than {LARGEST_DOCUMENT:,} bytes"
        try:
            document = msgspec.json.decode(reply.body, type=_Document) if not reason else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            document, reason = None, "it is not the metadata of a client"
        if document is not None:
            reason = _why_unusable(document, address)
        if document is None or reason:
            logger.warning("the client document %s is not used: %s", clean(address), reason)
            return None
        return SignInClient(
            client_id=address,
            client_name=clean(document.client_name)[:LONGEST_NAME] or None,
            registered_uris=document.redirect_uris,
            token_endpoint_auth_method="none",  # noqa: S106 - not a password
            grant_types=[*_CODE_GRANTS],
            is_verified=True,
        )


def _put(values: dict[str, _Value], name: str, value: _Value) -> None:
    """Remember a value as the newest, and forget the oldest if there are too many."""
    values.pop(name, None)
    values[name] = value
    if len(values) > MOST_DOCUMENTS:
        del values[next(iter(values))]


def _is_address(client_id: str) -> bool:
    """Whether a client id can be the address of a document: one that has a single spelling."""
    try:
        url = urlsplit(client_id)
        _ = url.port  # raises for a port that is not a number
    except ValueError:
        return False
    is_plain = not {"@", "\\", "#"} & {*client_id} and client_id.isascii()
    segments = unquote(url.path).split("/")
    return (
        is_plain
        and client_id.isprintable()
        and is_document(client_id)
        and not {".", ".."} & {*segments}
    )


def _why_unusable(document: _Document, address: str) -> str:
    # as a text, without normalising: another spelling could be another client's
    if document.client_id != address:
        return "its `client_id` is not its own address"
    # a document is public, so it cannot have a secret; keys (`private_key_jwt`) are not supported
    if document.token_endpoint_auth_method != "none" or document.client_secret is not None:  # noqa: S105 - a method
        return "its `token_endpoint_auth_method` has to be `none`"
    if not document.redirect_uris or len(document.redirect_uris) > MOST_REDIRECTS:
        return f"it needs one to {MOST_REDIRECTS} redirect URIs"
    reasons: Mapping[str, str] = {
        uri: reason for uri in document.redirect_uris if (reason := why_refused(uri)) is not None
    }
    return "; ".join(f"{clean(uri)}: {reason}" for uri, reason in reasons.items())


def _configured(client_id: str, client: RegisteredClient) -> SignInClient:
    has_secret = client.client_secret is not None
    return SignInClient(
        client_id=client_id,
        client_name=client.name or client_id,
        registered_uris=tuple(client.redirect_uris),
        token_endpoint_auth_method=_POST if has_secret else "none",
        client_secret=client.client_secret,
        # assertions only with a secret: each is for the client that authenticates itself with it
        grant_types=[*_CODE_GRANTS, *([JWT_BEARER_GRANT_TYPE] if has_secret else [])],
        is_verified=True,
        is_configured=True,
    )
