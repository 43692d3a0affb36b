"""What clients list: pages with sealed cursors, lifetimes, and groups."""

import sys
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path

import pytest
from msgspec.structs import replace

from multitap import Settings
from multitap.config import Profile, StdioServer
from multitap.config.models import Serve
from multitap.gateway.lists import LONGEST_TTL
from multitap.gateway.view import GROUPING, GROUPS
from multitap.upstream.lists import LEAST_LIFETIME, UNSAID_LIFETIME
from tests.gateway import plain_client
from tests.gateway.talking import gate

PROGRAM = str(Path(__file__).with_name("list_server.py"))
eras = pytest.mark.parametrize("era", ["old", "new"])
pairs = pytest.mark.parametrize(("era", "server"), [*product(("old", "new"), ("old", "new"))])
KNOWS_GROUPS = {"extensions": {GROUPING: {}}}


def listed(era="new", ttl=0, scope="private"):
    return StdioServer(command=sys.executable, args=(PROGRAM, era, str(ttl), scope))


@asynccontextmanager
async def opened(tmp_path, era, *, able=None, page_size=1000, profile=None, **its_servers):
    """A client, and its gateway; the address of a profile if one is named."""
    settings = Settings(
        state_dir=tmp_path / "state",
        servers=its_servers,
        serve=Serve(page_size=page_size),
        profiles={} if profile is None else {profile: Profile()},
    )
    async with gate(settings) as gateway:
        url = gateway.url if profile is None else f"{gateway.url}/{profile}"
        async with plain_client.on_http(era, url, able) as client:
            client.said = await client.begin()
            yield client, gateway


async def all_pages(client, method, key):
    pages = [await client.result(method)]
    while (cursor := pages[-1].get("nextCursor")) is not None:
        pages.append(await client.result(method, cursor=cursor))
    return [page[key] for page in pages]


def names(tools):
    return [tool["name"] for tool in tools]


def age(gateway, server, seconds):
    """Let the lists of a server be that much older."""
    listing = gateway.hub.links[server].listing
    listing.lifetimes = {
        key: replace(lifetime, since=lifetime.since - seconds)
        for key, lifetime in listing.lifetimes.items()
    }


@pairs
async def test_long_lists_come_in_pages(tmp_path, era, server):
    async with opened(tmp_path, era, page_size=2, a=listed(server), b=listed(server)) as (
        client,
        _,
    ):
        resources = await all_pages(client, "resources/list", "resources")
        tools = await all_pages(client, "tools/list", "tools")
        prompts = await client.result("prompts/list")
        templates = await client.result("resources/templates/list")

    assert [len(page) for page in resources] == [2, 2, 2, 2, 2]
    assert len({entry["uri"] for page in resources for entry in page}) == 10
    assert sorted(name for page in tools for name in names(page)) == [
        "a_mail",
        "a_t000",
        "b_mail",
        "b_t000",
    ]
    assert "nextCursor" not in prompts
    assert templates["resourceTemplates"] == []


@eras
async def test_a_cursor_is_sealed_for_one_list(tmp_path, era):
    async with opened(tmp_path, era, page_size=2, a=listed()) as (client, _):
        cursor = (await client.result("resources/list"))["nextCursor"]
        refused = [
            await client.request("tools/list", cursor=cursor),
            await client.request("resources/list", cursor=cursor[:-8] + "AAAAAAA="),
            await client.request("resources/list", cursor="2"),
            await client.request("resources/list", cursor=""),
            await client.request("resources/list", cursor=7),
        ]
        again = await client.result("resources/list", cursor=cursor)

    assert [answer["error"]["code"] for answer in refused] == [-32602] * 5
    assert "x://" not in cursor
    assert [entry["name"] for entry in again["resources"]] == ["x2", "x3"]


async def test_a_list_that_changes_goes_on_after_the_last_entry(tmp_path):
    async with opened(tmp_path, "new", page_size=1, a=listed()) as (client, gateway):
        first = await client.result("tools/list")
        second = await client.result("tools/list", cursor=first["nextCursor"])
        age(gateway, "a", LEAST_LIFETIME)
        await client.result("tools/list")  # the server has one more now
        third = await client.result("tools/list", cursor=first["nextCursor"])
        fourth = await client.result("tools/list", cursor=third["nextCursor"])

    assert [names(page["tools"]) for page in (first, second)] == [["a_mail"], ["a_t000"]]
    assert "nextCursor" not in second
    assert [names(page["tools"]) for page in (third, fourth)] == [["a_t000"], ["a_t001"]]


