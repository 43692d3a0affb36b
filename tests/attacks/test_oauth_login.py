"""Hostile servers and authorization servers in the course of a login."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address

import aiohttp
import anyio
import pytest
from yarl import URL

from multitap import HttpServer
from multitap.cli.browser import open_page
from multitap.config import OAuth
from multitap.errors import AuthRequired, WireFault
from multitap.http.addresses import is_safe
from multitap.http.client.route import resolve_host
from multitap.oauth import endpoints
from multitap.oauth.account import Account
from multitap.oauth.callback import open_callback
from multitap.oauth.endpoints import AddressRules, permitted
from multitap.oauth.errors import LoginFailed
from multitap.oauth.storage import LoginStorage
from multitap.tasks import Tasks
from multitap.trust.stored_logins import TokenStore
from multitap.wire.http_origin import Challenge
from multitap.wire.streamable import open_streamable
from tests.attacks.served import OTHER_USER, asked_by, status_of
from tests.oauth.provider import Person, Provider, provided, visit
from tests.waiting import PATIENCE
from tests.wire import http_zoo as zoo
from tests.wire.asking import ask

REDIRECT = "http://127.0.0.1:8414/callback"


pytestmark = pytest.mark.usefixtures("own_logins")


@asynccontextmanager
async def canary(**more):
    """Somebody on this machine whom the server has nothing to do with."""

    async def sing(_request, caller):
        await caller.respond({"secret": "do not tell"})

    async with zoo.serve(sing, host="127.0.0.2", **more) as server:
        yield server


@asynccontextmanager
async def account_at(url, **known):
    async with Tasks() as tasks:
        config = HttpServer(url=url, oauth=OAuth(**known))
        yield Account("guarded", config, storage=LoginStorage(TokenStore()), tasks=tasks)


async def log_in(provider, person=None, *, challenge=None, **known):
    async with account_at(provider.url, **known) as account:
        words = challenge or provider.challenge.format(origin=provider.origin)
        return await account.log_in((person or Person()).login, REDIRECT, words)


async def test_ssrf_in_resource_metadata_reaches_nobody():
    async with canary() as bird, provided() as provider:
        with pytest.raises(LoginFailed, match="this machine"):
            await log_in(provider, challenge=f'Bearer resource_metadata="{bird.url}"')

    assert (bird.connections, provider.registrations) == (0, [])


@pytest.mark.parametrize(
    "word",
    ["token_endpoint", "registration_endpoint"],
)
async def test_ssrf_in_an_endpoint_reaches_nobody(word):
    async with canary() as bird, provided() as provider:
        provider.issuer = {word: bird.url}
        with pytest.raises(LoginFailed, match="this machine"):
            await log_in(provider)

    assert bird.connections == 0


async def test_ssrf_in_authorization_servers_reaches_nobody():
    async with canary() as bird, provided() as provider:
        provider.resource = {"authorization_servers": [bird.url.removesuffix("/mcp")]}
        with pytest.raises(LoginFailed, match="this machine"):
            await log_in(provider)

    assert bird.connections == 0


@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/",
        "http://example.com/",
        "https://127.0.0.2/",
        "https://[::ffff:127.0.0.2]/",
        "https://2130706434/",
        "https://169.254.169.254/",
        "https://[fd00:ec2::254]/",
        "https://192.168.1.1/",
        "https://user:word@127.0.0.1/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "ftp://127.0.0.1/",
        "//127.0.0.1/",
        "https://",
    ],
)
async def test_ssrf_by_an_address_of_any_kind_is_refused(address):
    async with provided() as provider:
        fetch = endpoints.GuardedFetch(provider.url)
        with pytest.raises(LoginFailed):
            await fetch.describe(address, {})


@pytest.mark.parametrize(
    ("address", "own", "allowed"),
    [
        ("93.184.216.34", (), True),
        ("10.1.2.3", (), False),
        ("0.0.0.0", (), False),
        ("::", (), False),
        ("::7f00:1", (), False),
        ("::ffff:0:7f00:1", (), False),
        ("64:ff9b:1::7f00:1", (), False),
        ("2002:7f00:1::", (), False),
        ("2001:0:7f00:1::", (), False),
        ("fec0::1", (), False),
        ("ff02::1", (), False),
        ("2606:4700::1", (), True),
        ("10.1.2.3", ("10.9.9.9",), True),
        ("192.168.0.1", ("10.9.9.9",), False),
        ("127.0.0.2", ("127.0.0.1",), False),
        ("127.0.0.1", ("127.0.0.1",), True),
        ("169.254.169.254", ("169.254.1.1",), False),
        ("fe80::1", (), False),
        ("::1", (), False),
        ("::ffff:10.0.0.1", (), False),
        ("64:ff9b::a00:1", (), False),
        ("2002:a00:1::", (), False),
        ("100.100.100.200", ("100.64.0.1",), False),
        ("224.0.0.1", (), False),
        ("2606:4700::1111", (), True),
    ],
)
def test_addresses_of_private_networks_are_for_servers_that_are_there(address, own, allowed):
    assert permitted(ip_address(address), {ip_address(one) for one in own}) is allowed


def resolving(**names):
    """A name service; `_` stands for a dot."""

    async def resolve(loop, host, port):
        addresses = names[host.replace(".", "_")]
        return [entry for one in addresses for entry in await resolve_host(loop, one, port)]

    return resolve


async def test_a_servers_own_name_opens_no_inner_address_by_what_it_resolves_to(tmp_path):
    here, _ = zoo.self_signed(tmp_path)

    async def sing(_request, caller):
        await caller.respond({})

    async with zoo.serve(sing, tls=here) as inner:
        # a service of ours, which cannot prove that it is the server
        resolve = resolving(
            evil_example=["127.0.0.1"], mixed_example=["93.184.216.34", "127.0.0.1"]
        )
        loop = asyncio.get_running_loop()
        for name in ("evil.example", "mixed.example"):
            rules = AddressRules(URL(f"https://{name}:{inner.port}/mcp"), resolve=resolve)
            with pytest.raises(LoginFailed, match="somewhere else"):
                await rules.resolve(loop, "evil.example", inner.port)
        plain = AddressRules(URL(f"http://evil.example:{inner.port}/mcp"), resolve=resolve)
        with pytest.raises(LoginFailed, match="somewhere else"):
            await plain.resolve(loop, "evil.example", inner.port)
        usable = await rules.resolve(loop, "mixed.example", inner.port)

    assert [address[4][0] for address in usable] == ["93.184.216.34"]


async def test_a_server_that_proves_its_name_at_an_inner_address_may_name_others_there(tmp_path):
    here, there = zoo.self_signed(tmp_path)

    async def sing(_request, caller):
        await caller.respond({})

    async with zoo.serve(sing, tls=here) as inner:
        resolve = resolving(far_invalid=["127.0.0.1"], sso_invalid=["127.0.0.1"])
        server = URL(f"https://far.invalid:{inner.port}/mcp")
        rules = AddressRules(server, resolve=resolve, tls=there)
        usable = await rules.resolve(asyncio.get_running_loop(), "sso.invalid", 443)

    assert [address[4][0] for address in usable] == ["127.0.0.1"]


@pytest.mark.parametrize("host", ["10.0.0.1", "169.254.169.254", "2130706434", "[fd00::1]"])
async def test_ssrf_through_a_proxy_of_the_machine_is_refused(monkeypatch, host):
    async with canary() as proxy, provided() as provider:
        monkeypatch.setenv("https_proxy", proxy.url.removesuffix("/mcp"))
        monkeypatch.setenv("no_proxy", "")
        with pytest.raises(LoginFailed, match="somewhere else"):
            await endpoints.GuardedFetch(provider.url).describe(f"https://{host}/", {})

    assert proxy.connections == 0


async def test_metadata_that_redirects_elsewhere_is_refused():
    async with canary() as bird:

        async def lead(_request, caller):
            await caller.respond(status=302, location=bird.url)

        async with zoo.serve(lead) as server, account_at(server.url) as account:
            with pytest.raises(LoginFailed, match="redirects to another origin"):
                await account.log_in(Person().login, REDIRECT, "Bearer")

    assert bird.connections == 0


async def test_metadata_without_end_is_cut_off():
    async def pour(_request, caller):
        await caller.head(200, content_type="application/json", transfer_encoding="chunked")
        while True:
            await caller.chunk(b" " * 65536)

    async with zoo.serve(pour) as server, account_at(server.url) as account:
        with pytest.raises(LoginFailed, match="more than 262,144 bytes"):
            await account.log_in(Person().login, REDIRECT, "Bearer")


async def test_metadata_that_never_comes_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(endpoints, "METADATA_TIMEOUT", 0.2)

    async def silence(_request, caller):
        await caller.gone()

    async with zoo.serve(silence) as server, account_at(server.url) as account:
        with pytest.raises(WireFault, match=r"did not answer within 0\.2 s"):
            await account.log_in(Person().login, REDIRECT, "Bearer")


@pytest.mark.parametrize(
    ("issuer", "words"),
    [
        pytest.param({"code_challenge_methods_supported": None}, "PKCE", id="no-pkce"),
        pytest.param({"code_challenge_methods_supported": ["plain"]}, "PKCE", id="plain-pkce"),
        pytest.param({"issuer": "https://evil.example"}, "another issuer", id="wrong-issuer"),
        pytest.param({"issuer": "{origin}/tenant"}, "another issuer", id="other-tenant"),
        pytest.param(
            {"authorization_endpoint": "javascript:alert(1)"}, "web address", id="javascript"
        ),
        pytest.param({"authorization_endpoint": "file:///etc/passwd"}, "web address", id="file"),
        pytest.param(
            {"authorization_endpoint": "http://example.com/"}, "is not https", id="plain-http"
        ),
    ],
)
async def test_a_person_is_sent_nowhere_by_an_authorization_server_that_lies(issuer, words):
    person = Person()
    async with provided(issuer=issuer) as provider:
        with pytest.raises(LoginFailed, match=words):
            await log_in(provider, person)

    assert person.asked == []


async def test_metadata_about_another_resource_is_refused():
    async with provided(resource={"resource": "https://bank.example/mcp"}) as provider:
        with pytest.raises(LoginFailed, match="another resource"):
            await log_in(provider)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(("iss=", "iss=https%3A%2F%2Fevil.example&x="), "`iss`", id="mix-up"),
        pytest.param(("iss=", "x="), "`iss`", id="iss-missing"),
        pytest.param(("state=", "state=x"), "`state`", id="wrong-state"),
        pytest.param(("state=", "x="), "`state`", id="no-state"),
    ],
)
async def test_mix_up_and_forged_answers_are_refused(change, words):
    class Misled(Person):
        async def login(self, origin, address):
            return (await super().login(origin, address)).replace(*change)

    async with provided() as provider:
        with pytest.raises(LoginFailed, match=words):
            await log_in(provider, Misled())

    assert provider.forms == [], "the code goes to nobody"


@pytest.mark.parametrize("iss", ["https%3A%2F%2Fevil.example", ""])
async def test_what_another_issuer_says_about_a_failure_is_not_shown(iss):
    class Misled(Person):
        async def login(self, origin, address):
            back, _, said = (await super().login(origin, address)).partition("?")
            [state] = [word for word in said.split("&") if word.startswith("state=")]
            words = "error_description=call+555-EVIL&error_uri=https%3A%2F%2Fevil.example"
            return f"{back}?{state}&error=access_denied&{words}" + (f"&iss={iss}" if iss else "")

    async with provided() as provider:
        with pytest.raises(LoginFailed, match="`iss`") as caught:
            await log_in(provider, Misled())

    assert "EVIL" not in str(caught.value)
    assert provider.forms == []


async def test_an_answer_of_another_login_is_refused():
    first = Person()
    async with provided() as provider:
        await log_in(provider, first)
        used = await visit(first.asked[0][1])

        class Replayed(Person):
            async def login(self, origin, address):
                return used

        with pytest.raises(LoginFailed, match="`state`"):
            await log_in(provider, Replayed())


async def test_a_client_secret_goes_only_to_the_issuer_it_was_given_for():
    mine = {"client_id": "me", "client_secret": "s3cret-of-mine"}
    known = {"me": {"secret": "s3cret-of-mine", "redirects": [REDIRECT]}}
    async with provided(clients=known) as provider, provided(clients=known) as thief:
        await log_in(provider, **mine)
        provider.resource = {"authorization_servers": [thief.origin]}
        with pytest.raises(LoginFailed, match=r"set `oauth\.issuer`"):
            await log_in(provider, **mine)
        with pytest.raises(LoginFailed, match=r"`oauth\.issuer` is"):
            await log_in(provider, **mine, issuer=provider.origin)

    assert thief.server.connections == 0 or thief.forms == []


SECRET = "s3cret-of-a-machine"
BY_SECRET = {"grant": "client_credentials", "client_id": "ci", "client_secret": SECRET}
BY_STATEMENT = {"grant": "jwt_bearer", "client_id": "ci", "assertion": SECRET}


def machine():
    """What a provider knows of a program with a secret."""
    return {"ci": {"secret": SECRET, "redirects": [REDIRECT]}}


async def log_in_as_machine(provider, known, **more):
    """What a program does when its server refuses a request."""
    async with account_at(provider.url, **known, **more) as account:
        challenge = Challenge(401, provider.challenge.format(origin=provider.origin), None)
        with anyio.fail_after(PATIENCE):
            return await account.answer(challenge, "POST", URL(provider.url), waits=False)


@pytest.mark.parametrize("known", [BY_SECRET, BY_STATEMENT], ids=["secret", "statement"])
@pytest.mark.parametrize("slash", ["", "/"])
async def test_a_machines_credentials_go_to_the_first_issuer_only(known, slash):
    async with provided(clients=machine()) as provider, provided(clients=machine()) as thief:
        with suppress(AuthRequired):  # this provider reads statements, but accepts none
            await log_in_as_machine(provider, known)
        provider.resource = {"authorization_servers": [f"{thief.origin}{slash}"]}
        with pytest.raises(AuthRequired) as refused:
            await log_in_as_machine(provider, known)

    assert len(provider.forms) == 1
    assert thief.forms == []
    assert provider.origin in str(refused.value)
    assert thief.origin in str(refused.value)
    assert "run `multitap login guarded`" in refused.value.hint


async def test_a_machines_credentials_stay_with_the_first_token_endpoint():
    async with provided(clients=machine()) as provider, provided(clients=machine()) as thief:
        await log_in_as_machine(provider, BY_SECRET)
        provider.issuer = {"token_endpoint": f"{thief.origin}/token"}
        with pytest.raises(AuthRequired, match="token, and they were given for"):
            await log_in_as_machine(provider, BY_SECRET)

    assert thief.forms == []


async def test_a_machine_prefers_the_issuer_that_it_knows():
    async with provided(clients=machine()) as provider, provided(clients=machine()) as thief:
        await log_in_as_machine(provider, BY_SECRET)
        provider.resource = {"authorization_servers": [thief.origin, provider.origin]}
        await log_in_as_machine(provider, BY_SECRET)

    assert (len(provider.forms), thief.forms) == (2, [])


async def test_an_issuer_that_refuses_a_machine_is_the_first_one_all_the_same():
    async with provided() as provider, provided(clients=machine()) as thief:
        with pytest.raises(AuthRequired, match="invalid_client"):
            await log_in_as_machine(provider, BY_SECRET)
        provider.resource = {"authorization_servers": [thief.origin]}
        with pytest.raises(AuthRequired, match="were given for"):
            await log_in_as_machine(provider, BY_SECRET)

    assert thief.forms == []


async def test_an_id_token_is_exchanged_for_the_first_issuer_only():
    audiences = []

    async def exchange(form):
        audiences.append(form["audience"])
        return {"error": "invalid_target"}

    async with (
        provided(on_token=exchange) as company,
        provided() as provider,
        provided() as thief,
    ):
        known = {**BY_STATEMENT, "identity_provider": f"{company.origin}/token"}
        for issuer in (provider.origin, thief.origin):
            provider.resource = {"authorization_servers": [issuer]}
            with pytest.raises(AuthRequired):
                await log_in_as_machine(provider, known)

    assert audiences == [provider.origin]
    assert thief.forms == []


@pytest.mark.parametrize("known", [BY_SECRET, BY_STATEMENT], ids=["secret", "statement"])
async def test_a_token_endpoint_that_redirects_gets_nothing_sent_on(known):
    async with provided(clients=machine()) as thief:

        async def redirect(request, caller):
            if request.path == "/token":
                await caller.respond(status=307, location=f"{thief.origin}/token")
            else:
                await provider(request, caller)

        provider = Provider(clients=machine())
        async with zoo.serve(redirect) as server:
            provider.url, provider.origin = server.url, server.url.removesuffix("/mcp")
            with pytest.raises(AuthRequired, match="redirects"):
                await log_in_as_machine(provider, known)

    assert thief.forms == []


async def test_a_server_cannot_describe_the_configured_issuer_to_a_machine():
    async with provided(clients=machine()) as issuer, _impostor_of(issuer) as thief:
        issuer.protects = thief.url
        await log_in_as_machine(thief, BY_SECRET, issuer=issuer.origin)

    assert (len(issuer.forms), thief.forms) == (1, [])


async def test_a_server_cannot_describe_the_configured_issuer_to_a_person():
    async with provided(clients=machine()) as issuer, _impostor_of(issuer) as thief:
        pages = []

        async def look(_origin, page):
            pages.append(page)
            raise LoginFailed("they have seen enough")

        async with account_at(
            thief.url, client_id="ci", client_secret=SECRET, issuer=issuer.origin
        ) as account:
            with pytest.raises(LoginFailed, match="seen enough"):
                await account.log_in(look, REDIRECT, "Bearer")

    assert URL(pages[0]).origin() == URL(issuer.origin)


@asynccontextmanager
async def _impostor_of(issuer):
    """A server without metadata, which by an old rule describes its issuer itself."""
    async with provided(clients=machine()) as thief:
        thief.challenge = "Bearer"
        thief.resource = {"authorization_servers": []}
        thief.issuer = {"issuer": issuer.origin}
        yield thief


async def test_where_the_first_issuer_cannot_be_stored_it_has_to_be_configured():
    async with provided(clients=machine()) as provider:
        folder = TokenStore().file.parent
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.write_text("not a folder")
        with pytest.raises(AuthRequired) as refused:
            await log_in_as_machine(provider, BY_SECRET)
        assert provider.forms == []
        await log_in_as_machine(provider, BY_SECRET, issuer=provider.origin)

    assert "set `oauth.issuer`" in refused.value.hint


async def test_an_error_page_with_tokens_is_not_quoted():
    async with provided() as provider:

        async def leak(form):
            return f"<html>{form['code']} access-s3cret</html>".encode()

        provider.on_token = leak
        with pytest.raises(LoginFailed, match="HTTP 400") as caught:
            await log_in(provider)

    assert "s3cret" not in str(caught.value)


async def test_tokens_do_not_follow_a_redirect_to_another_origin():
    async with canary() as bird, provided() as provider:
        await log_in(provider)

        async def lead(request, caller):
            await caller.respond(status=307, location=bird.url)

        provider.serve = lead
        config = HttpServer(url=provider.url)
        async with Tasks() as tasks:
            account = Account("guarded", config, storage=LoginStorage(TokenStore()), tasks=tasks)
            async with open_streamable(config, authorizer=account) as wire:
                with pytest.raises(WireFault, match="another origin"):
                    await ask(wire, "ping", {}, timeout=PATIENCE)

    assert bird.connections == 0


async def test_cve_2025_62800_the_callback_page_escapes_what_it_shows():
    async with open_callback("<b>x</b>") as callback, aiohttp.ClientSession() as browser:
        page = "https://as.example/?state=s"
        hostile = "<script>alert(1)</script>"
        shown = {}

        async def come_back():
            query = {"state": "s", "error": "e", "error_description": hostile}
            async with browser.get(callback.address, params=query) as response:
                shown["text"], shown["headers"] = await response.text(), response.headers

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(callback.wait, page)
            tasks.start_soon(come_back)

    assert "<script>" not in shown["text"]
    assert "<b>" not in shown["text"]
    assert "default-src 'none'" in shown["headers"]["Content-Security-Policy"]


async def test_a_callback_takes_one_answer_and_is_closed():
    async with open_callback("guarded") as callback, aiohttp.ClientSession() as browser:
        answers = []

        async def wait():
            answers.append(await callback.wait("https://as.example/?state=right"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            for target, host in (
                (f"{callback.address}?state=wrong&code=1", None),
                (f"{callback.address}?code=1", None),
                (f"{callback.address}x?state=right&code=1", None),
                (f"{callback.address}?state=right&code=1", "evil.example"),
            ):
                headers = {} if host is None else {"Host": host}
                async with browser.get(target, headers=headers) as response:
                    assert response.status in {400, 404}
            assert answers == []
            async with browser.get(f"{callback.address}?state=right&code=2") as response:
                assert response.status == 200
        with pytest.raises(aiohttp.ClientConnectorError):
            await browser.get(f"{callback.address}?state=right&code=3")

    assert answers == [f"{callback.address}?state=right&code=2"]


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "http://example.com/",
        "https://x.example/?a=$(calc)",
        "https://x.example/?a=`calc`",
        'https://x.example/"&calc',
        "https://x.example/ calc",
        "https://x.example/\ncalc",
        "-a https://x.example/",
        "https://x.example/?a='|calc",
    ],
)
def test_cve_2025_6514_a_browser_gets_plain_web_addresses_only(address, tmp_path, monkeypatch):
    opened = tmp_path / "opened"
    program = tmp_path / "xdg-open"
    program.write_text(f"#!/bin/sh\ntouch {opened}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DISPLAY", ":0")

    assert not is_safe(address)
    assert not open_page(address)
    assert not opened.exists()


async def test_a_browser_is_started_without_the_state_of_a_login():
    page = "https://as.example/authorize?state=right"
    async with open_callback("guarded") as callback, aiohttp.ClientSession() as browser:
        front = callback.forward_to(page)
        statuses = []
        for headers in ({"Host": "evil.example"}, {}, {}):
            async with browser.get(front, headers=headers, allow_redirects=False) as response:
                statuses.append((response.status, response.headers.get("Location")))

    assert is_safe(front)
    assert "right" not in front
    assert statuses == [(404, None), (303, page), (404, None)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_local_user_can_neither_start_nor_answer_a_login():
    page = "https://as.example/authorize?state=right"
    async with (
        open_callback("guarded") as callback,
        aiohttp.ClientSession() as browser,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(callback.wait, page)
        front, answer = callback.forward_to(page), f"{callback.address}?state=right&code=1"
        for address in (front, answer):
            url = URL(address)
            request = f"GET {url.path_qs} HTTP/1.1\r\nHost: {url.authority}\r\n\r\n".encode()
            reply = await anyio.to_thread.run_sync(asked_by, OTHER_USER, url.port, request)
            assert status_of(reply) == 403
            assert b"right" not in reply
        async with browser.get(front, allow_redirects=False) as response:
            assert response.headers["Location"] == page
        async with browser.get(answer) as response:
            assert response.status == 200


async def test_no_scope_makes_a_page_that_a_shell_interprets():
    async with provided() as provider:
        person = Person()
        await log_in(provider, person, scope="read $(calc) 'a' (b) *!")

    (_, page), *_ = person.asked
    assert is_safe(page)
    assert provider.pages[0]["scope"] == "read $(calc) 'a' (b) *!"


RENEW = """
import asyncio, sys
from multitap import HttpServer
from multitap.tasks import Tasks
from multitap.trust.stored_logins import TokenStore
from multitap.oauth.account import Account
from multitap.oauth.storage import LoginStorage
from multitap.wire.streamable import open_streamable
from multitap.wire.request import Deadline
from multitap.wire.request import make_request

