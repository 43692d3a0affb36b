"""The clients of the authorization server: configured, self-registered, or described at an address.

Registration stores nothing: what a client says about itself is sealed into the id that it gets, so
that no flood of registrations can fill anything, and every replica knows every client.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

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
from multitap.authorization.redirects import is_registered, why_refused
from multitap.config.access import RegisteredClient, SignInSettings
from multitap.errors import RequestFailed
from multitap.limits import Rate, RateLimit
from multitap.oauth.endpoints import GuardedFetch
from multitap.oauth.errors import LoginFailed, clean
from multitap.oauth.identity import is_document
from multitap.trust.single_use import bind

logger = logging.getLogger(__name__)

PREFIX = "mtc_"
"""How the ids of self-registered clients begin."""
MOST_REDIRECTS, LONGEST_NAME = 8, 80
LARGEST_DOCUMENT = 5 * 1024
"""Bytes of a client's metadata document."""
DOCUMENT_LIFE, FAILURE_LIFE = 3600.0, 60.0
"""Seconds for which a document is used without looking again, and a failure is remembered."""
MOST_DOCUMENTS = 1000
FETCHES = Rate(60, 60.0)
"""How often documents are fetched, whatever strangers send: each one is a request to somebody."""
_AT_ONCE = 4
_LONGEST_ID = 4096
# a secret in a header is put into the form before the SDK looks at it: both ways are accepted
_POST = "client_secret_post"
_PURPOSE = "client id"
_CODE_GRANTS = ["authorization_code", "refresh_token"]
NOBODY = "https://192.0.2.1"
"""An address that nobody has (RFC 5737): documents are fetched as for a server that is in none of
our own networks, so from the internet only."""


class SignInClient(OAuthClientInformationFull):
    """A client, with our rules for its redirects."""

    registered_uris: tuple[str, ...] = ()
    """Its redirect URIs as it wrote them: the SDK rewrites addresses."""
    is_verified: bool = False
    """Whether its id is not just its own claim."""

    @property
    def short_id(self) -> str:
        """Its id, or a digest of one that is long."""
        if self.client_id.startswith(PREFIX):
            return f"{PREFIX}{bind(self.client_id).hex()[:16]}"
        return self.client_id

    def validate_redirect_uri(self, redirect_uri: AnyUrl | None) -> AnyUrl:
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
    """Finds clients by their ids, and registers new ones.

    Args:
        settings: Which clients there may be.
        grants: Seals ids.
        fetch: Fetches documents.
        clock: Seconds since any moment.
    """

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
        self._documents: dict[str, tuple[float, SignInClient | None]] = {}
        self._pace = RateLimit(FETCHES)
        self._turn = anyio.Semaphore(_AT_ONCE)

    async def find(self, client_id: str) -> SignInClient | None:
        """The client with this id; None if there is none."""
        if len(client_id) > _LONGEST_ID:
            return None
        if (configured := self._settings.clients.get(client_id)) is not None:
            return _configured(client_id, configured)
        if client_id.startswith(PREFIX):
            return self._registered(client_id) if self._settings.registration else None
        if self._settings.documents and is_document(client_id):
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
        client.client_id = PREFIX + self._grants.seal(registration, _PURPOSE)
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
        async with self._turn:  # a document that several ask for is fetched once
            until, client = self._documents.get(address, (0.0, None))
            now = self._clock()
            if now < until:
                return client
            if self._pace.take(now):
                logger.warning("too many client documents are asked for: %s waits", clean(address))
                return None
            client = await self._fetch_document(address)
            life = FAILURE_LIFE if client is None else DOCUMENT_LIFE
            self._documents.pop(address, None)
            self._documents[address] = now + life, client
            if len(self._documents) > MOST_DOCUMENTS:
                del self._documents[next(iter(self._documents))]
            return client

    async def _fetch_document(self, address: str) -> SignInClient | None:
        try:
            reply = await self._fetch.describe(address, {})
        except (LoginFailed, RequestFailed) as exc:
            logger.warning("the client document %s cannot be fetched: %s", clean(address), exc)
            return None
        reason = f"HTTP {reply.status}" if reply.status != 200 else ""  # noqa: PLR2004
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


def _why_unusable(document: _Document, address: str) -> str:
    # as a text, without normalising: another spelling could be another client's
    if document.client_id != address:
        return "its `client_id` is not its own address"
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
        grant_types=[*_CODE_GRANTS, *([JWT_BEARER_GRANT_TYPE] if has_secret else [])],
        is_verified=True,
    )
