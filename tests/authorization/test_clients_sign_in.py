"""A gateway as its operator starts it, and a client of others that knows only its URL."""

import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager

import anyio
import httpx2
import pytest
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata

from multitap.authorization.server import CALLBACK
from tests.authorization.organisation import (
    CLIENT,
    REDIRECT,
    SECRET,
    Browser,
    Organisation,
    answer_in,
)
from tests.cluster.redis_server import free_port
from tests.oauth.provider import Provider
from tests.waiting import PATIENCE
from tests.wire import http_zoo as zoo
from tests.zoo import modes

pytestmark = pytest.mark.anyio

SETTINGS = """
[serve]
public_url = "{public}"

[access.oidc.org]
issuer = "{issuer}"
client_id = "{client}"
client_secret = "${{ORG_SECRET}}"

[access.sign_in]
provider = "org"
documents = {documents}

[[access.rules]]
name = "developers"
groups = ["dev"]

{servers}
[servers.calc]
command = "{python}"
args = {arguments}
"""


class Memory:
    """Where a client keeps what it got; a `TokenStorage`."""

    def __init__(self):
        self.tokens = self.client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client_info):
        self.client = client_info


class Person:
    """Opens what a client asks them to, agrees, and comes back."""

    def __init__(self, browser, public):
        self._browser = browser
        self._public = public
        self._back = None
        self.questions = 0

    async def open(self, url):
        self.questions += 1
        page = await self._browser.open(url)
        assert page.status == 200, (url, page)
        form = {**page.form, "decision": "allow"}
        page = await self._browser.send(f"{self._public}/authorize/consent", form)
        self._back = await self.sign_in_at(page.onward)

    async def sign_in_at(self, url):
        at_provider = await self._browser.open(url)
        return await self._browser.open(at_provider.headers["location"])

    @property
    def address(self):
        """Where the browser is sent in the end."""
        return self._back.headers["location"]

    async def come_back(self):
        answer = answer_in(self._back)
        return AuthorizationCodeResult(
            code=answer["code"], state=answer["state"], iss=answer["iss"]
        )


@asynccontextmanager
async def gateway(
    folder, organisation, servers="", *options, port=None, documents="true", public=None
):
    """A gateway process with sign-in at an organisation; its public URL."""
    port = port or free_port()
    public = public or f"http://127.0.0.1:{port}"
    file = folder / "multitap.toml"
    text = SETTINGS.format(
        public=public,
        issuer=organisation.origin,
        client=CLIENT,
        python=sys.executable,
        arguments=json.dumps(modes.command("good")[1:]),
        servers=servers,
        documents=documents,
    )
    file.write_text(text)
    home = {f"XDG_{name}_HOME": str(folder / name) for name in ("DATA", "STATE", "CONFIG", "CACHE")}
    # the gateway as such: nothing of the person who runs the tests
    env = {
        **os.environ,
        **home,
        "ORG_SECRET": SECRET,
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
    }
    command = [sys.executable, "-m", "multitap", "serve", "--config", str(file)]
    process = subprocess.Popen(
        [*command, "--http", f"127.0.0.1:{port}", *options], env=env, stderr=subprocess.PIPE
    )
    try:
        with anyio.fail_after(PATIENCE):
            said = b""
            while b" at http" not in said.replace(b"\n", b" "):
                line = await anyio.to_thread.run_sync(process.stderr.readline)
                assert line, said.decode()
                said += line
        yield public, env
    finally:
        process.terminate()
        with anyio.fail_after(PATIENCE, shield=True):
            await anyio.to_thread.run_sync(process.communicate)


def client_of(public, person, memory):
    """A client as the SDK makes them."""
    return OAuthClientProvider(
        f"{public}/mcp",
        OAuthClientMetadata(client_name="Somebody's client", redirect_uris=[REDIRECT]),
        memory,
        redirect_handler=person.open,
        callback_handler=person.come_back,
    )