async def main(url):
    config = HttpServer(url=url)
    async with Tasks() as tasks:
        account = Account("guarded", config, storage=LoginStorage(TokenStore()), tasks=tasks)
        async with open_streamable(config, authorizer=account) as wire:
            deadline = Deadline.since(asyncio.get_running_loop().time(), 30, None)
            await wire.request(make_request("tools/call", {"name": "whoami"}, deadline))

asyncio.run(main(sys.argv[1]))
"""


async def test_two_processes_renew_a_rotating_token_once():
    async with provided() as provider:
        await log_in(provider)
        provider.access.clear()
        quiet = {"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
        processes = [
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                RENEW,
                provider.url,
                env={**os.environ, **quiet},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for _ in range(2)
        ]
        with anyio.fail_after(PATIENCE):
            said = [(await one.communicate())[0].decode() for one in processes]

    assert [one.returncode for one in processes] == [0, 0], said
    assert [form["grant_type"] for form in provider.forms].count("refresh_token") == 1


def test_others_cannot_read_logins_and_what_they_could_read_is_not_used(tmp_path):
    store = TokenStore(tmp_path / "vault")
    (tmp_path / "vault").mkdir(mode=0o700)
    store.file.write_text(json.dumps({"version": 1, "logins": {}}))
    store.file.chmod(0o644)

    with pytest.raises(Exception, match="others can read"):
        store.logins()
