"""A registry on loopback, honest and otherwise."""

import json
import socket

import pytest

from multitap.errors import Unavailable
from multitap.published import registry as registry_client
from multitap.published.registry import MAX_BYTES, MOST_PAGES, RegistryClient
from tests.published.real_servers import ALL, OTHERS, entry, registry

ENTRIES = [entry(one) for one in ALL]


async def test_all_pages_are_searched():
    with registry(ENTRIES) as (url, asked):
        found = await RegistryClient(url).search("")

    assert [one.name for one in found] == [one["name"] for one in ALL]
    assert len(asked) == 4


async def test_a_word_is_the_registry_s_to_search():
    with registry(ENTRIES) as (url, _):
        found = await RegistryClient(url).search("Only a remote")

    assert [one.name for one in found] == ["com.example/remote"]


async def test_a_server_is_found_by_its_whole_name():
    with registry(ENTRIES) as (url, asked):
        found = await RegistryClient(url).server("io.github.someone/git")
        missing = await RegistryClient(url).server("io.github.someone/nothing")

    assert found.ways[0].fields["args"][0].startswith("mcp-server-git@")
    assert missing is None
    assert asked[0] == "/v0.1/servers/io.github.someone%2Fgit/versions/latest"


async def test_deleted_servers_are_left_out_and_deprecated_ones_marked():
    entries = [entry(OTHERS[0], "deleted"), entry(OTHERS[1], "deprecated", "use another")]
    with registry(entries) as (url, _):
        (found,) = await RegistryClient(url).search("")

    assert found.status == "deprecated"
    assert found.ways[0].warnings[0] == "com.example/container is deprecated: use another"


async def test_a_registry_without_end_is_left_after_some_pages():
    def answer(_):
        page = {"servers": [entry(OTHERS[0])], "metadata": {"nextCursor": "again"}}
        return 200, json.dumps(page).encode()

    with registry([], answer=answer) as (url, asked):
        found = await RegistryClient(url).search("x")

    assert len(found) == len(asked) == MOST_PAGES


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (500, b"", "status 500"),
        (302, b"", "status 302"),
        (200, b"<html>", "not JSON"),
        (200, b"[" * 100_000, "not JSON"),
        (200, b" " * (MAX_BYTES + 1), "more than"),
    ],
)
async def test_what_cannot_be_used_is_said_to_be_so(status, body, words):
    with (
        registry([], answer=lambda _: (status, body)) as (url, _),
        pytest.raises(Unavailable, match=words),
    ):
        await RegistryClient(url).search("x")


@pytest.mark.parametrize(
    "page", [[], {"servers": 5}, {"servers": [1, {}, {"server": []}], "metadata": []}]
)
async def test_entries_that_are_none_are_passed_over(page):
    with registry([], answer=lambda _: (200, json.dumps(page).encode())) as (url, _):
        assert await RegistryClient(url).search("x") == []


async def test_a_registry_that_does_not_answer_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(registry_client, "TIMEOUT", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"

        with pytest.raises(Unavailable, match="did not answer within"):
            await RegistryClient(url).search("x")
