"""A client that authenticates with a key instead of a secret (RFC 7523, section 2.2)."""

import secrets
import time

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from multitap.upstream.oauth.oauth_errors import LoginFailed

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

_LIFETIME = 300  # seconds
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


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
    match key:
        case ec.EllipticCurvePrivateKey() if key.curve.name in _CURVES:
            algorithm = _CURVES[key.curve.name]
        case rsa.RSAPrivateKey():
            algorithm = "RS256"
        case ed25519.Ed25519PrivateKey():
            algorithm = "EdDSA"
        case _:
            raise LoginFailed("`oauth.private_key` is of a kind that is not supported")
    now = int(time.time())
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": issuer,
        "jti": secrets.token_urlsafe(16),
        "iat": now,
        "exp": now + _LIFETIME,
    }
    return jwt.encode(claims, key, algorithm=algorithm)
