"""Proof of possession: a key, and a signed proof with every request (DPoP, RFC 9449)."""

import base64
import hashlib
import secrets
import time

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from yarl import URL

ALGORITHM = "ES256"


class ProofKey:
    """The key that a login's tokens are bound to.

    Args:
        pem: A stored key; by default, a new one is made.
    """

    def __init__(self, pem: str | None = None) -> None:
        self._key = _load(pem) if pem else ec.generate_private_key(ec.SECP256R1())
        numbers = self._key.public_key().public_numbers()
        self._public = {
            "kty": "EC",
            "crv": "P-256",
            "x": _encode(numbers.x.to_bytes(32)),
            "y": _encode(numbers.y.to_bytes(32)),
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
        """A proof for one request.

        Args:
            method: How it is sent.
            url: Where to.
            nonce: The nonce that the receiver requires.
            token: The access token that is shown with it.
        """
        claims: dict[str, str | int] = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            "htu": str(url.with_query(None).with_fragment(None)),
            "iat": int(time.time()),
        }
        if nonce is not None:
            claims["nonce"] = nonce
        if token is not None:
            claims["ath"] = _encode(hashlib.sha256(token.encode()).digest())
        head = {"typ": "dpop+jwt", "jwk": self._public}
        return jwt.encode(claims, self._key, algorithm=ALGORITHM, headers=head)


def _load(pem: str) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem.encode(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("the key of a login is an elliptic curve key")
    return key


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
