"""Replicas share what people begin: a login at one of them is finished at any other."""

import re

import pytest

from multitap import HttpServer, Settings
from multitap.gateway.fronts.accounts import open_accounts
from tests.cluster.staging import replicas
from tests.gateway.people import Browser, person, tokens
from tests.oauth.provider import provided

pytestmark = pytest.mark.usefixtures("own_logins")


async def go_there(browser, link):
    """Open a link, agree, and log in; returns the address that leads back."""
    _, text = await browser.open(link)
    form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', text))
    _, text = await browser.post("/accounts/connect", form)
    page = re.search(r'content="0;url=([^"]+)"', text)[1]
    async with browser.session.get(page, allow_redirects=False) as answer:
        return answer.headers["location"]


@pytest.mark.parametrize("name", ["alice", "bob"])
async def test_a_login_that_began_at_one_replica_is_finished_at_another(
    redis_server, tmp_path, name
):
    async with provided() as provider:
        server = HttpServer(url=provider.url, credentials="per-user")
        settings = [
            Settings(servers={"guarded": server}, state_dir=tmp_path / folder)
            for folder in ("one", "two")
        ]
        async with replicas(redis_server, *settings, tokens=tokens()) as opened:
            base = opened[0].url.removesuffix("/mcp")
            for replica in opened.gates:
                open_accounts(replica.front, base)
            # each replica knows the links of the others
            link = opened[1].gateway.connections.links.new(person("alice"), "guarded")
            async with Browser(opened[0], "alice") as alice:
                back = await go_there(alice, link)
                elsewhere = back.replace(base, opened[1].url.removesuffix("/mcp"))
                await alice.sign_in(name)  # the browser of bob has the cookie of alice's login
                status, text = await alice.open(elsewhere)

            stored = await opened[0].hub.people.of(person("alice")).account("guarded")
            if name == "alice":
                assert (status, "is connected" in text) == (200, True)
                assert stored is not None
            else:
                assert (status, "for somebody else" in text) == (403, True)
                assert stored is None
