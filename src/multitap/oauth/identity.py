"""Who we are at an authorization server: a client, its signed assertions, a key for proofs."""

import hashlib
import secrets
import time
import warnings
from collections.abc import Collection, Mapping
from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from joserfc import jwt
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from yarl import URL

from multitap.config.models import OAuth
from multitap.oauth.discovery import IssuerMetadata, same_issuer
from multitap.oauth.endpoints import GuardedFetch
from multitap.oauth.errors import GrantRefused, LoginFailed, clean
from multitap.trust.single_use import as_text
from multitap.trust.stored_logins import ClientAuth, StoredLogin

_BASIC: ClientAuth = "client_secret_basic"
_POST: ClientAuth = "client_secret_post"
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_LIFETIME = 300  # seconds
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
ALGORITHM = "ES256"


class ClientIdentity(msgspec.Struct, frozen=True):
    """Our client at one authorization server, and how it authenticates."""

    client_id: str
    auth: ClientAuth = "none"
    secret: str | None = None
    private_key: str | None = None
    registered: bool = False
    """Whether we registered it, and can do so again."""

    def __repr__(self) -> str:
        return f"<ClientIdentity {self.client_id}>"


def configured_client(settings: OAuth, issuer: IssuerMetadata) -> ClientIdentity | None:
    """The client that the configuration names, or describes at an address."""
    client_id = settings.client_id
    if client_id is None:
        return None
    if is_document(client_id):
        return ClientIdentity(client_id) if issuer.client_id_metadata_document_supported else None
    if settings.private_key:
        return ClientIdentity(client_id, "private_key_jwt", private_key=settings.private_key)
    if settings.client_secret:
        return ClientIdentity(client_id, _secret_auth(issuer), secret=settings.client_secret)
    return ClientIdentity(client_id)


def remembered_client(
    login: StoredLogin | None, issuer: str, redirect: str
) -> ClientIdentity | None:
    """The client that an earlier login registered with the same issuer, to come back here."""
    if login is None or login.secrets is None or not login.registered:
        return None
    if not same_issuer(login.issuer, issuer) or login.redirect_uri != redirect:
        return None
    secret = login.secrets.client_secret
    return ClientIdentity(login.client_id, login.client_auth, secret, registered=True)


async def register(
    fetch: GuardedFetch, issuer: IssuerMetadata, redirect: str, scope: str | None
) -> ClientIdentity:
    """Register with the authorization server (RFC 7591).

    Raises:
        LoginFailed: It refuses.
    """
    if issuer.registration_endpoint is None:
        raise LoginFailed(
            f"{clean(issuer.issuer)} only accepts registered clients; register one "
            f"with the redirect URI {redirect}, and set `oauth.client_id`"
        )
    request = {
        "client_name": "Multitap",
        "redirect_uris": [redirect],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        # only native clients may come back to http on loopback (OpenID Connect)
        "application_type": "native",
        "token_endpoint_auth_method": _choose_auth(issuer.token_endpoint_auth_methods_supported),
    }
    if scope:
        request["scope"] = scope
    reply = await fetch.post_json(issuer.registration_endpoint, request)
    response = reply.decode_json()
    if reply.status not in {HTTPStatus.OK, HTTPStatus.CREATED}:
        error = response.get("error") or f"registration failed with HTTP {reply.status}"
        raise GrantRefused(str(error), str(response.get("error_description") or ""))
    return _registered_client(response)


def _registered_client(response: Mapping[str, object]) -> ClientIdentity:
    client_id, secret = response.get("client_id"), response.get("client_secret")
    if not isinstance(client_id, str) or not client_id:
        raise LoginFailed("the answer to our registration has no client id")
    secret = secret if isinstance(secret, str) and secret else None
    # RFC 7591: without a method, the first of these is meant
    method = response.get("token_endpoint_auth_method") or (_BASIC if secret else "none")
    if method == "none":
        return ClientIdentity(client_id, registered=True)
    if method not in {_BASIC, _POST} or secret is None:
        raise LoginFailed(f"it registered us for {clean(method)}, which is not supported")
    return ClientIdentity(client_id, _POST if method == _POST else _BASIC, secret, registered=True)


