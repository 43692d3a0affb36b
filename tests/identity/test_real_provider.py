"""A real identity provider: people in two groups sign in by one URL, and one of them leaves."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from urllib.parse import parse_qs, urljoin, urlsplit

import aiohttp
import anyio
import httpx2
import pytest
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata

from tests.conformance.kit import NODE, fill_once, locked, npm_install
from tests.waiting import PATIENCE

PROGRAM = Path(__file__).with_name("provider") / "provider.mjs"
PACKAGE = "oidc-provider@9.13.3"
SETTINGS = """
[serve]
public_url = "{url}"
[access.oidc.corp]
issuer = "{issuer}"
scopes = ["tools"]
client_id = "gateway"
client_secret = "gateways-secret"
introspect = true
[[access.rules]]
name = "developers"
groups = ["dev"]
profile = "first"
[[access.rules]]
name = "operators"
groups = ["ops"]
profile = "second"
admin = true
[[access.rules]]
name = "robots"
clients = ["robot"]
allow = ["one_*"]
[profiles.first]
servers = ["one", "notes"]
[profiles.second]
servers = ["two"]
[servers.notes]
command = "{python}"
args = ["{personal}", "old", "personal"]
env = {{ PERSONAL_KEY = "${{auth:key}}" }}
credentials = "per-user"
[servers.one]
command = "{python}"
args = ["-I", "-S", "{upstream}"]
[servers.two]
command = "{python}"
args = ["-I", "-S", "{upstream}"]
"""
PERSONAL = Path(__file__).parents[1] / "gateway" / "personal_server.py"
UPSTREAM = Path(__file__).parents[1] / "gateway" / "hostile" / "upstream.py"

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def package(pytestconfig):
    """The folder with the provider."""
    home = pytestconfig.cache.mkdir("oidc-provider")
    with locked(home / "lock"):
        fill_once(home / "installed", lambda target: npm_install(target, PACKAGE))
        shutil.copy(PROGRAM, home / "installed")
    return home / "installed"


def free_port():
    with socket.socket() as plug:
        plug.bind(("127.0.0.1", 0))
        return plug.getsockname()[1]


@asynccontextmanager
async def running(*command, env=None, mark):
    """A program that is ready once it writes a line with the mark."""
    process = await anyio.open_process(
        command, stdin=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
    )
    written = b""
    try:
        with anyio.fail_after(PATIENCE):
            while mark not in written:
                written += await process.stdout.receive()
        async with anyio.create_task_group() as tasks:

            async def drain():
                async for _ in process.stdout:  # or it would stop when the pipe is full
                    pass

            tasks.start_soon(drain)
            yield
            tasks.cancel_scope.cancel()
    finally:
        process.terminate()
        with anyio.CancelScope(shield=True), anyio.move_on_after(10):
            await process.aclose()


@asynccontextmanager
async def team(package, tmp_path, form="jwt"):
    """The provider, and a gateway that it vouches at; yields both addresses."""
    ports = free_port(), free_port()
    issuer, url = (f"http://127.0.0.1:{port}" for port in ports)
    path = tmp_path / "multitap.toml"
    path.write_text(
        SETTINGS.format(
            url=url, issuer=issuer, python=sys.executable, upstream=UPSTREAM, personal=PERSONAL
        )
    )
    node = str(NODE / "bin" / "node")
    env = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_STATE_HOME": str(tmp_path / "state")}
    serve = ("serve", "--config", str(path), "--http", f"127.0.0.1:{ports[1]}", "--alone")
    program = str(package / "provider.mjs")
    async with (
        running(node, program, str(ports[0]), f"{url}/mcp", form, mark=b"ready http"),
        running(sys.executable, "-m", "multitap", *serve, env=env, mark=b"press Ctrl-C"),
    ):
        yield issuer, url, env


class Storage:
    """Keeps what a client gets, as a TokenStorage."""

    tokens = info = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.info

    async def set_client_info(self, info):
        self.info = info


async def browse(browser, address, name, form=None):
    """Go where pages lead, and sign in at the provider as a person does; the last page."""
    for _ in range(20):
        method = "GET" if form is None else "POST"
        headers = {"Origin": "{0.scheme}://{0.netloc}".format(urlsplit(address))}
        async with browser.request(
            method, address, data=form, headers=headers if form else {}, allow_redirects=False
        ) as page:
            text, form = await page.text(), None
            if "Location" in page.headers:
                address = urljoin(address, page.headers["Location"])
                if urlsplit(address).path == "/callback":  # of a client that is not there
                    return address, 302, ""
                continue
        if refresh := re.search(r'content="0;url=([^"]+)"', text):
            address = unescape(refresh[1])
        elif prompt := re.search(r'name="prompt" value="(\w+)"', text):
            address = urljoin(address, re.search(r'action="([^"]+)"', text)[1])
            form = {"prompt": prompt[1], "login": name, "password": "any"}
        else:
            return address, page.status, unescape(text)
    raise AssertionError("the sign-in does not come to an end")


def new_browser():
    return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))


async def sign_in(address, name):
    """Fill in the provider's pages as a person does; returns the address they come back to."""
    async with new_browser() as browser:
        return (await browse(browser, address, name))[0]


