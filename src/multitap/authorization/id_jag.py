"""Assertions with which the organisation's provider sends a person to us (ID-JAG)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from multitap.config.documents import is_list
from multitap.identity.access_tokens import TokenRefused, check_times, read_jwt
from multitap.identity.issuer import Issuer
from multitap.identity.sign_in import PROTOCOL_CLAIMS

TYPE = "oauth-id-jag+jwt"
LONGEST = 300.0
"""Seconds for which an assertion may be valid; no difference of clocks is added to them."""
_REQUIRED = ("iss", "sub", "aud", "exp", "iat", "jti", "client_id")
_TOLERANCE = 5.0  # seconds that a provider's clock may be ahead


class Assertion(msgspec.Struct, frozen=True, kw_only=True):
    """A person whom the provider vouches for, towards one client."""

    issuer: str
    subject: str
    id: str
    expires: float
    issued: float
    resource: str | None
    scopes: tuple[str, ...] | None
    """None if it does not limit them."""
    person: Mapping[str, Any]
    """Claims about the person."""

    def life(self, now: float) -> float:
        """Seconds for which it could come again."""
        return max(1.0, self.expires - now + _TOLERANCE)


async def read_assertion(
    token: str, issuer: Issuer, audience: str, client_id: str, now: float
) -> Assertion:
    """Check an assertion.

    Args:
        audience: Our own issuer.
        client_id: The client that authenticated itself with it.

    Raises:
        TokenRefused: It is not valid, or not for us and this client.
        ProviderDown: Its key cannot be fetched now.
    """
    jwt = read_jwt(token)
    claims = jwt.claims
    if jwt.header.get("typ") != TYPE:
        raise TokenRefused(f"the assertion is not an ID-JAG: its `typ` is not {TYPE}")
    check_times(claims)
    if missing := [name for name in _REQUIRED if not claims.get(name)]:
        raise TokenRefused(f"the assertion lacks {', '.join(missing)}")
    if claims["iss"] != issuer.provider.issuer:
        raise TokenRefused("the assertion is from another issuer")
    named = claims["aud"]
    # exactly one: an assertion for several servers could be replayed by any of them
    if (named if not is_list(named) or len(named) != 1 else named[0]) != audience:
        raise TokenRefused("the assertion is for another authorization server")
    if claims["client_id"] != client_id:
        raise TokenRefused("the assertion is for another client")
    if not isinstance(claims["sub"], str) or not isinstance(claims["jti"], str):
        raise TokenRefused("the assertion names nobody, or has no `jti`")
    if now >= claims["exp"] or claims["exp"] - min(now, claims["iat"]) > LONGEST + _TOLERANCE:
        raise TokenRefused("the assertion has expired, or is valid for too long")
    if claims["iat"] > now + _TOLERANCE or claims.get("nbf", 0) > now + _TOLERANCE:
        raise TokenRefused("the assertion is not valid yet")
    resource, scope = _limits(claims)
    await issuer.check_signed(token, jwt)
    person = {
        name: value
        for name, value in claims.items()
        if name not in PROTOCOL_CLAIMS and name not in _REQUIRED
    }
    return Assertion(
        issuer=claims["iss"],
        subject=claims["sub"],
        id=claims["jti"],
        expires=float(claims["exp"]),
        issued=float(claims["iat"]),
        resource=resource,
        scopes=None if scope is None else tuple(scope.split()),
        person=person,
    )


def _limits(claims: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The resource and the scopes that an assertion is limited to."""
    resource, scope = claims.get("resource"), claims.get("scope")
    resource = resource[0] if is_list(resource) and len(resource) == 1 else resource
    if not isinstance(resource, str | None) or not isinstance(scope, str | None):
        raise TokenRefused("the assertion is for several resources, or its `scope` is not a text")
    if "cnf" in claims:  # without its key, a copy could be used
        raise TokenRefused("the assertion is bound to a key, which is not supported")
    return resource, scope