def is_document(client_id: str) -> bool:
    """Whether a client id is the URL of a client metadata document."""
    url = urlsplit(client_id)
    return url.scheme == "https" and url.path.strip("/") != ""


def _secret_auth(issuer: IssuerMetadata) -> ClientAuth:
    """How to send a secret: in a header, unless only the form is supported."""
    methods = issuer.token_endpoint_auth_methods_supported or (_BASIC,)
    return _POST if _POST in methods and _BASIC not in methods else _BASIC


def _choose_auth(methods: Collection[str] | None) -> ClientAuth:
    """Choose a method; without a secret if possible, since a local program cannot keep one."""
    if methods is None or "none" in methods:
        return "none"
    return _POST if _POST in methods and _BASIC not in methods else _BASIC


def client_assertion(client_id: str, issuer: str, pem: str) -> str:
    """A signed assertion for one token request.

    Raises:
        LoginFailed: The key cannot be used.
    """
    try:
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError):
        raise LoginFailed(
            "`oauth.private_key` is not a private key in PEM without a password"
        ) from None
    signer: Key
    match key:
        case ec.EllipticCurvePrivateKey() if key.curve.name in _CURVES:
            algorithm, signer = _CURVES[key.curve.name], ECKey(key, key)
        case rsa.RSAPrivateKey():
            algorithm, signer = "RS256", RSAKey(key, key)
        case ed25519.Ed25519PrivateKey():
            algorithm, signer = "EdDSA", OKPKey(key, key)
        case _:
            raise LoginFailed("`oauth.private_key` is of a kind that is not supported")
    now = int(time.time())
    claims: dict[str, str | int] = {
        "iss": client_id,
        "sub": client_id,
        # the issuer, not its token endpoint, which a malicious server may share (RFC 7523bis)
        "aud": issuer,
        "jti": secrets.token_urlsafe(16),
        "iat": now,
        "exp": now + _LIFETIME,
    }
    return _sign(claims, signer, algorithm)


class ProofKey:
    """The key that a login's tokens are bound to: a stored one, or a new one."""

    def __init__(self, pem: str | None = None) -> None:
        self._key = _load(pem) if pem else ec.generate_private_key(ec.SECP256R1())
        self._signer = ECKey(self._key, self._key)
        numbers = self._key.public_key().public_numbers()
        self._public = {
            "kty": "EC",
            "crv": "P-256",
            # always 32 bytes, with leading zeros (RFC 7518)
            "x": as_text(numbers.x.to_bytes(32)),
            "y": as_text(numbers.y.to_bytes(32)),
        }

    @property
    def pem(self) -> str:
        """The key in PEM, to store it."""
        return self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()

    def proof(
        self, method: str, url: URL, *, nonce: str | None = None, token: str | None = None
    ) -> str:
        """A proof for one request, with the receiver's nonce and the access token shown with it."""
        claims: dict[str, str | int] = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            # RFC 9449: without query and fragment
            "htu": str(url.with_query(None).with_fragment(None)),
            "iat": int(time.time()),
        }
        if nonce is not None:
            claims["nonce"] = nonce
        if token is not None:
            claims["ath"] = as_text(hashlib.sha256(token.encode()).digest())
        head = {"typ": "dpop+jwt", "jwk": self._public}
        return _sign(claims, self._signer, ALGORITHM, head)


def _sign(
    claims: Mapping[str, str | int],
    key: Key,
    algorithm: str,
    header: Mapping[str, object] | None = None,
) -> str:
    with warnings.catch_warnings():
        # EdDSA is the old name of Ed25519, and the only one that most servers know
        warnings.simplefilter("ignore", SecurityWarning)
        return jwt.encode(
            {"alg": algorithm, **(header or {})}, dict(claims), key, algorithms=[algorithm]
        )


def _load(pem: str) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem.encode(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("the key of a login is an elliptic curve key")
    return key
