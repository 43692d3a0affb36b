"""An identity provider in this process: metadata, keys, introspection, and any token one likes."""

import base64
import functools
import itertools
import json
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from joserfc import jwt
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from tests.wire import http_zoo as zoo

METADATA = "/.well-known/openid-configuration"
_TURNS = itertools.cycle(range(5))


@functools.cache
def _private_key(_turn):
    return rsa.generate_private_key(65537, 2048)


def new_key(kid):
    """A key of RSA that none of the last four was; making one takes longer than most tests."""
    return RSAKey.import_key(_private_key(next(_TURNS)), {"kid": kid})


@dataclass
class TinyIssuer:
    """Signs what it is told to; tests change its public attributes."""

    origin: str = ""
    keys: list = field(default_factory=lambda: [new_key("first")])
    published: list | None = None
    """The key set, if it is not the public part of the keys."""
    status: int = 200
    """With what it answers for its keys and its metadata."""
    is_down: bool = False
    active: dict = field(default_factory=dict)
    """Opaque tokens, and what it says about them."""
    introspection_status: int = 200
    elsewhere: dict = field(default_factory=dict)
    """Endpoints in its metadata that lead somewhere else."""
    fetches: int = 0
    """How often its keys were fetched."""
    questions: list = field(default_factory=list)
    """The forms of introspection requests."""

    @property
    def url(self) -> str:
        return self.origin

    def claims(self, **changes):
        now = int(time.time())
        claims = {
            "iss": self.origin,
            "aud": "https://tap.example.com/mcp",
            "sub": "alice",
            "client_id": "claude",
            "scope": "tools",
            "groups": ["dev"],
            "iat": now,
            "exp": now + 600,
            "jti": str(time.perf_counter_ns()),
            **changes,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, *, key=None, header=None, claims=None, **changes):
        """A token of alice's, with other claims where they are given; None leaves one out."""
        key = key or self.keys[0]
        full = {"alg": _algorithm(key), "typ": "at+jwt", "kid": key.kid, **(header or {})}
        full = {name: value for name, value in full.items() if value is not None}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)
            return jwt.encode(
                full,
                claims if claims is not None else self.claims(**changes),
                key,
                algorithms=[full["alg"]],
                default_type=None,
            )

    def rotate(self, kid="second"):
        self.keys = [new_key(kid)]

    async def answer(self, request, caller):
        if self.is_down:
            await caller.reset()
        elif request.path == METADATA and self.status == 200:
            await caller.respond(
                {
                    "issuer": self.origin,
                    "authorization_endpoint": f"{self.origin}/authorize",
                    "token_endpoint": f"{self.origin}/token",
                    "jwks_uri": f"{self.origin}/jwks",
                    "introspection_endpoint": f"{self.origin}/introspect",
                    **self.elsewhere,
                }
            )
        elif request.path == "/jwks":
            self.fetches += 1
            published = self.published
            if published is None:
                published = [key.as_dict(private=False) for key in self.keys]
            await caller.respond({"keys": published}, status=self.status)
        elif request.path == "/introspect":
            form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
            self.questions.append({**form, "authorization": request.headers["authorization"]})
            described = self.active.get(form["token"], {"active": False})
            await caller.respond(described, status=self.introspection_status)
        else:
            await caller.respond(b"", status=404)


def _algorithm(key):
    match key:
        case RSAKey():
            return "RS256"
        case ECKey():
            return {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}[key.curve_name]
        case OKPKey():
            return "EdDSA"
        case OctKey():
            return "HS256"


def sign(key, header, claims):
    """A JWT with any text as its claims, also such that no library would write."""

    def part(data):
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    text = part(json.dumps(header).encode()) + b"." + part(claims.encode())
    signature = key.private_key.sign(text, padding.PKCS1v15(), hashes.SHA256())
    return (text + b"." + part(signature)).decode()


@asynccontextmanager
async def tiny_issuer(**changes) -> AsyncIterator[TinyIssuer]:
    issuer = TinyIssuer(**changes)
    async with zoo.serve(issuer.answer) as server:
        issuer.origin = server.url.removesuffix("/mcp")
        yield issuer