@asynccontextmanager
async def session_of(public, auth):
    async with (
        httpx2.AsyncClient(auth=auth, timeout=PATIENCE) as client,
        streamable_http_client(f"{public}/mcp", http_client=client) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        yield session


@asynccontextmanager
async def organisation_at_work():
    organisation = Organisation()
    async with zoo.serve(organisation.answer) as provider:
        organisation.origin = provider.url.removesuffix("/mcp")
        yield organisation


async def test_a_client_of_the_sdk_signs_in_with_the_url_alone(tmp_path):
    memory = Memory()
    async with (
        organisation_at_work() as organisation,
        gateway(tmp_path, organisation) as (public, _),
        Browser() as browser,
    ):
        person = Person(browser, public)
        async with session_of(public, client_of(public, person, memory)) as session:
            answer = await session.call_tool("calc_add", {"a": 1, "b": 2})
        first = memory.tokens.access_token
        # a second run of the same client renews its token without the person
        memory.tokens.access_token = "mta_gone"
        async with session_of(public, client_of(public, person, memory)) as session:
            listed = await session.list_tools()

    assert json.loads(answer.content[0].text) == 3
    assert first.startswith("mta_")
    assert "calc_add" in {tool.name for tool in listed.tools}
    assert person.questions in {1, 2}
    assert CALLBACK in organisation.pages[0]["redirect_uri"]


@pytest.mark.slow  # the gateway notes every ten seconds who was there
async def test_a_person_whose_access_is_revoked_is_out_within_a_second(tmp_path):
    memory = Memory()
    async with (
        organisation_at_work() as organisation,
        gateway(tmp_path, organisation) as (public, env),
        Browser() as browser,
    ):
        person = Person(browser, public)
        async with session_of(public, client_of(public, person, memory)) as session:
            await session.list_tools()
        await wait_until_seen(env)
        command = [sys.executable, "-m", "multitap", "access", "revoke", "org:alice"]
        done = await anyio.run_process(command, env=env, check=False)
        assert done.returncode == 0, done.stderr
        bearer = {"Authorization": f"Bearer {memory.tokens.access_token}"}
        form = {
            "grant_type": "refresh_token",
            "refresh_token": memory.tokens.refresh_token,
            "client_id": memory.client.client_id,
            "client_secret": memory.client.client_secret,
        }
        async with httpx2.AsyncClient() as client:
            with anyio.fail_after(PATIENCE):
                while (
                    await client.post(f"{public}/mcp", headers=bearer, json={})
                ).status_code < 401:
                    await anyio.sleep(0.1)
            renewed = await client.post(f"{public}/token", data=form)

    assert (renewed.status_code, renewed.json()["error"]) == (400, "invalid_grant")


async def wait_until_seen(env):
    """Wait until the gateway has noted who was there."""
    command = [sys.executable, "-m", "multitap", "access", "list", "--json"]
    with anyio.fail_after(PATIENCE):
        while b"alice" not in (await anyio.run_process(command, env=env)).stdout:
            await anyio.sleep(0.5)


EXCHANGING = """
[servers.files]
url = "{url}"
credentials = "exchange"

[servers.files.exchange]
provider = "org"
audience = "files"
"""


async def test_a_sign_in_is_exchanged_for_a_token_that_a_server_accepts(tmp_path):
    files = Provider(access={"exchanged-of-alice": ""})
    async with (
        organisation_at_work() as organisation,
        zoo.serve(files) as upstream,
        gateway(tmp_path, organisation, EXCHANGING.format(url=upstream.url)) as (public, _),
        Browser() as browser,
    ):
        person = Person(browser, public)
        async with session_of(public, client_of(public, person, Memory())) as session:
            listed = await session.list_tools()
            for _ in range(3):
                answer = await session.call_tool("files_whoami", {})

    assert "files_whoami" in {tool.name for tool in listed.tools}
    assert not answer.is_error
    assert {token for _, token in files.calls} == {"exchanged-of-alice"}
    exchanges = [form for form in organisation.forms if "subject_token" in form]
    assert [form["audience"] for form in exchanges] == ["files"]
    assert files.registrations == []