class Person:
    """Somebody with the SDK's OAuth client, who knows nothing but one URL."""

    def __init__(self, name, url):
        self.name = name
        self.url = f"{url}/mcp"
        self.storage = Storage()
        self.sign_ins = 0
        self._answer = None

    async def _redirect(self, address):
        self.sign_ins += 1
        back = parse_qs(urlsplit(await sign_in(address, self.name)).query)
        fields = {name: values[0] for name, values in back.items()}
        self._answer = AuthorizationCodeResult(
            code=fields["code"], state=fields["state"], iss=fields.get("iss")
        )

    async def _callback(self):
        return self._answer

    async def ask(self, method, **params):
        metadata = OAuthClientMetadata(
            client_name="test",
            redirect_uris=["http://127.0.0.1:9/callback"],
            grant_types=["authorization_code", "refresh_token"],
            token_endpoint_auth_method="none",
            application_type="native",
        )
        auth = OAuthClientProvider(self.url, metadata, self.storage, self._redirect, self._callback)
        async with httpx2.AsyncClient(auth=auth, timeout=PATIENCE) as client:
            return await client.post(self.url, **request(method, **params))


def request(method, **params):
    """A request of the stateless era."""
    mark = "io.modelcontextprotocol/"
    meta = {f"{mark}protocolVersion": "2026-07-28", f"{mark}clientCapabilities": {}}
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": method,
    }
    if "name" in params:
        headers["mcp-name"] = params["name"]
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    return {"json": body, "headers": headers}


async def tools(person):
    answer = await person.ask("tools/list")
    assert answer.status_code == 200, answer.text
    return {tool["name"].partition("_")[0] for tool in answer.json()["result"]["tools"]}


async def multitap(env, *arguments):
    done = await anyio.run_process(
        [sys.executable, "-m", "multitap", *arguments], env={**os.environ, **env}, check=False
    )
    return done.stdout.decode() + done.stderr.decode()


async def test_three_people_sign_in_by_one_url_and_one_is_revoked(package, tmp_path):
    async with team(package, tmp_path) as (_, url, env):
        people = {name: Person(name, url) for name in ("alice", "bob", "carol", "dave")}
        seen = {name: await tools(people[name]) for name in ("alice", "bob", "carol")}

        assert seen == {
            "alice": {"one", "notes"},
            "bob": {"two"},
            "carol": {"one", "two", "notes"},
        }
        refused = await people["dave"].ask("tools/list")  # in no group
        assert refused.status_code == 403
        assert "no access rule applies to 'dave' of corp" in refused.text
        for name, servers in seen.items():
            assert await tools(people[name]) == servers
            assert people[name].sign_ins == 1  # once, and then the token

        config = str(tmp_path / "multitap.toml")
        said = await multitap(env, "access", "revoke", "corp:alice", "--config", config)
        assert "revoked corp:alice" in said
        with anyio.fail_after(PATIENCE):
            while await status(people["alice"]) != 401:
                await anyio.sleep(0.05)
        assert await tools(people["bob"]) == {"two"}
        entries = json.loads(await multitap(env, "audit", "--json", "--config", config))
        assert any(entry["kind"] == "access.revoked" for entry in entries)


