"""One identity provider: its metadata, its keys, and what it says about opaque tokens.

Keys are fetched once, again after a rotation, and never too often.
"""

import base64
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import anyio
import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from multitap.config.access import OidcIssuer
from multitap.config.documents import is_list, is_table
from multitap.config.models import OAuth
from multitap.errors import RequestFailed
from multitap.identity.access_tokens import (
    Jwt,
    ProviderDown,
    TokenRefused,
    VerifiedToken,
    check_access_token,
    check_signature,
    check_times,
    describe,
)
from multitap.limits import Rate, RateLimit
from multitap.oauth.discovery import IssuerMetadata, find_issuer
from multitap.oauth.endpoints import FetchedReply, GuardedFetch
from multitap.oauth.errors import LoginFailed, clean
from multitap.oauth.grants import TokenEndpoint
from multitap.oauth.identity import ClientIdentity, configured_client

logger = logging.getLogger(__name__)

PACE = Rate(2, 60.0)
"""How often keys are fetched, whatever tokens arrive: a stranger can invent any number of keys.

Every 30 seconds, and once more in between: a provider may change its key just after we looked.
"""
STALE = 600.0
"""Seconds after which the keys are fetched again beside the next request that uses them."""
OLDEST = 24 * 3600.0
"""Seconds for which keys are used while the provider is down: it may have withdrawn them."""
_FIRST_PAUSE = 2.0  # seconds between fetches while there are no keys at all
_MOST_KEYS, _MOST_UNKNOWN = 100, 1000
_LEAST_RSA_BITS = 2048
_KINDS: Mapping[str, type[RSAKey] | type[ECKey] | type[OKPKey]] = {
    "RSA": RSAKey,
    "EC": ECKey,
    "OKP": OKPKey,
}
"""Never `oct`: a symmetric key that can be fetched can sign, too."""
_KIND_OF = {"R": "RSA", "P": "RSA", "E": "EC"}
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}

Fetch = Callable[[], Awaitable[object]]
"""Fetches the provider's JWKS, parsed; raises `ProviderDown`."""
# seconds: addresses seldom change, and keys have a shorter time of their own
_METADATA_LIFE = 3600.0
_PAUSE = 2.0  # seconds after failed discovery before it is tried again
_MOST_QUESTIONS = 16  # introspections at a time: strangers cause them


