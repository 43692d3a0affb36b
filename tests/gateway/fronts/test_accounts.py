"""The phishing steps of the URL elicitation rules, and what people do on their pages."""

import re

import anyio
import pytest

from multitap import HttpServer, Settings
from multitap.gateway import connections
from multitap.gateway.fronts.tokens import Token
from multitap.principal import NO_PERSON, Principal
from tests.gateway.people import Browser, Client, person, program, team, text_of, token_of
from tests.oauth.provider import provided
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("own_logins")


def guarded(provider, folder, **fields):
    server = HttpServer(url=provider.url, credentials="per-user", **fields)
    return Settings(servers={"guarded": server}, state_dir=folder)


def link_for(gateway, name, server="guarded"):
    return gateway.gateway.connections.links.new(person(name), server)


async def account(gateway, name, server="guarded"):
    return await gateway.hub.people.of(person(name)).account(server)


async def test_a_link_that_was_sent_to_somebody_else_connects_nothing(tmp_path):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Browser(gateway, "bob") as bob,
    ):
        status, text = await bob.open(link_for(gateway, "alice"))

        assert (status, "somebody else" in text) == (403, True)
        assert provider.pages == []
        assert [await account(gateway, name) for name in ("alice", "bob")] == [None, None]


async def test_a_link_opened_in_a_private_window_asks_who_opens_it(tmp_path):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Browser(gateway) as window,
    ):
        link = link_for(gateway, "alice")
        status, text = await window.open(link)
        assert (status, "Sign in" in text) == (200, True)

        then = link.removeprefix(window.base)
        _, text = await window.sign_in("bob", then)
        assert "somebody else" in text
        assert await account(gateway, "alice") is None


async def test_an_edited_link_is_refused(tmp_path):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Browser(gateway, "alice") as alice,
    ):
        link = link_for(gateway, "alice")
        place = len(link) - 10
        for edited in (
            link[:place] + ("A" if link[place] != "A" else "B") + link[place + 1 :],
            link[:-4],
            f"{alice.base}/accounts/connect?for=guarded",
            f"{alice.base}/accounts/connect",
        ):
            status, text = await alice.open(edited)
            assert (status, "too old, or was changed" in text) == (410, True)


async def test_a_link_is_refused_when_it_is_too_old(tmp_path, monkeypatch):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Browser(gateway, "alice") as alice,
    ):
        link = link_for(gateway, "alice")
        monkeypatch.setattr(connections, "LINK_LIFE", -1.0)

        assert (await alice.open(link))[0] == 410


async def test_a_replayed_link_connects_the_same_person_only(tmp_path):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Browser(gateway, "alice") as alice,
        Browser(gateway, "bob") as bob,
    ):
        link = link_for(gateway, "alice")
        assert "connected" in await alice.connect(link)

        assert "somebody else" in await bob.connect(link)
        assert "connected" in await alice.connect(link)
        assert await account(gateway, "bob") is None


async def test_opening_a_link_does_nothing_before_its_person_agrees(tmp_path):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Browser(gateway, "alice") as alice,
    ):
        status, text = await alice.open(link_for(gateway, "alice"))

        assert (status, "Go on only if" in text) == (200, True)
        assert (provider.pages, provider.registrations) == ([], [])


async def test_the_form_of_a_link_cannot_be_sent_for_another_server_or_person(tmp_path):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Browser(gateway, "bob") as bob,
    ):
        ticket = link_for(gateway, "alice").partition("for=")[2]
        form = {"csrf": await bob.csrf(), "server": "guarded", "for": ticket}
        assert (await bob.post("/accounts/connect", form))[0] == 403
        other = link_for(gateway, "bob", "elsewhere").partition("for=")[2]
        assert (await bob.post("/accounts/connect", {**form, "for": other}))[0] == 403

        assert provider.pages == []


async def test_the_redirect_of_a_login_counts_only_in_the_browser_that_began_it(tmp_path):
    """Mallory begins a login and has Alice finish it: Mallory gets none of Alice's tokens."""
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Browser(gateway, "bob") as mallory,
        Browser(gateway, "alice") as alice,
        Browser(gateway) as nobody,
    ):
        for victim, status in ((alice, 403), (nobody, 400)):
            form = {"csrf": await mallory.csrf(), "server": "guarded"}
            _, text = await mallory.post("/accounts/connect", form)
            page = re.search(r'content="0;url=([^"]+)"', text)[1]
            assert (await victim.open(page))[0] == status
            # nor can it be used afterwards by the one who began it, if it was given up
        assert [await account(gateway, name) for name in ("alice", "bob")] == [None, None]
        assert "authorization_code" not in [form["grant_type"] for form in provider.forms]


async def test_a_browser_that_returns_after_its_time_learns_why(tmp_path):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Browser(gateway, "alice") as alice,
    ):
        form = {"csrf": await alice.csrf(), "server": "guarded"}
        _, text = await alice.post("/accounts/connect", form)
        page = re.search(r'content="0;url=([^"]+)"', text)[1]
        (flow,) = gateway.front.accounts._logins._flows.values()
        flow.redirected.cancel()  # as the end of its time does
        await flow.outcome
        status, text = await alice.open(page)

        assert (status, await account(gateway, "alice")) == (400, None)
        assert "the login was not completed" in text


