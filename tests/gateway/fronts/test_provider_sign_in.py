"""People of an identity provider sign in with a browser, and are who their tokens say."""

import base64
import hashlib
import re
import secrets
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from multitap import HttpServer, Settings
from multitap.config.access import AccessRule, AccessSettings, OidcIssuer
from multitap.gateway.fronts.accounts import open_accounts
from multitap.gateway.fronts.resource_server import ResourceServer
from multitap.identity.people import Revocation
from multitap.principal import Person
from tests.gateway.people import Browser
from tests.gateway.talking import gate
from tests.identity.tiny_issuer import METADATA, TinyIssuer
from tests.oauth.provider import provided
from tests.wire import http_zoo as zoo

pytestmark = pytest.mark.usefixtures("own_logins")


@dataclass
class SigningIssuer(TinyIssuer):
    """Signs in whoever `user` names, with PKCE, and issues a token for the resource."""

    user: str = "alice"
    audience: str | None = None
    codes: dict = field(default_factory=dict)

    async def answer(self, request, caller):
        path = urlsplit(request.path).path
        if path == METADATA:
            usual = ("authorization", "token")
            endpoints = {f"{name}_endpoint": f"{self.origin}/{name}" for name in usual}
            endpoints["authorization_endpoint"] = f"{self.origin}/authorize"
            await caller.respond(
                {
                    "issuer": self.origin,
                    "jwks_uri": f"{self.origin}/jwks",
                    "code_challenge_methods_supported": ["S256"],
                    **endpoints,
                }
            )
        elif path == "/authorize":
            page = dict(parse_qsl(urlsplit(request.path).query))
            code = secrets.token_urlsafe(8)
            self.codes[code] = page, self.user
            answer = urlencode({"code": code, "state": page["state"], "iss": self.origin})
            await caller.respond(status=302, location=f"{page['redirect_uri']}?{answer}")
        elif path == "/token":
            form = dict(parse_qsl(request.body.decode()))
            page, user = self.codes.pop(form["code"])
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            fits = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            assert page["code_challenge"] == fits
            token = self.token(sub=user, aud=self.audience or page["resource"])
            await caller.respond({"access_token": token, "token_type": "Bearer"})
        else:
            await super().answer(request, caller)


@asynccontextmanager
async def office(folder, **said):
    """A gateway whose people sign in at a provider, and have accounts at a server."""
    issuer = SigningIssuer(**said)
    async with provided() as provider, zoo.serve(issuer.answer) as served:
        issuer.origin = served.url.removesuffix("/mcp")
        access = AccessSettings(
            oidc={"corp": OidcIssuer(issuer=issuer.origin, client_id="multitap")},
            rules=(AccessRule(name="everybody"),),
        )
        server = HttpServer(url=provider.url, credentials="per-user")
        settings = Settings(servers={"guarded": server}, state_dir=folder, access=access)
        async with gate(settings) as gateway:
            base = gateway.url.removesuffix("/mcp")
            hub = gateway.hub
            gateway.front.resource_server = ResourceServer(
                base, lambda: hub.settings.access, lambda: hub.settings.profiles
            )
            open_accounts(gateway.front, base)
            yield gateway, issuer


async def sign_in(browser, then="/accounts"):
    """The last page of a sign-in."""
    _, text = await browser.open(f"/accounts/sign-in?with=corp&then={then}")
    return await browser.open(re.search(r'content="0;url=([^"]+)"', text)[1])


async def test_a_person_of_a_provider_signs_in_and_connects_an_account(tmp_path):
    async with office(tmp_path) as (gateway, issuer), Browser(gateway) as browser:
        assert "Sign in with corp" in (await browser.open("/accounts"))[1]
        status, text = await sign_in(browser)
        assert (status, f"alice at {issuer.origin}" in text) == (200, True)

        alice = Person(issuer.origin, "alice")
        link = gateway.gateway.connections.links.new(alice, "guarded")
        assert "connected" in await browser.connect(link)
        assert await gateway.hub.people.of(alice).account("guarded") is not None


async def test_a_link_of_another_person_of_the_provider_is_refused(tmp_path):
    async with office(tmp_path, user="bob") as (gateway, issuer), Browser(gateway) as browser:
        await sign_in(browser)
        link = gateway.gateway.connections.links.new(Person(issuer.origin, "alice"), "guarded")

        assert (await browser.open(link))[0] == 403


async def test_a_token_for_somebody_else_signs_nobody_in(tmp_path):
    async with (
        office(tmp_path, audience="https://other.example/mcp") as (gateway, _),
        Browser(gateway) as browser,
    ):
        status, text = await sign_in(browser)

        assert (status, "Sign in" in text) == (403, True)
        assert "Signed in" not in (await browser.open("/accounts"))[1]


async def test_a_sign_in_counts_only_in_the_browser_that_began_it(tmp_path):
    async with (
        office(tmp_path) as (gateway, _),
        Browser(gateway) as mallory,
        Browser(gateway) as victim,
    ):
        _, text = await mallory.open("/accounts/sign-in?with=corp&then=/accounts")
        page = re.search(r'content="0;url=([^"]+)"', text)[1]

        assert (await victim.open(page))[0] == 400
        assert "Signed in" not in (await victim.open("/accounts"))[1]


async def test_a_revoked_person_is_signed_out(tmp_path):
    async with office(tmp_path) as (gateway, issuer), Browser(gateway) as browser:
        await sign_in(browser)
        assert "Signed in" in (await browser.open("/accounts"))[1]
        verifier = gateway.front.resource_server.verifier
        revoked = Revocation(kind="revoked", at=time.time(), issuer=issuer.origin, subject="alice")
        verifier.people.decide(revoked)
        verifier.refresh()

        assert "Signed in" not in (await browser.open("/accounts"))[1]