async def status(person):
    """The status of a request with the token that a person has, without a new sign-in."""
    headers = {"authorization": f"Bearer {person.storage.tokens.access_token}"}
    async with httpx2.AsyncClient(timeout=PATIENCE) as client:
        asked = request("tools/list")
        asked["headers"] |= headers
        return (await client.post(person.url, **asked)).status_code


async def test_a_machine_comes_in_by_its_client(package, tmp_path):
    async with team(package, tmp_path) as (issuer, url, _):
        async with httpx2.AsyncClient(timeout=PATIENCE) as client:
            form = {"grant_type": "client_credentials", "scope": "tools", "resource": f"{url}/mcp"}
            granted = await client.post(
                f"{issuer}/token", data=form, auth=("robot", "robots-secret")
            )
            asked = request("tools/list")
            asked["headers"]["authorization"] = f"Bearer {granted.json()['access_token']}"
            answer = await client.post(f"{url}/mcp", **asked)

        names = {tool["name"] for tool in answer.json()["result"]["tools"]}
        assert {name.partition("_")[0] for name in names} == {"one"}


async def test_opaque_tokens_work_until_the_provider_revokes_them(package, tmp_path):
    async with team(package, tmp_path, "opaque") as (issuer, url, _):
        carol, bob = Person("carol", url), Person("bob", url)
        assert await tools(carol) == {"one", "two", "notes"}
        await bob.ask("tools/list")
        for person in (bob, carol):
            form = {
                "token": person.storage.tokens.access_token,
                "client_id": person.storage.info.client_id,
            }
            async with httpx2.AsyncClient(timeout=PATIENCE) as client:
                revoked = await client.post(f"{issuer}/token/revocation", data=form)
            assert revoked.status_code == 200
        with anyio.fail_after(90):  # the decision is remembered for a minute at most
            while await status(carol) != 401:
                await anyio.sleep(1)


async def test_everyone_connects_their_own_account_and_an_admin_opens_the_console(
    package, tmp_path
):
    async with team(package, tmp_path) as (_, url, env):
        for name, console in (("alice", 401), ("carol", 200)):
            person = Person(name, url)
            told = (await person.ask("tools/call", name="notes_connect", arguments={})).json()
            link = re.search(r"http://\S+", told["result"]["content"][0]["text"])[0]
            async with new_browser() as browser:
                # not signed in yet: the page asks who opens the link
                _, _, text = await browse(browser, link, name)
                page = unescape(re.search(r'href="(/accounts/sign-in[^"]+)"', text)[1])
                _, _, text = await browse(browser, f"{url}{page}", name)
                form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', text))
                form["key-key"] = f"key-of-{name}"
                _, _, text = await browse(browser, f"{url}/accounts/keys", name, form)
                assert "Your key is stored for notes" in text
                assert (await browse(browser, f"{url}/console/access", name))[1] == console
            with anyio.fail_after(PATIENCE):
                while "result" not in (answer := await whose(person)):
                    await anyio.sleep(0.1)
            assert answer["result"]["content"][0]["text"].split()[0] == f"key-of-{name}"
            assert person.sign_ins == 1
        config = str(tmp_path / "multitap.toml")
        with anyio.fail_after(PATIENCE):  # it is written in batches
            while await owners(env, config) != {"alice", "carol"}:
                await anyio.sleep(0.1)


async def owners(env, config):
    """Whose accounts the audit log has."""
    entries = json.loads(await multitap(env, "audit", "--json", "--config", config))
    return {entry["credential"].partition(" ")[0] for entry in entries if "credential" in entry}


async def whose(person):
    return (await person.ask("tools/call", name="notes_whoami", arguments={"note": "x"})).json()
