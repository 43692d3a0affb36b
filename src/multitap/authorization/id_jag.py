"""Assertions with which the organisation's provider sends a person to us (ID-JAG)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from multitap.config.documents import is_list
from multitap.identity.access_tokens import TokenRefused, check_times, read_jwt
from multitap.identity.issuer import Issuer

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
    resource: str | None
    scopes: tuple[str, ...]
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
        token: The assertion.
        issuer: The provider that has to have issued it.
        audience: Our own issuer.
        client_id: The client that authenticated itself with it.
        now: Seconds since 1970.

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
    if now >= claims["exp"] or claims["exp"] - now > LONGEST + _TOLERANCE:
        raise TokenRefused("the assertion has expired, or is valid for too long")
    if claims["iat"] > now + _TOLERANCE or claims.get("nbf", 0) > now + _TOLERANCE:
        raise TokenRefused("the assertion is not valid yet")
    await issuer.check_signed(token, jwt)
    resource, scope = claims.get("resource"), claims.get("scope")
    person = {name: value for name, value in claims.items() if name not in {*_REQUIRED, "scope"}}
    return Assertion(
        issuer=claims["iss"],
        subject=claims["sub"],
        id=claims["jti"],
        expires=float(claims["exp"]),
        resource=resource if isinstance(resource, str) else None,
        scopes=tuple(scope.split()) if isinstance(scope, str) else (),
        person=person,
    )
