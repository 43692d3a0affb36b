"""Results that are not what the protocol says."""

import time

import anyio
import mcp_types as types
import pytest
from mcp.server import Server

from multitap import LocalServer, Settings, StdioServer, open_hub
from multitap.errors import BadAnswer
from multitap.events import Warned
from tests.gateway.talking import Talker, gate
from tests.results.odd_results import SCHEMA, SOME, WIDE, command, text
from tests.waiting import PATIENCE

ERAS = ("old", "new")
ODD = [None, "x", {"text": "no type"}, {"type": "text", "text": 5}, {"type": "image"}]
GOOD = [text("good"), {"type": "hologram", "depth": 3}]
LOOP_TIME = 0.15
"""Seconds of CPU time; about a third is used, and four times as much if all is decoded."""


def odd(era, **fields):
    program, args = command(era)
    return StdioServer(command=program, args=args, **fields)


def settings(tmp_path, **servers):
    return Settings(servers=servers, state_dir=tmp_path)


def warnings_of(hub):
    return hub.snapshot().server("s").warnings


@pytest.mark.parametrize("era", ERAS)
async def test_malformed_blocks_are_dropped_with_one_warning_for_each_tool(era, tmp_path):
    async with open_hub(settings(tmp_path, s=odd(era))) as hub:
        with anyio.fail_after(PATIENCE):
            await hub.settled()
            given = {"result": {"content": [*ODD, *GOOD]}}
            with hub.events.subscribe() as events:
                result = await hub.call("s_give", given)
                again = await hub.call("s_give", given)
                await hub.call("s_typed", given)
                told = [await anext(events) for _ in range(6)]

    warned = [event.text for event in told if isinstance(event, Warned)]
    assert [block.__class__.__name__ for block in result.blocks] == ["TextBlock", "UnknownBlock"]
    assert b"hologram" in bytes(result.raw)
    assert "block 0: Expected `object`, got `null`" in result.warnings[0]
    assert again.warnings == result.warnings
    assert [words.partition(":")[0] for words in warned] == [
        "in a result of 'give', malformed content was dropped",
        "in a result of 'typed', malformed content was dropped",
        "in a result of 'typed', structured content does not match the output schema",
    ]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"structuredContent": {"n": 1}}, None),
        ({"structuredContent": {"n": "one"}}, '/n is not of type "integer"'),
        ({}, "it is missing"),
        ({"isError": True}, None),
    ],
)
async def test_structured_content_that_does_not_fit_arrives_marked(era, result, words, tmp_path):
    async with open_hub(settings(tmp_path, s=odd(era))) as hub:
        with anyio.fail_after(PATIENCE):
            await hub.settled()
            answer = await hub.call("s_typed", {"result": {"content": [text("x")], **result}})
        shown = warnings_of(hub)

    about = f"structured content does not match the output schema: {words}"
    assert answer.structured == result.get("structuredContent")
    assert answer.warnings == (() if words is None else (about,))
    assert shown == (() if words is None else (f"in a result of 'typed', {about}",))


@pytest.mark.parametrize(
    "result",
    [
        {"resultType": "input_required", "inputRequests": 5},
        {"inputRequests": 5, "resultType": "input_required"},
        {"resultType": "input_required", "content": [text('", "resultType": "complete"}')]},
        {"resultType": "input_required", "_meta": {"resultType": "complete"}},
    ],
)
async def test_a_question_is_seen_wherever_a_result_says_so(result, tmp_path):
    async with open_hub(settings(tmp_path, s=odd("new"))) as hub:
        with anyio.fail_after(PATIENCE):
            await hub.settled()

            with pytest.raises(BadAnswer, match="request for input cannot be read"):
                await hub.call("s_give", {"result": {"requestState": 5} | result})


async def test_a_result_that_quotes_a_question_is_none(tmp_path):
    content = [text('{"resultType": "input_required"}')]
    async with open_hub(settings(tmp_path, s=odd("new"))) as hub:
        with anyio.fail_after(PATIENCE):
            await hub.settled()
            given = {"result": {"content": content, "resultType": "complete"}}

            assert (await hub.call("s_give", given)).text == content[0]["text"]


async def test_results_of_a_server_are_not_looked_at_where_it_says_so(tmp_path):
    async with open_hub(settings(tmp_path, s=odd("old", check_results="off"))) as hub:
        with anyio.fail_after(PATIENCE):
            await hub.settled()
            given = {"result": {"content": ODD, "structuredContent": {}}}
            result = await hub.call("s_typed", given)

        assert len(result.blocks) == len(ODD)
        assert result.warnings == warnings_of(hub) == ()


async def test_a_server_in_this_process_is_checked_too(tmp_path):
    async def list_tools(_, __):
        tool = types.Tool(name="typed", input_schema={"type": "object"}, output_schema=SCHEMA)
        return types.ListToolsResult(tools=[tool])

    async def call_tool(_, __):
        return types.CallToolResult(content=[], structured_content={"n": None})

    server = Server("own", on_list_tools=list_tools, on_call_tool=call_tool)
    async with open_hub(settings(tmp_path, s=LocalServer(server=server))) as hub:
        with anyio.fail_after(PATIENCE):
            await hub.settled()
            result = await hub.call("s_typed")

    assert 'is not of type "integer"' in result.warnings[0]


@pytest.mark.parametrize("client_era", ERAS)
@pytest.mark.parametrize("server_era", ERAS)
async def test_clients_get_all_that_is_sound(client_era, server_era, tmp_path):
    given = {"content": [*ODD, text("good")], "structuredContent": {"n": "one"}}
    async with (
        gate(settings(tmp_path, s=odd(server_era))) as gateway,
        Talker(client_era, gateway.url) as talker,
    ):
        with anyio.fail_after(PATIENCE):
            result = await talker.client.call_tool("s_give", {"result": given})
            large = await talker.client.call_tool("s_give", {"kind": "spoiled_some"})
        shown = warnings_of(gateway.hub)

    assert [block.text for block in result.content] == ["good"]
    assert result.structured_content == {"n": "one"}
    assert len(large.content) == SOME
    assert len(shown) == 1


@pytest.mark.parametrize(
    "kind",
    [
        "wide",
        "data",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("long", "failed", "spoiled")),
    ],
)
async def test_a_large_result_hardly_holds_up_the_loop(kind, tmp_path):
    spent = []
    async with open_hub(settings(tmp_path, s=odd("old"))) as hub:
        with anyio.fail_after(PATIENCE):
            await hub.settled()
            for _ in range(2):
                started = time.thread_time()
                result = await hub.tools.execute("s_give", {"kind": kind})
                assert (len(result.text) <= 5000, result.truncated) == (True, True)
                assert len(result.blocks) in {0, 1, WIDE // 2, WIDE}
                spent.append(time.thread_time() - started)
        kept = hub.result(result.result_id)

        assert kept.page(2)
    assert min(spent) < LOOP_TIME
