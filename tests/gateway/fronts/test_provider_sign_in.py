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
from multitap.config import Profile
from multitap.config.access import AccessRule, AccessSettings, OidcIssuer, SignInSettings
from multitap.config.models import ConsoleSettings
from multitap.control.service import ControlService
from multitap.gateway.fronts.access import AccessRules, open_access
from multitap.gateway.fronts.accounts import open_accounts
from multitap.gateway.fronts.browser_sessions import PendingSignIn
from multitap.gateway.fronts.resource_server import ResourceServer
from multitap.identity.people import Revocation
from multitap.principal import Person
from multitap.screens.page.access import ConsoleKeys
from multitap.screens.page.console import Console
from tests.gateway.people import Browser
from tests.gateway.talking import gate
from tests.gateway.task_clients import NewClient, Refused
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
            grant = {"access_token": "opaque", "token_type": "Bearer"}
            if "resource" in page:
                audience = self.audience or page["resource"]
                grant["access_token"] = self.token(sub=user, aud=audience, groups=[user])
            identity = {"aud": page["client_id"], "nonce": page["nonce"], "groups": [user]}
            grant["id_token"] = self.token(sub=user, header={"typ": "JWT"}, **identity)
            await caller.respond(grant)
        else:
            await super().answer(request, caller)


@asynccontextmanager
async def office(folder, *, rules=(AccessRule(name="everybody"),), sign_in=None, **said):
    """A gateway whose people sign in at a provider, and have accounts at a server."""
    issuer = SigningIssuer(**said)
    async with provided() as provider, zoo.serve(issuer.answer) as served:
        issuer.origin = served.url.removesuffix("/mcp")
        access = AccessSettings(
            oidc={"corp": OidcIssuer(issuer=issuer.origin, client_id="multitap")},
            rules=rules,
            sign_in=sign_in,
        )
        server = HttpServer(url=provider.url, credentials="per-user")
        profiles = {"empty": Profile(servers=("other",))}
        settings = Settings(
            servers={"guarded": server}, state_dir=folder, access=access, profiles=profiles
        )
        async with gate(settings) as gateway:
            base = gateway.url.removesuffix("/mcp")
            hub = gateway.hub
            gateway.front.resource_server = ResourceServer(
                base, lambda: hub.settings.access, lambda: hub.settings.profiles
            )
            open_accounts(gateway.front, base)
            with open_access(AccessRules(host="127.0.0.1", has_providers=True)) as allowed:
                keys = ConsoleKeys(allowed.sources)
                console = Console(ControlService(gateway.gateway), gateway.front.access, keys)
            console.accounts = gateway.front.accounts
            gateway.front._console = console
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


def decide(gateway, issuer, **decision):
    """A decision about people, applied as the gateway does every moment."""
    verifier = gateway.front.resource_server.verifier
    verifier.people.decide(Revocation(at=time.time() + 1, issuer=issuer.origin, **decision))
    verifier.refresh()


async def test_a_logout_at_the_provider_ends_the_session_of_the_browser(tmp_path):
    async with office(tmp_path) as (gateway, issuer), Browser(gateway) as browser:
        await sign_in(browser)
        assert "Signed in" in (await browser.open("/accounts"))[1]
        decide(gateway, issuer, kind="logout", subject="alice")

        assert "Signed in" not in (await browser.open("/accounts"))[1]


async def test_with_other_rules_a_browser_has_to_sign_in_again(tmp_path):
    async with office(tmp_path) as (gateway, _), Browser(gateway) as browser:
        await sign_in(browser)
        hub, rules = gateway.hub, (AccessRule(name="others", subjects=("bob",)),)
        access = hub.settings.access.replace(rules=rules)
        hub.apply(hub.settings.replace(access=access))
        gateway.front.resource_server.follow_settings()

        assert "Signed in" not in (await browser.open("/accounts"))[1]
        status, text = await sign_in(browser)
        assert (status, "no access rule applies" in text) == (403, True)


async def test_any_replica_can_finish_a_sign_in_that_another_began(tmp_path):
    async with office(tmp_path) as (gateway, _), Browser(gateway) as browser:
        _, text = await browser.open("/accounts/sign-in?with=corp&then=/accounts")
        # what the other one knows is the key, and nothing of this sign-in
        open_accounts(gateway.front, gateway.url.removesuffix("/mcp"))
        status, text = await browser.open(re.search(r'content="0;url=([^"]+)"', text)[1])

        assert (status, "Signed in as alice" in text) == (200, True)


@pytest.mark.parametrize(
    "then",
    [
        "/accounts%0d%0aSet-Cookie:%20multitap_accounts=stolen",
        "//evil.example/accounts",
        "https:%2f%2fevil.example/accounts",
        "/accounts/../mcp",
        "/accounts%5c@evil.example",
    ],
)
async def test_a_link_to_sign_in_leads_nowhere_else_and_sets_nothing(tmp_path, then):
    async with office(tmp_path) as (gateway, _), Browser(gateway) as browser:
        _, text = await browser.open(f"/accounts/sign-in?with=corp&then={then}")
        provider = re.search(r'content="0;url=([^"]+)"', text)[1]
        async with browser.session.get(provider, allow_redirects=False) as page:
            back = page.headers["location"]
        async with browser.session.get(back, allow_redirects=False) as answer:
            assert answer.headers["location"] == "/accounts"
            cookies = answer.headers.getall("set-cookie")

        assert not any("stolen" in cookie for cookie in cookies)


