"""Lists of servers, page by page, with limits."""

import itertools
import json
import sys

import anyio
import msgspec
import pytest
from msgspec import Raw

from multitap import Settings, StdioServer, open_hub
from multitap.errors import AnswerInvalid
from multitap.upstream.lists import MAX_PAGES, fetch
from tests.waiting import PATIENCE


def server(pages):
    asked = []

    async def ask(params):
        asked.append(params)
        page = pages(params.get("cursor"))
        return Raw(msgspec.json.encode(page))

    return ask, asked


async def test_all_pages_are_fetched_and_an_empty_cursor_is_a_cursor():
    pages = {None: ("a", ""), "": ("b", "2"), "2": ("c", None)}
    ask, asked = server(
        lambda cursor: {"tools": [{"name": pages[cursor][0]}], "nextCursor": pages[cursor][1]}
    )
    result = await fetch(ask, "tools", 100)

    assert [tool["name"] for tool in result.items] == ["a", "b", "c"]
    assert asked == [{}, {"cursor": ""}, {"cursor": "2"}]
    assert result.warnings == []


async def test_a_list_that_runs_in_a_circle_is_cut_with_a_warning():
    ask, asked = server(lambda _: {"tools": [{"name": "a"}], "nextCursor": "again"})
    result = await fetch(ask, "tools", 100)

    assert len(asked) == 2
    assert "repeats itself" in result.warnings[0]


async def test_a_list_without_an_end_is_cut_with_a_warning():
    numbers = itertools.count()
    ask, asked = server(lambda _: {"tools": [], "nextCursor": str(next(numbers))})
    result = await fetch(ask, "tools", 100)

    assert len(asked) == MAX_PAGES
    assert "cut" in result.warnings[0]


async def test_more_items_than_allowed_are_left_out_with_a_warning():
    ask, _ = server(lambda _: {"tools": [{"name": str(n)} for n in range(20)]})
    result = await fetch(ask, "tools", 15)

    assert len(result.items) == 15
    assert "first 15" in result.warnings[0]


async def test_an_entry_that_is_no_object_does_not_hide_the_others():
    ask, _ = server(lambda _: {"tools": [1, {"name": "good"}, None]})
    result = await fetch(ask, "tools", 15)

    assert result.items == [{"name": "good"}]
    assert len(result.warnings) == 2


@pytest.mark.parametrize("page", [{}, {"tools": None}, {"tools": {}}])
async def test_a_page_without_items_is_no_page(page):
    ask, _ = server(lambda _: page)

    with pytest.raises(AnswerInvalid):
        await fetch(ask, "tools", 15)


@pytest.mark.parametrize(
    ("items", "words"),
    [("nope", "a text"), ({}, "an object"), (3, "a number"), (True, "a boolean"), (None, "null")],
)
async def test_items_that_are_no_list_are_named(items, words):
    ask, _ = server(lambda _: {"tools": items})

    with pytest.raises(AnswerInvalid, match=f"'tools' in the list of tools is {words}, not an"):
        await fetch(ask, "tools", 100)


LISTED_FROM_FILE = """
import json, sys
def say(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    match message["method"]:
        case "initialize":
            result = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "x", "version": "1"},
                      "capabilities": {"tools": {"listChanged": True}}}
        case "tools/list":
            result = {"tools": json.load(open(sys.argv[1]))}
        case _:
            result = {"content": []}
    if "id" in message:
        say(id=message["id"], result=result)
    if message["method"] == "tools/call":
        say(method="notifications/tools/list_changed")
"""


async def test_only_definitions_that_differ_are_new_after_a_change(tmp_path):
    def tool(name, least):
        schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": least}}}
        return {"name": name, "inputSchema": schema}

    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([tool("same", 1), tool("odd", 1)]))
    command = StdioServer(command=sys.executable, args=("-c", LISTED_FROM_FILE, str(tools)))
    async with open_hub(Settings(servers={"s": command}, state_dir=tmp_path)) as hub:
        await hub.settled()
        before = hub.catalog
        # Python takes 1 and True for equal, and JSON Schema does not
        tools.write_text(json.dumps([tool("more", 1), tool("same", 1), tool("odd", True)]))
        await hub.call("s_same", {})
        with anyio.fail_after(PATIENCE):
            while hub.catalog is before:
                await hub.changed.wait()

        assert {*hub.catalog.tools} == {"s_more", "s_same"}
        assert hub.catalog.tools["s_same"].definition is before.tools["s_same"].definition