@pytest.mark.parametrize(
    ("server", "ttl", "lasts"),
    [
        pytest.param("old", 0, UNSAID_LIFETIME, id="old"),
        pytest.param("new", 0, LEAST_LIFETIME, id="new without one"),
        pytest.param("new", 20_000, 20, id="new"),
    ],
)
@eras
async def test_a_list_is_fetched_again_when_it_is_stale_and_needed(
    tmp_path, era, server, ttl, lasts
):
    async with opened(tmp_path, era, a=listed(server, ttl)) as (client, gateway):
        fresh = await client.result("tools/list")
        age(gateway, "a", lasts - 3)
        still = await client.result("tools/list")
        age(gateway, "a", 3)
        renewed = await client.result("tools/list")

    assert names(fresh["tools"]) == names(still["tools"]) == ["a_mail", "a_t000"]
    assert names(renewed["tools"]) == ["a_mail", "a_t000", "a_t001"]


@pytest.mark.parametrize(
    ("others", "ttl", "scope"),
    [
        pytest.param({}, range(19_000, 20_001), "public", id="one"),
        pytest.param({"b": listed(ttl=5000)}, range(4000, 5001), "private", id="the least"),
        pytest.param({"b": listed("old")}, [0], "private", id="old"),
        pytest.param(
            {"b": listed(ttl=10**15, scope="public")}, range(19_000, 20_001), "public", id="endless"
        ),
    ],
)
async def test_clients_get_the_shortest_lifetime_of_their_servers(tmp_path, others, ttl, scope):
    mine = listed(ttl=20_000, scope="public")
    async with opened(tmp_path, "new", a=mine, **others) as (client, gateway):
        for server in ("a", *others):
            age(gateway, server, 0.001)
        answer = await client.result("tools/list")
        read = await client.result("resources/list")

    assert answer["ttlMs"] in ttl
    assert (answer["cacheScope"], read["cacheScope"]) == (scope, scope)


async def test_a_lifetime_is_what_is_left_of_it(tmp_path):
    async with opened(tmp_path, "new", a=listed(ttl=10**9)) as (client, gateway):
        long = await client.result("tools/list")
        age(gateway, "a", 24 * 3600 - 10)
        short = await client.result("tools/list")

    assert long["ttlMs"] == LONGEST_TTL
    assert 0 < short["ttlMs"] <= 10_000


async def test_what_a_profile_shows_is_private(tmp_path):
    public = listed(ttl=20_000, scope="public")
    async with opened(tmp_path, "new", profile="few", a=public) as (client, _):
        answer = await client.result("tools/list")
        read = await client.result("resources/read", uri="x://1")

    assert (answer["cacheScope"], read["cacheScope"]) == ("private", "private")
    assert read["ttlMs"] == 20_000


@pairs
async def test_servers_and_their_groups_are_groups(tmp_path, era, server):
    two = {"a": listed(server), "b": listed(server)}
    async with opened(tmp_path, era, able=KNOWS_GROUPS, **two) as (client, _):
        groups = (await client.result("groups/list"))["groups"]
        tools = (await client.result("tools/list"))["tools"]
        prompts = (await client.result("prompts/list"))["prompts"]

    assert client.said["capabilities"]["extensions"][GROUPING] == {}
    parents = {group["name"]: group.get("_meta", {}).get(GROUPS) for group in groups}
    assert parents == {
        "a": None,
        "a/office": ["a"],
        "a/post": ["a/office"],
        "b": None,
        "b/office": ["b"],
        "b/post": ["b/office"],
    }
    assert {tool["name"]: tool["_meta"][GROUPS] for tool in tools} == {
        "a_mail": ["a/post"],
        "a_t000": ["a"],
        "b_mail": ["b/post"],
        "b_t000": ["b"],
    }
    assert [prompt["_meta"][GROUPS] for prompt in prompts] == [["a"], ["b"]]


@eras
async def test_clients_without_groups_get_what_the_server_says(tmp_path, era):
    async with opened(tmp_path, era, a=listed()) as (client, _):
        tools = (await client.result("tools/list"))["tools"]

    assert [tool.get("_meta") for tool in tools] == [{GROUPS: ["a/post"]}, None]