class SigningKeys:
    """The current keys of one provider."""

    def __init__(self, fetch: Fetch, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._clock = clock
        self._keys: tuple[tuple[Mapping[str, Any], Key], ...] = ()
        self._fetched = self._tried = float("-inf")
        self._pace = RateLimit(PACE)
        self._unknown: dict[str, float] = {}
        """When each unknown key was first asked for."""
        self._lock = anyio.Lock()
        self.fetches = 0

    @property
    def is_stale(self) -> bool:
        """Whether it is time to fetch them again, without keeping a request waiting."""
        now = self._clock()
        return now - self._fetched > STALE and now - self._tried > PACE.seconds

    def find(self, kid: str | None, algorithm: str) -> Key | None:
        """The key with this id for an algorithm; without an id, the only one. None: unknown."""
        if self._clock() - self._fetched > OLDEST:
            return None
        fitting = [key for table, key in self._keys if _fits(table, kid, algorithm)]
        return fitting[0] if len(fitting) == 1 else None

    async def wait_for(self, kid: str | None, algorithm: str) -> Key:
        """The key with this id, fetched if it is unknown and may be new.

        Raises:
            TokenRefused: There is no such key.
            ProviderDown: It is not known whether there is.
        """
        since = self._first_asked(kid or "")
        async with self._lock:  # all that wait for the same fetch share it
            if (key := self.find(kid, algorithm)) is not None:
                return key
            if self._fetched <= since:
                await self._renew()
        if (key := self.find(kid, algorithm)) is None:
            raise TokenRefused("the token is signed with an unknown key")
        return key

    async def renew(self) -> None:
        """Fetch them again, unless that was done or tried a moment ago."""
        async with self._lock:
            if self.is_stale:
                await self._renew()

    async def _renew(self) -> None:
        now = self._clock()
        wait = self._pace.take(now)
        if not self._keys:  # nobody can come in before there are any
            wait = min(wait, _FIRST_PAUSE - (now - self._tried))
        if wait > 0:
            # not 401, which would send a person to log in: after a rotation the token may be good
            raise ProviderDown("the provider's keys were fetched a moment ago", wait)
        self._tried = now  # before the fetch: one that fails counts, too
        self.fetches += 1
        keys = usable_keys(await self._fetch())
        if not keys:
            raise ProviderDown("the provider's key set has no key that can be used")
        self._keys, self._fetched = keys, self._clock()

    def _first_asked(self, kid: str) -> float:
        """When a key was first asked for; a fetch since then has answered the question."""
        now = self._clock()
        first = self._unknown.get(kid)
        if first is None or now - first > STALE:
            if len(self._unknown) >= _MOST_UNKNOWN:  # asked again, they count as new
                self._unknown.clear()
            first = self._unknown[kid] = now
        return first


def usable_keys(document: object) -> tuple[tuple[Mapping[str, Any], Key], ...]:
    """The keys of a JWKS that can check signatures; all others are left out."""
    listed = document.get("keys") if is_table(document) else None
    if not is_list(listed):
        return ()
    usable: list[tuple[Mapping[str, Any], Key]] = []
    for table in listed[:_MOST_KEYS]:
        if not is_table(table) or not _may_sign(table):
            continue
        try:
            key = _KINDS[table["kty"]].import_key({**table})
        except (JoseError, ValueError, TypeError, KeyError):
            logger.debug("a key of a provider cannot be used")
            continue
        bits = getattr(getattr(key, "public_key", None), "key_size", _LEAST_RSA_BITS)
        if isinstance(key, RSAKey) and bits < _LEAST_RSA_BITS:
            continue
        usable.append((table, key))
    return tuple(usable)


def _may_sign(table: Mapping[str, Any]) -> bool:
    operations = table.get("key_ops", ["verify"])
    return (
        table.get("kty") in _KINDS
        and "d" not in table  # a private key: a published one is compromised
        and table.get("use", "sig") == "sig"
        and is_list(operations)
        and "verify" in operations
    )


def _fits(table: Mapping[str, Any], kid: str | None, algorithm: str) -> bool:
    kind = _KIND_OF.get(algorithm[0], "EC") if not algorithm.startswith("Ed") else "OKP"
    return (
        table.get("kty") == kind
        and (kid is None or table.get("kid") == kid)
        and table.get("alg", algorithm) == algorithm
        and table.get("crv", "") in {"", "Ed25519", _CURVES.get(algorithm, "")}
    )


class Issuer:
    """Verifies the tokens of one provider."""

    def __init__(
        self, name: str, provider: OidcIssuer, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.provider = provider
        self._fetch = GuardedFetch(provider.issuer)
        self._clock = clock
        self._metadata: IssuerMetadata | None = None
        self._described = self._tried = float("-inf")
        self._discovering = anyio.Lock()
        self._questions = anyio.Semaphore(_MOST_QUESTIONS)
        self.keys = SigningKeys(self._fetch_keys, clock)

    @property
    def takes_opaque(self) -> bool:
        """Whether it can be asked about tokens that are not JWTs."""
        return self.provider.introspect

    def verify_now(
        self, token: str, jwt: Jwt, audiences: Collection[str], now: float
    ) -> VerifiedToken | None:
        """The holder of a JWT; None if its key has to be fetched first.

        Raises:
            TokenRefused: It is not valid.
        """
        algorithm = self._algorithm(jwt)
        key = self.keys.find(jwt.kid, algorithm)
        if key is None:
            return None
        check_signature(token, key, algorithm)
        return check_access_token(jwt, self.name, self.provider, audiences, now)

    async def verify(
        self, token: str, jwt: Jwt, audiences: Collection[str], now: float
    ) -> VerifiedToken:
        """The holder of a JWT.

        Raises:
            TokenRefused: It is not valid.
            ProviderDown: The key is not known, and cannot be fetched now.
        """
        algorithm = self._algorithm(jwt)
        # what does not need the key first: only tokens that could be valid may cause a fetch
        checked = check_access_token(jwt, self.name, self.provider, audiences, now)
        check_signature(token, await self.keys.wait_for(jwt.kid, algorithm), algorithm)
        return checked

    async def check_signed(self, token: str, jwt: Jwt) -> None:
        """Check the signature of another JWT of the provider.

        Raises:
            TokenRefused: It is not valid.
            ProviderDown: The key is not known, and cannot be fetched now.
        """
        algorithm = self._algorithm(jwt)
        check_signature(token, await self.keys.wait_for(jwt.kid, algorithm), algorithm)

    async def token_endpoint(self) -> tuple[TokenEndpoint, str]:
        """What exchanges grants as our client at the provider, and its address.

        Raises:
            ProviderDown: The provider does not describe itself now.
        """
        metadata = await self.discover()
        credentials = OAuth(
            client_id=self.provider.client_id, client_secret=self.provider.client_secret
        )
        client = configured_client(credentials, metadata)
        client = client or ClientIdentity(self.provider.client_id or "")
        return TokenEndpoint(self._fetch, metadata.issuer, client), metadata.token_endpoint

    async def introspect(self, token: str, audiences: Collection[str], now: float) -> VerifiedToken:
        """The holder of an opaque token, by the provider's word (RFC 7662).

        Raises:
            TokenRefused: It is not valid.
            ProviderDown: The provider does not answer, or not as it should.
        """
        metadata = await self.discover()
        if metadata.introspection_endpoint is None:
            raise ProviderDown(f"{self.name} offers no introspection")
        form = {"token": token, "token_type_hint": "access_token"}
        # each is encoded before they are joined (RFC 6749, 2.3.1): an id may contain a colon
        secret = (
            f"{quote(self.provider.client_id or '')}:{quote(self.provider.client_secret or '')}"
        )
        basic = base64.b64encode(secret.encode()).decode()
        async with self._questions:
            try:
                reply = await self._fetch.post_form(
                    metadata.introspection_endpoint, form, {"Authorization": f"Basic {basic}"}
                )
            except (LoginFailed, RequestFailed) as exc:
                raise self._down("cannot be asked about a token", exc) from None
        if reply.status != HTTPStatus.OK:  # such as 401: our own secret is wrong
            raise self._down(f"answers a question about a token with HTTP {reply.status}")
        return self._read(reply.decode_json(), audiences, now)

    def _read(
        self, claims: Mapping[str, Any], audiences: Collection[str], now: float
    ) -> VerifiedToken:
        if claims.get("active") is not True:
            raise TokenRefused("the token is unknown, expired or revoked")
        check_times(claims)
        leeway = self.provider.leeway
        # optional in such an answer (RFC 7662)
        if claims.get("iss", self.provider.issuer) != self.provider.issuer:
            raise TokenRefused("the token is from another issuer")
        named = claims.get("aud")
        intended = {item for item in named if isinstance(item, str)} if is_list(named) else {named}
        if intended.isdisjoint(audiences):
            raise TokenRefused("the token is for another audience")
        if "exp" in claims and now > claims["exp"] + leeway:
            raise TokenRefused("the token has expired")
        if now < claims.get("nbf", 0) - leeway:
            raise TokenRefused("the token is not valid yet")
        verified = describe(claims, self.name, self.provider)
        # without an end of its own, it lasts until it is asked about again
        return verified if "exp" in claims else msgspec.structs.replace(verified, expires=2.0**40)

    def _algorithm(self, jwt: Jwt) -> str:
        algorithm = jwt.header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self.provider.algorithms:
            raise TokenRefused("the token is signed with an algorithm that is not allowed")
        return algorithm

    async def discover(self) -> IssuerMetadata:
        """The provider's metadata, as long as they are not too old.

        Raises:
            ProviderDown: They cannot be fetched now.
        """
        async with self._discovering:  # all that wait share one discovery
            now = self._clock()
            if self._metadata is not None and now - self._described < _METADATA_LIFE:
                return self._metadata
            if now - self._tried < _PAUSE:
                if self._metadata is not None:  # old, but the provider may be away
                    return self._metadata
                raise ProviderDown(f"{self.name} was asked for its metadata a moment ago", _PAUSE)
            self._tried = now
            try:
                metadata = await find_issuer(self._fetch, self.provider.issuer)
            except (LoginFailed, RequestFailed) as exc:
                if self._metadata is None:
                    raise self._down("does not describe itself", exc) from None
                return self._metadata
            # exactly: the same text is compared with the `iss` of every token
            if metadata.issuer != self.provider.issuer:
                raise self._down(f"calls itself {clean(metadata.issuer)!r}, not as configured")
            self._metadata, self._described = metadata, now
            return metadata

    async def _fetch_keys(self) -> object:
        metadata = await self.discover()
        if metadata.jwks_uri is None:
            raise self._down("publishes no keys")
        try:
            reply: FetchedReply = await self._fetch.describe(metadata.jwks_uri, {})
        except (LoginFailed, RequestFailed) as exc:
            raise self._down("does not answer for its keys", exc) from None
        if reply.status != HTTPStatus.OK:
            raise self._down(f"answers for its keys with HTTP {reply.status}")
        return reply.decode_json()

    def _down(self, reason: str, exc: Exception | None = None) -> ProviderDown:
        message = f"the identity provider {self.name} {reason}" + (f": {exc}" if exc else "")
        logger.warning("%s", message)
        return ProviderDown(message)
