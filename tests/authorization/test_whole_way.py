"""From nothing but a URL to servers of every kind, and out again."""

import re
import sys
from html import unescape
from urllib.parse import urljoin

import anyio
import httpx2
import pytest

from tests.authorization.organisation import Browser
from tests.authorization.test_clients_sign_in import (
    Memory,
    client_of,
    gateway,
    session_of,
    wait_until_seen,
)
from tests.authorization.test_real_clients import Member, fetched, inspect, real_provider
from tests.clients.test_clients import INSPECTOR
from tests.cluster.redis_server import free_port, running_redis
from tests.gateway.people import PROGRAM
from tests.oauth.provider import Provider
from tests.waiting import PATIENCE
from tests.wire import http_zoo as zoo

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.network,
]

FILES = """
[servers.files]
url = "{files}"
credentials = "exchange"

[servers.files.exchange]
provider = "org"
audience = "files"
"""
NOTES = """
[servers.notes]
command = "{python}"
args = ["{program}"]
env = {{ PERSONAL_KEY = "${{auth:key}}" }}
credentials = "per-user"
"""


def notes():
    return NOTES.format(python=sys.executable, program=PROGRAM)


class Colleague(Member):
    """Connects accounts at the gateway, too, with a key."""

    async def connect(self, link, key):
        """The last page after following a link."""
        url, page = link, await self._browser.open(link)
        for _ in range(30):
            if (onward := page.headers.get("location") or page.onward) is not None:
                url = urljoin(url, onward)
                page = await self._browser.open(url)
            elif (sign_in := re.search(r'href="(/accounts/sign-in\?[^"]+)"', page)) is not None:
                url = urljoin(url, unescape(sign_in[1]))
                page = await self._browser.open(url)
            elif "prompt" in page.form:
                url, page = await self._agree(url, page)
            elif 'name="key-key"' in page or ">Connect</button>" in page:
                form = {**page.form, "key-key": key} if "key-key" in page else page.form
                address = urljoin(url, re.search(r'action="([^"]+)"', page)[1])
                headers = {"Origin": self._public}
                page = await self._browser.send(address, form, headers=headers)
            else:
                return page
        raise AssertionError(page)

    async def _agree(self, url, page):
        address = urljoin(url, re.search(r'action="([^"]+)"', page)[1])
        form = {**page.form, "login": self.name, "password": "any"}
        return address, await self._browser.send(address, form)


async def test_a_client_that_knows_only_the_url_uses_everything_until_it_is_revoked(
    packages, tmp_path
):
    files = Provider(access={"files-of-alice": ""})
    own, other, theirs = free_port(), free_port(), free_port()
    public = f"http://127.0.0.1:{own}"
    redirects = [f"{public}/authorize/callback", f"{public}/accounts/signed-in"]
    folders = [tmp_path / name for name in ("own", "other")]
    for folder in folders:
        folder.mkdir()
    memory = Memory()
    with running_redis() as redis:
        cluster = ("--cluster", redis.url)
        async with (
            real_provider(packages, theirs, *redirects) as organisation,
            zoo.serve(files) as upstream,
            Browser() as browser,
        ):
            servers = FILES.format(files=upstream.url) + notes()
            async with (
                gateway(folders[0], organisation, servers, *cluster, port=own) as (_, env),
                gateway(folders[1], organisation, servers, *cluster, port=other, public=public),
            ):
                person = Colleague(browser, public)
                async with session_of(public, client_of(public, person, memory)) as session:
                    link = (await session.call_tool("notes_connect", {})).content[0].text
                    address = re.search(r"http://\S+/accounts/connect\S+", link)[0]
                    page = await person.connect(address, "key-of-alice")
                    assert "is stored for notes" in page
                    note = await session.call_tool("notes_whoami", {})
                    file = await session.call_tool("files_whoami", {})
                assert note.content[0].text.startswith("key-of-alice ")
                assert not file.is_error
                assert {token for _, token in files.calls} == {"files-of-alice"}

                await wait_until_seen(env)
                places = [f"{public}/mcp", f"http://127.0.0.1:{other}/mcp"]
                async with httpx2.AsyncClient() as client:
                    assert [await status_at(client, place, memory) for place in places] == [400] * 2
                    command = [sys.executable, "-m", "multitap", "access", "revoke", "org:alice"]
                    await anyio.run_process(command, env=env)
                    for place in places:
                        with anyio.fail_after(PATIENCE):
                            while await status_at(client, place, memory) != 401:
                                await anyio.sleep(0.02)
                    form = {
                        "grant_type": "refresh_token",
                        "refresh_token": memory.tokens.refresh_token,
                        "client_id": memory.client.client_id,
                        "client_secret": memory.client.client_secret,
                    }
                    renewed = await client.post(f"http://127.0.0.1:{other}/token", data=form)

    assert (renewed.status_code, renewed.json()["error"]) == (400, "invalid_grant")


async def status_at(client, place, memory):
    """What a gateway answers to a client's token: 400 for an empty request that it admits."""
    bearer = {"Authorization": f"Bearer {memory.tokens.access_token}"}
    return (await client.post(place, headers=bearer, json={})).status_code


async def test_a_real_client_gets_the_data_of_the_person_who_signed_in_with_it(
    packages, shelf, tmp_path
):
    program = fetched(shelf.program, "inspector", INSPECTOR)
    own, theirs = free_port(), free_port()
    public = f"http://127.0.0.1:{own}"
    redirects = [f"{public}/authorize/callback", f"{public}/accounts/signed-in"]
    (tmp_path / "gateway").mkdir()
    answers = {}
    async with (
        real_provider(packages, theirs, *redirects) as organisation,
        gateway(tmp_path / "gateway", organisation, notes(), port=own, documents="false"),
        Browser() as browser,
        Browser() as another,
    ):
        alice, bob = Colleague(browser, public), Colleague(another, public, "bob")
        for person in (alice, bob):
            page = await person.connect(f"{public}/accounts", f"key-of-{person.name}")
            assert "is stored for notes" in page
        for person in (alice, bob):
            home = tmp_path / person.name
            home.mkdir()
            answer = await inspect(program, f"{public}/mcp", person, home, "notes_whoami")
            answers[person.name] = answer["content"][0]["text"].split()[0]

    assert answers == {"alice": "key-of-alice", "bob": "key-of-bob"}
