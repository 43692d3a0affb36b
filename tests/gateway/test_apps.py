"""Servers with pages (MCP Apps): two with equal addresses and names, and who sees which tools."""

import json
import sys
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path

import pytest

from multitap import Settings
from multitap.config import StdioServer
from multitap.config.models import Serve
from tests.gateway import plain_client
from tests.gateway.talking import gate

UI = "io.modelcontextprotocol/ui"
SHOWS = {"extensions": {UI: {"mimeTypes": ["text/html;profile=mcp-app"]}}}
PROGRAM = str(Path(__file__).with_name("app_server.py"))
ERAS = ("old", "new")
pairs = pytest.mark.parametrize(("era", "server"), list(product(ERAS, ERAS)))


@asynccontextmanager
async def opened(tmp_path, era, server, able=SHOWS, **more):
    """A client of two servers that differ in their name only."""
    programs = {
        name: StdioServer(command=sys.executable, args=(PROGRAM, server, name))
        for name in ("alpha", "beta")
    }
    settings = Settings(state_dir=tmp_path / "state", servers=programs, **more)
    async with (
        gate(settings) as gateway,
        plain_client.on_http(era, gateway.url, able) as client,
    ):
        await client.begin()
        yield client


async def tools(client):
    return {tool["name"]: tool for tool in (await client.result("tools/list"))["tools"]}


async def pages(client):
    """The address of each server's page."""
    listed = await tools(client)
    return {
        name: listed[f"{name}_show"]["_meta"]["ui"]["resourceUri"] for name in ("alpha", "beta")
    }


async def read(client, uri):
    return (await client.result("resources/read", uri=uri))["contents"][0]


@pairs
async def test_pages_of_the_same_address_are_read_from_their_own_server(tmp_path, era, server):
    async with opened(tmp_path, era, server) as client:
        addresses = await pages(client)
        texts = {name: await read(client, uri) for name, uri in addresses.items()}

    assert len({*addresses.values()}) == 2
    for name, page in texts.items():
        assert page["text"] == f"page of {name}"
        assert page["uri"] == addresses[name]
        assert page["uri"].startswith("ui://")
        assert page["mimeType"] == "text/html;profile=mcp-app"
        assert page["_meta"]["ui"]["csp"] == {"connectDomains": ["https://example.com"]}


@pairs
async def test_a_page_calls_the_tools_of_its_own_server_by_their_bare_names(tmp_path, era, server):
    async with opened(tmp_path, era, server) as client:
        addresses = await pages(client)
        before = await client.request("tools/call", name="refresh", arguments={})
        answers = []
        for name in ("alpha", "beta", "alpha"):
            await read(client, addresses[name])
            answers.append(await client.text("refresh"))
        # not for pages, so not for a page that happens to be open
        closed = await client.request("tools/call", name="show_only_model", arguments={})

    assert "alpha_refresh, beta_refresh" in before["error"]["message"]
    assert answers == ["alpha", "beta", "alpha"]
    assert "several servers" in closed["error"]["message"]


@pairs
async def test_both_spellings_of_a_reference_are_rewritten_in_results(tmp_path, era, server):
    async with opened(tmp_path, era, server) as client:
        addresses = await pages(client)
        listed = await tools(client)
        for name, uri in addresses.items():
            result = await client.result("tools/call", name=f"{name}_show", arguments={})

            assert listed[f"{name}_show"]["_meta"]["ui/resourceUri"] == uri
            assert result["_meta"]["ui"]["resourceUri"] == result["_meta"]["ui/resourceUri"] == uri
            assert result["content"][0]["uri"] == uri


@pairs
async def test_tools_for_pages_are_not_for_clients_without_pages(tmp_path, era, server):
    async with opened(tmp_path, era, server, {}) as client:
        listed = await tools(client)
        refused = await client.request("tools/call", name="alpha_refresh", arguments={})

    assert not any(name.endswith(("refresh", "nobody")) for name in listed)
    assert "error" in refused
    # the server has other tools for those
    assert {"alpha_as_text", "beta_as_text"} <= listed.keys()


async def test_tools_for_pages_are_listed_for_those_that_show_them(tmp_path):
    async with opened(tmp_path, "new", "new") as client:
        listed = await tools(client)

    assert {"alpha_refresh", "beta_refresh"} <= listed.keys()
    assert not any(name.endswith(("nobody", "as_text")) for name in listed)


async def test_a_model_that_searches_does_not_find_tools_for_pages(tmp_path):
    async with opened(tmp_path, "new", "old", serve=Serve(tools="search")) as client:
        listed = await tools(client)
        found = await client.text("search_tools", query="refresh the page")
        called = await client.result(
            "tools/call", name="call_tool", arguments={"name": "alpha_refresh", "arguments": {}}
        )
        direct = await client.text("alpha_refresh")

    assert {"search_tools", "alpha_refresh"} <= listed.keys()
    assert "alpha_show" not in listed
    assert "alpha_refresh" not in found
    assert called["isError"]
    assert direct == "alpha"


@pairs
async def test_a_page_reads_unlisted_pages_of_its_own_server_only(tmp_path, era, server):
    async with opened(tmp_path, era, server) as client:
        addresses = await pages(client)
        before = await client.request("resources/read", uri="ui://part/one")
        await read(client, addresses["beta"])
        part = await read(client, "ui://part/one")
        outside = await client.request("resources/read", uri="file:///etc/passwd")

    assert "error" in before
    assert part["text"] == "part of beta"
    assert "error" in outside, json.dumps(outside)
