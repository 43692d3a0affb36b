"""The checks of an access token: its form, its signature, its claims."""

import base64
import json
import math
import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
from joserfc import jws
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import Key
from joserfc.jws import JWSRegistry
from joserfc.jwt import JWTClaimsRegistry

from multitap.config.access import OidcIssuer
from multitap.config.documents import is_list, is_table

LONGEST = 16 * 1024
"""Characters of a token; an HTTP head has room for little more."""
_PARTS = 3
_LONGEST_NAME = 512  # characters of a subject, a client or a group
_MOST_GROUPS = 2000  # a JWT is bounded by its length, the answer of an introspection is not
_ID_TOKEN_CLAIMS = frozenset({"nonce", "at_hash", "c_hash", "s_hash"})
"""Claims that only ID tokens have."""
_CLIENT_CLAIMS = ("client_id", "azp", "appid", "cid")
"""Where providers write the client: RFC 9068, OpenID Connect, Entra, Okta."""


class TokenRefused(Exception):
    """A token is not valid; the message says why, without any of its contents."""


class ProviderDown(Exception):
    """A provider cannot be asked now, so nothing is known about a token.

    Args:
        retry_after: Seconds after which it is worth another try.
    """

    def __init__(self, message: str, retry_after: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Jwt(msgspec.Struct, frozen=True):
    """The contents of a JWT whose signature is not checked yet."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any]

    @property
    def kid(self) -> str | None:
        kid = self.header.get("kid")
        return kid if isinstance(kid, str) else None


class VerifiedToken(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider says about the holder of a token."""

    provider: str
    """The provider's name in the configuration."""
    issuer: str
    subject: str
    """Empty for a machine."""
    client: str
    is_machine: bool
    scopes: frozenset[str]
    groups: frozenset[str]
    claims: Mapping[str, Any]
    expires: float
    issued: float
    """When it was issued; 0 if the token does not say."""
    session: str = ""
    """The session at the provider (`sid`), if it says."""
    key_thumbprint: str = ""
    """The key that it is bound to (`cnf.jkt`), if any."""

    def __repr__(self) -> str:
        return f"<VerifiedToken of {self.provider}>"


def is_jwt(token: str) -> bool:
    """Whether a token has the form of a signed JWT."""
    # `{"` in base64, with which the header of every JWT begins
    return token.count(".") == _PARTS - 1 and token.startswith("eyJ")


def read_jwt(token: str) -> Jwt:
    """The contents of a JWT, unchecked.

    Raises:
        TokenRefused: It cannot be read in only one way.
    """
    parts = token.split(".")
    if len(parts) != _PARTS or len(token) > LONGEST:
        raise TokenRefused("this is not a JWT")
    try:
        header, claims = (_parse(part) for part in parts[:2])
    except (ValueError, RecursionError):
        # a member that appears twice has two values, and each reader takes another one
        raise TokenRefused("the token cannot be read, or has a member twice") from None
    if "crit" in header:  # it must be understood, and there is nothing that we would understand
        raise TokenRefused("the token has critical members in its header")
    return Jwt(header, claims)


def check_signature(token: str, key: Key, algorithm: str) -> None:
    """Check the signature of a JWT with the only key and algorithm that it may have.

    Raises:
        TokenRefused: It is not valid.
    """
    # not strict: Entra and AWS add members of their own
    registry = JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    registry.max_header_length = 8192  # joserfc allows 512 bytes, too few for certificates (x5c)
    try:
        with warnings.catch_warnings():
            # the old name of Ed25519, which nearly all providers still use
            warnings.simplefilter("ignore", SecurityWarning)
            jws.deserialize_compact(token.encode(), key, registry=registry)
    except (JoseError, ValueError, TypeError):
        raise TokenRefused("the signature is not valid") from None


def check_access_token(
    jwt: Jwt, name: str, provider: OidcIssuer, audiences: Collection[str], now: float
) -> VerifiedToken:
    """The holder of a token whose signature is valid.

    Args:
        audiences: The values of `aud` that are accepted.

    Raises:
        TokenRefused: It is not an access token for us, or not valid now.
    """
    kind = jwt.header.get("typ", "")
    allowed = {expected.lower() for expected in provider.token_types}
    if not isinstance(kind, str) or kind.lower() not in allowed:
        raise TokenRefused("the token is not an access token: its `typ` is another one")
    claims = jwt.claims
    if _ID_TOKEN_CLAIMS & claims.keys() or claims.get("token_use") == "id" or _is_id(claims):
        raise TokenRefused("the token is an ID token, which is not for us")
    # joserfc looks at a claim only if it is essential
    registry = JWTClaimsRegistry(
        now=int(now),
        leeway=int(provider.leeway),
        iss={"essential": True, "value": provider.issuer},
        aud={"essential": True, "values": [*audiences]},
        exp={"essential": True},
    )
    check_times(claims)
    try:
        registry.validate(dict(claims))
    except JoseError as exc:
        raise TokenRefused(_reason(exc)) from None
    return describe(claims, name, provider)


def check_times(claims: Mapping[str, Any]) -> None:
    """Check that moments are numbers.

    Raises:
        TokenRefused: One is not.
    """
    for name in ("exp", "nbf", "iat"):
        value = claims.get(name, 0)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            raise TokenRefused(f"`{name}` of the token is not a number")


def describe(claims: Mapping[str, Any], name: str, provider: OidcIssuer) -> VerifiedToken:
    """The holder of a token that is valid for us.

    Raises:
        TokenRefused: It does not say whose it is.
    """
    client = next((text for key in _CLIENT_CLAIMS if (text := _text(claims.get(key)))), "")
    subject = _text(claims.get("sub"))
    if not client and not subject:
        raise TokenRefused("the token names neither a subject nor a client")
    is_machine = _is_machine(claims, subject, client)
    scopes = _words(claims.get("scope")) | _words(claims.get("scp"))
    missing = [scope for scope in provider.scopes if scope not in scopes]
    if missing:
        raise MissingScopes(missing)
    confirmation = claims.get("cnf", {})
    # such as `x5t#S256`: unchecked, a copied token could be used without the certificate
    if not is_table(confirmation) or confirmation.keys() - {"jkt"}:
        raise TokenRefused("the token is bound in a way that cannot be checked here")
    return VerifiedToken(
        provider=name,
        issuer=provider.issuer,
        subject="" if is_machine else subject,
        client=client,
        is_machine=is_machine,
        scopes=scopes,
        groups=_words(member_at(claims, provider.groups_claim)),
        claims=claims,
        expires=float(claims.get("exp", 0)),
        issued=float(claims.get("iat", 0)),
        session=_text(claims.get("sid")),
        key_thumbprint=_text(confirmation.get("jkt")),
    )


class MissingScopes(TokenRefused):
    """A valid token lacks scopes that every request needs."""

    def __init__(self, scopes: Collection[str]) -> None:
        super().__init__(f"the token lacks the scope {' '.join(scopes)}")
        self.scopes = tuple(scopes)


def member_at(claims: Mapping[str, Any], path: str) -> object:
    """The value of a claim, or of one within another: `realm_access.roles`."""
    if path in claims:  # such as `https://example.com/groups`, which has dots of its own
        return claims[path]
    value: object = claims
    for step in path.split("."):
        if not is_table(value):
            return None
        value = value.get(step)
    return value


def _is_machine(claims: Mapping[str, Any], subject: str, client: str) -> bool:
    """Whether no person is behind a token, by the customs of the common providers."""
    return (
        not subject
        or subject in {client, f"{client}@clients"}  # RFC 9068; Auth0, as the next one
        or claims.get("gty") == "client-credentials"
        or claims.get("idtyp") == "app"  # Entra; then Keycloak
        or _text(claims.get("preferred_username")).startswith("service-account-")
    )


def _is_id(claims: Mapping[str, Any]) -> bool:
    return claims.get("typ") in {"ID", "Refresh", "Offline", "Logout"}  # Keycloak, in the claims


def _text(value: object) -> str:
    """A text that can be a name, or an empty one."""
    # without control characters: names are printed in logs and on terminals
    if not isinstance(value, str) or len(value) > _LONGEST_NAME or not value.isprintable():
        return ""
    return value


def _words(value: object) -> frozenset[str]:
    """Scopes or groups, as a list or as one text."""
    if isinstance(value, str):
        return frozenset(value.split(" ")) - {""}
    if not is_list(value):
        return frozenset()
    names: Iterable[object] = value[:_MOST_GROUPS]
    return frozenset(text for item in names if (text := _text(item)))


def _parse(part: str) -> dict[str, Any]:
    padded = part + "=" * (-len(part) % 4)
    text = base64.b64decode(padded, b"-_", validate=True)
    parsed = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_refuse)
    if not isinstance(parsed, dict):
        raise ValueError("not an object")  # noqa: TRY004 - one kind for the caller
    return parsed  # pyright: ignore[reportUnknownVariableType]


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a member appears twice")
    return table


def _refuse(name: str) -> None:
    # `NaN` and `Infinity`: Python reads them, and a token with such an `exp` would never expire
    raise ValueError(name)


def _reason(exc: JoseError) -> str:
    claim = getattr(exc, "claim", "") or ""
    match claim:
        case "aud":
            return "the token is for another audience"
        case "iss":
            return "the token is from another issuer"
        case "exp":
            return "the token has expired"
        case _:
            return f"the token is not valid: {str(exc.error).replace('_', ' ')}"