async def test_a_login_that_is_refused_ends_only_itself(tmp_path):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Browser(gateway, "alice") as alice,
    ):
        form = {"csrf": await alice.csrf(), "server": "guarded"}
        _, text = await alice.post("/accounts/connect", form)
        page = re.search(r'content="0;url=([^"]+)"', text)[1]
        state = re.search(r"state=([^&]+)", page)[1]
        refused = await alice.open(f"/accounts/callback?error=access_denied&state={state}")
        overview = await alice.open("/accounts")

        assert refused[0] == 400
        assert "the redirect does not name the authorization server" in refused[1]
        assert overview[0] == 200


async def test_a_form_of_another_site_is_refused(tmp_path):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Browser(gateway, "alice") as alice,
    ):
        form = {"csrf": await alice.csrf(), "server": "guarded"}
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            assert (await alice.post("/accounts/connect", form, **headers))[0] == 403
        wrong = {**form, "csrf": "guess"}
        assert (await alice.post("/accounts/connect", wrong))[0] == 403
        # nor can a browser be signed in as somebody else, to collect what its person connects
        mine = {"token": token_of("bob"), "then": "/accounts"}
        assert (await alice.post("/accounts/sign-in", mine, Origin="https://evil.example"))[
            0
        ] == 403
        assert "alice" in (await alice.open("/accounts"))[1]


async def test_the_pages_cannot_be_framed_and_lead_nowhere_else(tmp_path):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Browser(gateway) as browser,
        browser.session.get(f"{browser.base}/accounts") as response,
    ):
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
        assert response.headers["x-frame-options"] == "DENY"
        form = {"token": token_of("alice"), "then": "https://evil.example"}
        async with browser.session.post(
            f"{browser.base}/accounts/sign-in",
            data=form,
            headers={"Origin": browser.base},
            allow_redirects=False,
        ) as signed_in:
            assert signed_in.headers["location"] == "/accounts"
            cookie = signed_in.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        assert token_of("alice") not in cookie


async def test_a_browser_is_signed_out_with_its_token(tmp_path):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Browser(gateway, "alice") as alice,
    ):
        assert "Signed in as alice" in (await alice.open("/accounts"))[1]
        gateway.front.access.tokens = (Token(b"another-token-of-length", "bob"),)

        assert "Sign in" in (await alice.open("/accounts"))[1]


async def test_wrong_tokens_are_counted(tmp_path):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Browser(gateway) as browser,
    ):
        form = {"token": "not-a-token-of-this-gateway", "then": "/accounts"}
        statuses = [(await browser.post("/accounts/sign-in", form))[0] for _ in range(12)]

        assert statuses[0] == 401
        assert statuses[-1] == 429


def test_programs_and_strangers_have_no_accounts():
    machine = Principal("key", "https://login.example", "service", is_machine=True)

    assert machine.account_owner == NO_PERSON
    assert Principal().account_owner == NO_PERSON


async def test_my_accounts_shows_connects_and_disconnects(tmp_path):
    async with provided() as provider:
        settings = guarded(provider, tmp_path)
        settings = settings.with_servers({**settings.servers, "mine": program()})
        async with team(settings) as gateway, Browser(gateway, "alice") as alice:
            _, text = await alice.open("/accounts")
            assert text.count("not connected") == 2

            form = {"csrf": await alice.csrf(), "server": "guarded"}
            _, text = await alice.post("/accounts/connect", form)
            page = re.search(r'content="0;url=([^"]+)"', text)[1]
            assert "connected" in (await alice.open(page))[1]
            await alice.give_key("mine", "key-of-alice")
            _, text = await alice.open("/accounts")
            assert ("connected at 127.0.0.1" in text, "with your key" in text) == (True, True)
            assert "key-of-alice" not in text

            for server in ("guarded", "mine"):
                form = {"csrf": await alice.csrf(), "server": server}
                _, text = await alice.post("/accounts/disconnect", form)
            assert text.count("not connected") == 2
            async with Client("old", gateway, "alice", able=False) as client:
                with anyio.fail_after(PATIENCE):
                    listed = await client.client.list_tools()
                names = sorted(tool.name for tool in listed.tools)
                assert names == ["guarded_connect", "mine_connect"]


async def test_a_key_never_passes_through_the_client(tmp_path):
    settings = Settings(servers={"mine": program()}, state_dir=tmp_path)
    async with (
        team(settings) as gateway,
        Client("old", gateway, "alice") as client,
        Browser(gateway, "alice") as alice,
    ):
        with anyio.fail_after(PATIENCE):
            result = await client.client.call_tool("mine_connect", {})
        (asked,) = client.asked
        assert asked.mode == "url"
        assert result.is_error
        _, text = await alice.open(asked.url)
        assert 'type="password"' in text

        await alice.give_key("mine", "key-of-alice")
        await until(lambda: gateway.gateway.connections.is_connected(person("alice"), "mine"))
        with anyio.fail_after(PATIENCE):
            result = await client.client.call_tool("mine_whoami", {})
        assert text_of(result).startswith("key-of-alice")
