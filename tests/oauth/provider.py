"""A strict authorization server with an MCP server behind it, and the people who log in there."""

import base64
import hashlib
import json
import secrets
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit

import aiohttp
from joserfc import jwt
from joserfc.jwk import ECKey
from joserfc.jws import extract_compact

from tests.wire import http_zoo as zoo

RESOURCE = "/.well-known/oauth-protected-resource/mcp"
ISSUER = "/.well-known/oauth-authorization-server"


@dataclass
class Provider:
    """Issues tokens to everyone who logs in; tests change its public attributes."""

    expires_in: int | None = 3600
    auth_methods: tuple[str, ...] = ("none", "client_secret_basic", "client_secret_post")
    resource: dict = field(default_factory=dict)
    """What it says about the MCP server, beside the usual; None takes a word out."""
    issuer: dict = field(default_factory=dict)
    """The same about the authorization server."""
    challenge: str = 'Bearer resource_metadata="{origin}/.well-known/oauth-protected-resource/mcp"'
    clients: dict = field(default_factory=dict)
    refusal: str | None = None
    """What the person's page answers with, in place of a code."""
    names_itself: bool = True
    """Whether answers say `iss`."""
    needs_scope: str | None = None
    """What the MCP server wants of a token."""
    nonce: str | None = None
    """What both servers want to read in each proof of possession."""
    anonymous: bool = False
    on_token: Callable | None = None
    """Asked before a token request is answered; what it returns is the answer."""
    protects: str | None = None
    """The resource of its tokens, if that is another provider's MCP server."""
    tools: tuple = ({"name": "whoami", "inputSchema": {"type": "object"}},)

    forms: list = field(default_factory=list)
    pages: list = field(default_factory=list)
    registrations: list = field(default_factory=list)
    revoked: list = field(default_factory=list)
    proofs: list = field(default_factory=list)
    calls: list = field(default_factory=list)
    access: dict = field(default_factory=dict)
    """Valid access tokens, and what each may."""
    refresh: dict = field(default_factory=dict)
    """Valid refresh tokens."""
    spent: set = field(default_factory=set)
    _codes: dict = field(default_factory=dict)

    async def __call__(self, request, caller):
        self.origin = f"http://{request.headers['host']}"
        path = urlsplit(request.path).path
        match path:
            case "/mcp":
                await self.serve(request, caller)
            case "/.well-known/oauth-protected-resource/mcp":
                await caller.respond(self.about_resource())
            case "/.well-known/oauth-authorization-server":
                await caller.respond(self.about_issuer())
            case "/register":
                await self.register(request, caller)
            case "/authorize":
                await self.authorize(request, caller)
            case "/token":
                await self.token(request, caller)
            case "/revoke":
                self.revoked.append(dict(parse_qsl(request.body.decode())))
                self.access.pop(self.revoked[-1]["token"], None)
                await caller.respond()
            case _:
                await caller.respond(status=404)

    def about_resource(self):
        usual = {"resource": f"{self.origin}/mcp", "authorization_servers": [self.origin]}
        return self._said(usual, self.resource)

    def about_issuer(self):
        usual = {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "revocation_endpoint": f"{self.origin}/revoke",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": list(self.auth_methods),
            "authorization_response_iss_parameter_supported": self.names_itself,
        }
        return self._said(usual, self.issuer)

    def _said(self, usual, changes):
        filled = json.loads(json.dumps(changes).replace("{origin}", self.origin))
        return {key: value for key, value in {**usual, **filled}.items() if value is not None}

    async def serve(self, request, caller):
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        challenge = self.challenge.format(origin=self.origin)
        if token not in self.access and not self.anonymous:
            await caller.respond(status=401, www_authenticate=challenge)
            return
        if scheme.lower() == "dpop":
            self.check_proof(request, "/mcp", token)
            if self.nonce and self.proofs[-1].get("nonce") != self.nonce:
                words = f'DPoP error="use_dpop_nonce", {challenge.partition(" ")[2]}'
                await caller.respond(status=401, www_authenticate=words, dpop_nonce=self.nonce)
                return
        self.calls.append((request.rpc, token))
        needs = self.needs_scope if request.rpc == "tools/call" else None
        if needs and needs not in self.access.get(token, "").split():
            words = f'Bearer error="insufficient_scope", scope="{needs}"'
            await caller.respond(status=403, www_authenticate=words)
        elif request.rpc == "server/discover":
            can = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            cached = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
            about = {"serverInfo": {"name": "guarded", "version": "1"}}
            await caller.respond(zoo.result(request, **can, **cached, **about))
        elif request.rpc == "tools/list":
            cached = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
            await caller.respond(zoo.result(request, tools=list(self.tools), **cached))
        elif request.rpc == "tools/call":
            text = {"type": "text", "text": self.access.get(token) or "nobody"}
            await caller.respond(zoo.result(request, content=[text], resultType="complete"))
        else:
            await zoo.polite(request, caller)

    async def register(self, request, caller):
        given = request.message
        self.registrations.append(given)
        client_id = f"client-{len(self.registrations)}"
        method = given.get("token_endpoint_auth_method", "client_secret_basic")
        secret = None if method == "none" else f"secret-{secrets.token_hex(8)}"
        self.clients[client_id] = {"secret": secret, "redirects": given["redirect_uris"]}
        answer = {**given, "client_id": client_id}
        await caller.respond(answer | ({"client_secret": secret} if secret else {}), status=201)

    async def authorize(self, request, caller):
        page = dict(parse_qsl(urlsplit(request.path).query))
        self.pages.append(page)
        client = self.clients.get(page["client_id"])
        assert page["code_challenge_method"] == "S256"
        assert page["resource"].startswith(self.protects or self.origin)
        if client is None or page["redirect_uri"] not in client["redirects"]:
            await caller.respond(b"unknown client", status=400)
            return
        answer = {"state": page["state"]}
        if self.names_itself:
            answer["iss"] = self.about_issuer()["issuer"]
        if self.refusal:
            answer |= {"error": self.refusal}
        else:
            answer["code"] = secrets.token_urlsafe(8)
            self._codes[answer["code"]] = page
        await caller.respond(status=302, location=f"{page['redirect_uri']}?{urlencode(answer)}")

    async def token(self, request, caller):
        form = {key: value[0] for key, value in parse_qs(request.body.decode()).items()}
        self.forms.append(form)
        if self.on_token and (answer := await self.on_token(form)) is not None:
            await caller.respond(answer, status=400)
            return
        proof = request.headers.get("dpop")
        if proof:
            self.check_proof(request, "/token", None)
            if self.nonce and self.proofs[-1].get("nonce") != self.nonce:
                error = {"error": "use_dpop_nonce"}
                await caller.respond(error, status=400, dpop_nonce=self.nonce)
                return
        client_id, secret = self._client(request, form)
        client = self.clients.get(client_id)
        if client is None or client["secret"] != secret:
            await caller.respond({"error": "invalid_client"}, status=401)
            return
        scope = self._granted(form, client_id)
        if scope is None:
            await caller.respond({"error": "invalid_grant"}, status=400)
            return
        await caller.respond(self.give(client_id, scope, "DPoP" if proof else "Bearer"))

    def give(self, client_id, scope, kind="Bearer"):
        """Fresh tokens."""
        access, refresh = f"access-{secrets.token_hex(8)}", f"refresh-{secrets.token_hex(8)}"
        self.access[access] = scope
        self.refresh[refresh] = (client_id, scope)
        answer = {"access_token": access, "token_type": kind, "refresh_token": refresh}
        if scope:
            answer["scope"] = scope
        return answer | ({} if self.expires_in is None else {"expires_in": self.expires_in})

    def _client(self, request, form):
        words = request.headers.get("authorization", "")
        if words.startswith("Basic "):
            pair = base64.b64decode(words[6:]).decode().partition(":")
            return unquote(pair[0]), unquote(pair[2])
        return form.get("client_id"), form.get("client_secret")

    def _granted(self, form, client_id):
        """The scope that a grant is good for; None: it is not."""
        assert form["resource"] == (self.protects or f"{self.origin}/mcp")
        match form["grant_type"]:
            case "authorization_code":
                page = self._codes.pop(form["code"], None)
                if page is None or page["client_id"] != client_id:
                    return None
                digest = hashlib.sha256(form["code_verifier"].encode()).digest()
                fits = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
                assert (fits, page["redirect_uri"]) == (
                    page["code_challenge"],
                    form["redirect_uri"],
                )
                return page.get("scope", "")
            case "refresh_token":
                token = form["refresh_token"]
                if token in self.spent:  # reuse means theft: all tokens from it are revoked
                    self.refresh.clear()
                    self.access.clear()
                    return None
                owner, scope = self.refresh.pop(token, (None, None))
                self.spent.add(token)
                return scope if owner == client_id else None
            case "client_credentials":
                return form.get("scope", "")
        return None

    def check_proof(self, request, path, token):
        proof = request.headers["dpop"]
        head = extract_compact(proof.encode()).headers()
        key = ECKey.import_key(head["jwk"])
        claims = jwt.decode(proof, key, algorithms=["ES256"]).claims
        assert head["typ"] == "dpop+jwt"
        assert "d" not in head["jwk"]
        assert (claims["htm"], claims["htu"]) == ("POST", f"{self.origin}{path}")
        assert claims["jti"] not in {one["jti"] for one in self.proofs}
        if token is not None:
            digest = hashlib.sha256(token.encode()).digest()
            assert claims["ath"] == base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        self.proofs.append({**claims, "key": key.as_pem(private=False)})


class Person:
    """Goes where they are sent, agrees, and comes back with the address they end at."""

    def __init__(self):
        self.asked = []

    async def login(self, origin, address):
        """Log in, as the handler of a host, or of an account, which knows only the server."""
        server = origin if isinstance(origin, str) else origin.server
        self.asked.append((server, address))
        return await visit(address)


async def visit(address, *, follow=False):
    """Open a page like a browser; where it leads to, visited as well with `follow`."""
    async with aiohttp.ClientSession() as browser:
        async with browser.get(address, allow_redirects=False) as response:
            target = response.headers["Location"]
        if follow:
            async with browser.get(target) as page:
                return await page.text()
    return target


@asynccontextmanager
async def provided(**said):
    """A provider on loopback, and where its MCP server is."""
    provider = Provider(**said)
    async with zoo.serve(provider) as server:
        provider.url = server.url
        provider.origin = server.url.removesuffix("/mcp")
        provider.server = server
        yield provider