async def test_over_tls_no_other_host_can_set_the_cookies(tmp_path):
    async with office(tmp_path) as (gateway, _):
        open_accounts(gateway.front, "https://tap.example.com")
        begun = gateway.front.accounts.sessions.begin_sign_in(
            PendingSignIn(state="a" * 43, provider="corp", nonce="n", verifier="v")
        )

        assert begun[1].startswith(b"__Host-multitap-aaaaaaaa=")
        assert b"; Secure" in begun[1]
        assert b"; Path=/;" in begun[1]
        assert b"Domain" not in begun[1]


ADMINS = (AccessRule(name="all"), AccessRule(name="operators", groups=("alice",), admin=True))


async def test_an_admin_opens_the_console_with_the_organisations_account(tmp_path):
    async with office(tmp_path, rules=ADMINS) as (gateway, issuer), Browser(gateway) as browser:
        status, text = await browser.open("/console/access")
        assert (status, "Sign in with corp" in text) == (401, True)
        status, text = await sign_in(browser, then="/console/access")
        assert (status, 'data-place="access"' in text) == (200, True)
        assert 'href="/console"' in (await browser.open("/accounts"))[1]
        asked = {"Origin": browser.base, "X-Multitap-Console": "1"}
        url = f"{browser.base}/console/api/access"
        async with browser.session.post(url, json={}, headers=asked) as answer:
            assert answer.status == 200

        async with browser.session.post(url, json={}, headers={"Origin": browser.base}) as answer:
            assert answer.status == 403  # a page of another site cannot send the mark
        decide(gateway, issuer, kind="revoked", subject="alice")
        async with browser.session.post(url, json={}, headers=asked) as answer:
            assert answer.status == 401


@pytest.mark.parametrize("may_add", [False, True])
async def test_an_admin_adds_servers_only_where_the_configuration_allows_it(tmp_path, may_add):
    async with office(tmp_path, rules=ADMINS) as (gateway, _), Browser(gateway) as browser:
        settings = gateway.hub.settings.replace(console=ConsoleSettings(add=may_add))
        gateway.hub.apply(settings)
        await sign_in(browser, then="/console")
        asked = {"Origin": browser.base, "X-Multitap-Console": "1"}
        new = {"new": {"source": "url", "what": "http://127.0.0.1:1/mcp"}}
        url = f"{browser.base}/console/api/review_server"
        async with browser.session.post(url, json=new, headers=asked) as answer:
            text = await answer.text()

        assert ("may not add servers" in text) is not may_add
        assert ("has no files to change" in text) is may_add


async def test_who_is_no_admin_has_accounts_but_no_console(tmp_path):
    async with (
        office(tmp_path, rules=ADMINS, user="bob") as (gateway, _),
        Browser(gateway) as browser,
    ):
        status, _ = await sign_in(browser, then="/console/access")
        assert status == 401
        text = (await browser.open("/accounts"))[1]
        assert "Signed in as bob" in text
        assert "/console" not in text


async def test_an_admin_who_leaves_the_console_is_signed_out(tmp_path):
    async with office(tmp_path, rules=ADMINS) as (gateway, _), Browser(gateway) as browser:
        await sign_in(browser)
        asked = {"Origin": browser.base, "X-Multitap-Console": "1"}
        url = f"{browser.base}/console/api/leave"
        async with browser.session.post(url, json={}, headers=asked) as answer:
            assert answer.status == 200

        assert (await browser.open("/console"))[0] == 401


async def test_where_we_issue_the_tokens_the_provider_need_not_know_the_gateway(tmp_path):
    signing = SignInSettings(provider="corp")
    async with (
        office(tmp_path, rules=ADMINS, sign_in=signing) as (gateway, issuer),
        Browser(gateway) as browser,
    ):
        status, text = await sign_in(browser)

        assert (status, f"alice at {issuer.origin}" in text) == (200, True)
        assert (await browser.open("/console"))[0] == 200


async def test_a_machine_sees_nothing_of_the_servers_of_people_and_gets_no_link(tmp_path):
    async with office(tmp_path) as (gateway, issuer):
        robot = {"sub": None, "client_id": "robot", "aud": gateway.url}
        async with NewClient(gateway.url, token=issuer.token(**robot), declares=False) as client:
            assert (await client.ask("tools/list", {}))["tools"] == []
            with pytest.raises(Refused) as caught:
                await client.call("guarded_whoami")

        assert "/accounts/connect" not in str(caught.value)


async def test_what_a_provider_says_is_text_on_our_page(tmp_path):
    async with office(tmp_path) as (gateway, _), Browser(gateway) as browser:
        _, text = await browser.open("/accounts/sign-in?with=corp&then=/accounts")
        state = re.search(r"state=([\w-]+)", text)[1]
        said = urlencode({"state": state, "error": "no", "error_description": "<b>x</b>\r\nevil"})
        async with browser.session.get(f"{browser.base}/accounts/signed-in?{said}") as answer:
            page = await answer.text()

        assert "<b>x</b>" not in page
        assert "evil" not in page.splitlines()


async def test_accounts_are_offered_at_servers_that_a_person_may_see(tmp_path):
    rules = (
        AccessRule(name="all", groups=("alice",)),
        AccessRule(name="few", groups=("bob",), profile="empty"),
    )
    async with (
        office(tmp_path, rules=rules) as (gateway, issuer),
        Browser(gateway) as alice,
        Browser(gateway) as bob,
    ):
        assert "guarded" in (await sign_in(alice))[1]
        issuer.user = "bob"
        assert "guarded" not in (await sign_in(bob))[1]
        form = {"csrf": await bob.csrf(), "server": "guarded"}
        assert (await bob.post("/accounts/connect", form))[0] == 404
        link = gateway.gateway.connections.links.new(Person(issuer.origin, "bob"), "guarded")
        assert (await bob.open(link))[0] == 404
