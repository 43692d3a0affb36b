"""Server cards and the catalog of a gateway."""

import json

import pytest

from multitap.config import Profile
from multitap.gateway.fronts.cards import make_card
from multitap.gateway.fronts.tokens import Token
from tests.gateway.fronts.test_pages import port
from tests.gateway.hostile.raw import dial, http, stateless
from tests.gateway.talking import gate, zoo


async def test_the_catalog_leads_to_cards_and_those_to_the_gateway(settings):
    chosen = settings(zoo=zoo(), profiles={"small": Profile(servers=("zoo",))})
    async with gate(chosen) as opened, dial(port(opened)) as line:
        host = {"host": f"127.0.0.1:{port(opened)}"}
        catalogs = [
            json.loads((await line.asks(http("GET", path, **host))).body)
            for path in ("/.well-known/mcp/catalog.json", "/.well-known/ai-catalog.json")
        ]
        cards = []
        for entry in catalogs[0]["entries"]:
            path = entry["url"].partition(host["host"])[2]
            response = await line.asks(http("GET", path, **host))
            cards.append(json.loads(response.body))

            assert response.headers["content-type"] == entry["type"]
            assert cards[-1]["title"] == entry["displayName"]
        said = (await line.asks(stateless(1, "server/discover"))).message["result"]

    assert catalogs[0] == catalogs[1]
    assert [card["remotes"][0]["url"] for card in cards] == [
        f"http://{host['host']}/mcp",
        f"http://{host['host']}/mcp/small",
    ]
    info = said["_meta"]["io.modelcontextprotocol/serverInfo"]
    assert (cards[0]["title"], cards[0]["version"]) == (info["title"], info["version"])


async def test_a_limited_reader_does_not_learn_of_other_profiles(settings):
    profiles = {"small": Profile(servers=("zoo",)), "secret": Profile(servers=("zoo",))}
    token = Token(b"a-token-of-some-length", "ann", "small")
    async with (
        gate(settings(zoo=zoo(), profiles=profiles), tokens=(token,)) as opened,
        dial(port(opened)) as line,
    ):
        path = "/.well-known/mcp/catalog.json"
        bearer = {"authorization": f"Bearer {token.secret.decode()}"}
        catalog = await line.asks(http("GET", path, **bearer))
        missing = await line.asks(http("GET", "/mcp/server-card?profile=none", **bearer))
        stranger = await line.asks(http("GET", path))

    assert [entry["displayName"] for entry in json.loads(catalog.body)["entries"]] == ["Multitap"]
    assert stranger.body == catalog.body
    assert missing.status == 404


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("https://tools.example.com", "com.example.tools/multitap"),
        ("http://127.0.0.1:8080", "localhost/multitap"),
        ("http://[::1]:8080", "localhost/multitap"),
        ("http://localhost:1", "localhost/multitap"),
    ],
)
def test_names_are_domains_in_reverse(base, name):
    assert make_card(base, None)["name"] == name
