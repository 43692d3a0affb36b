"""The keys that a provider signs with: fetched once, again after a rotation, never too often."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from multitap.config.documents import is_list, is_table
from multitap.identity.access_tokens import ProviderDown, TokenRefused
from multitap.limits import Rate, RateLimit

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
