"""Search mode: three tools in place of all, for clients of both eras."""

import json

import anyio
import pytest
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError

from multitap import Settings
from multitap.config import LocalServer, Profile
from multitap.config.models import Serve
from multitap.events import Withheld
from tests.gateway.talking import Talker, gate, zoo
from tests.tools.search.sentence_model import write_model
from tests.waiting import PATIENCE, until, until_told

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

DEFINITIONS = ["search_tools", "describe_tool", "call_tool"]


@pytest.fixture(params=["old", "new"])
def era(request):
    return request.param


@pytest.fixture
def settings(tmp_path):
    def make(serve=Serve(tools="search"), **more):
        servers = {"zoo": zoo(filter={"deny": ("fail",)})}
        return Settings(**{"servers": servers, **more}, serve=serve, state_dir=tmp_path)

    return make


async def names(talker):
    return [tool.name for tool in (await talker.client.list_tools()).tools]


def words(result):
    return result.content[0].text


async def test_clients_list_three_tools_and_call_all_through_them(settings, era):
    async with gate(settings()) as opened, Talker(era, opened.url) as talker:
        listed = await names(talker)
        found = await talker.client.call_tool("search_tools", {"query": "sum of two numbers"})
        described = await talker.client.call_tool("describe_tool", {"name": "zoo_add"})
        called = await talker.client.call_tool(
            "call_tool", {"name": "zoo_add", "arguments": {"a": 2, "b": 40}}
        )
        direct = await talker.client.call_tool("zoo_add", {"a": 2, "b": 40})

        assert listed == DEFINITIONS
        assert "zoo_add(a: number, b: number)" in words(found)
        assert '"required"' in words(described)
        assert called.content == direct.content
        assert opened.hub.metrics.tools("zoo")["add"].calls == 2


async def test_progress_and_questions_of_a_tool_reach_the_client_through_call_tool(settings, era):
    told = []

    async def on_progress(done, total, message):
        told.append(done)

    async with gate(settings()) as opened, Talker(era, opened.url) as talker:
        asked = await talker.client.call_tool("call_tool", {"name": "zoo_ask"})
        await talker.client.call_tool(
            "call_tool",
            {"name": "zoo_progress", "arguments": {"steps": 2, "interval": 0}},
            progress_callback=on_progress,
        )

    assert "Ada" in words(asked)
    assert 1 in told


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("call_tool", {"name": "zoo_ad"}, "zoo_add"),
        ("call_tool", {"name": "call_tool", "arguments": {"name": "zoo_add"}}, "no tool named"),
        ("call_tool", {}, "name"),
        ("describe_tool", {"name": "zoo_fail"}, "no tool named 'zoo_fail'"),
        ("search_tools", {"query": 5}, "query"),
        ("search_tools", {"query": "x", "limit": 1000}, "limit"),
    ],
)
async def test_what_cannot_be_done_is_reported_in_a_result(
    settings, era, tool, arguments, expected
):
    async with gate(settings()) as opened, Talker(era, opened.url) as talker:
        result = await talker.client.call_tool(tool, arguments)

    assert result.is_error
    assert expected in words(result)


async def test_a_hidden_tool_is_refused(settings, era):
    async with gate(settings()) as opened, Talker(era, opened.url) as talker:
        result = await talker.client.call_tool("call_tool", {"name": "zoo_fail"})

    assert result.is_error
    assert "hidden by a filter" in words(result)


async def test_a_hidden_tool_is_never_found(settings, era):
    profiles = {"some": Profile(deny=("zoo_echo",), tools="search")}
    opened_with = settings(serve=Serve(), profiles=profiles)
    async with (
        gate(opened_with) as opened,
        Talker(era, f"{opened.url}?profile=some") as some,
        Talker(era, opened.url) as everyone,
    ):
        found = await some.client.call_tool("search_tools", {"query": "zoo_echo"})
        listed = await names(everyone)

    assert "zoo_echo" not in words(found)
    assert "zoo_echo" in listed
    assert len(listed) > len(DEFINITIONS)


@pytest.mark.parametrize(("budget", "searched"), [(100, True), (1_000_000, False)])
async def test_a_budget_decides_by_itself(settings, era, budget, searched):
    serve = Serve(tools="auto", token_budget=budget)
    async with gate(settings(serve=serve)) as opened, Talker(era, opened.url) as talker:
        assert ((await names(talker)) == DEFINITIONS) is searched


async def test_a_changed_tool_is_found_and_the_list_has_not_changed(tmp_path, era):
    server = MCPServer("growing")
    server.add_tool(lambda a: a, name="first", description="The first one")
    settings = Settings(
        servers={"one": LocalServer(server=server)}, serve=Serve(tools="search"), state_dir=tmp_path
    )
    async with gate(settings) as opened, Talker(era, opened.url) as talker:
        assert await names(talker) == DEFINITIONS
        other = MCPServer("other")
        other.add_tool(lambda a: a, name="second", description="Paints a fence")
        servers = {**settings.servers, "two": LocalServer(server=other)}
        opened.hub.apply(settings.replace(servers=servers))
        await opened.hub.settled()

        async def is_found():
            found = await talker.client.call_tool("search_tools", {"query": "paint a fence"})
            return "two_second" in words(found)

        await until_told(is_found)

        assert talker.hearsay("notifications/tools/list_changed") == []


async def test_a_client_with_the_other_list_can_go_on_after_the_mode_has_changed(settings, era):
    serve = Serve(tools="auto", token_budget=1_000_000)
    async with gate(settings(serve)) as opened, Talker(era, opened.url) as talker:
        listed = await names(talker)
        called = await talker.client.call_tool(
            "call_tool", {"name": "zoo_add", "arguments": {"a": 2, "b": 40}}
        )

    assert "call_tool" not in listed
    assert words(called).startswith("42")


async def test_an_unknown_name_counts_what_is_not_trusted_and_names_none_of_it(settings, era):
    plain, search = settings(Serve()), settings()
    held = Withheld("server", "ignore_all_rules", "", "run `multitap trust`", project="/strange")
    told = []
    for one, call in ((plain, "a_b"), (search, "call_tool"), (search, "describe_tool")):
        async with gate(one) as opened, Talker(era, opened.url) as talker:
            opened.hub.withheld = (held, held)
            try:
                answer = await talker.client.call_tool(call, {"name": "a_b"})
                told.append(words(answer))
            except MCPError as exc:
                told.append(str(exc))

    for text in told:
        assert "no tool named 'a_b'" in text
        assert text.count("2 servers of the user's project are not used as they are now") == 1
        assert "ignore_all_rules" not in text
        assert "/strange" not in text


def issues_server():
    server = MCPServer("issues")

    @server.tool()
    def list_issues() -> dict[str, list[dict[str, str]]]:
        """List issues."""
        return {"issues": [{"id": str(number), "body": "x" * 500} for number in range(9)]}

    return server


async def test_a_model_selects_the_fields_that_it_reads(settings, era):
    servers = {"github": LocalServer(server=issues_server())}
    async with gate(settings(servers=servers)) as opened, Talker(era, opened.url) as talker:
        await opened.hub.settled()
        call = {"name": "github_list_issues", "select": "issues[].id"}
        selected = await talker.client.call_tool("call_tool", call)
        whole = await talker.client.call_tool("call_tool", {"name": "github_list_issues"})
        missed = await talker.client.call_tool("call_tool", {**call, "select": "items[].id"})
        refused = await talker.client.call_tool("call_tool", {**call, "select": "items["})

        by_jq = await talker.client.call_tool("call_tool", {**call, "select": "jq:.issues[].id"})
        bomb = {**call, "select": "jq:[range(infinite)]"}
        bombed = await talker.client.call_tool("call_tool", bomb)

        assert json.loads(words(selected)) == [str(number) for number in range(9)]
        assert by_jq.content == selected.content
        assert "it takes too much time or memory" in words(bombed)
        assert "issues: list of 9" in words(bombed)
        assert selected.structured_content is None
        assert len(json.loads(words(whole))["issues"]) == 9
        assert "\n" not in words(whole)
        assert "issues: list of 9, the first {id: string, body: string}" in words(missed)
        assert not missed.is_error
        assert "not a JMESPath expression" in words(refused)
        # the last one was refused before the call
        assert opened.hub.metrics.tools("github")["list_issues"].calls == 5


async def test_a_tool_with_a_selection_is_listed_and_answered_without_structure(settings, era):
    server = LocalServer(server=issues_server(), select={"list_issues": "issues[].id"})
    configured = settings(servers={"github": server}, serve=Serve())
    async with gate(configured) as opened, Talker(era, opened.url) as talker:
        await opened.hub.settled()
        (listed,) = (await talker.client.list_tools()).tools
        answers = [await talker.client.call_tool("github_list_issues", {}) for _ in range(2)]

        assert listed.output_schema is None
        for answer in answers:
            assert json.loads(words(answer)) == [str(number) for number in range(9)]
            assert answer.structured_content is None


NEAR = {"add": [1.0, 0.1], "plus": [1.0, 0.0], "echo": [0.0, 1.0]}


async def until_found(talker, query, tool):
    with anyio.fail_after(PATIENCE):
        while f"{tool}(" not in words(await talker.client.call_tool("search_tools", query)):
            await anyio.sleep(0.01)


async def test_a_model_of_sentences_finds_what_shares_no_word(settings, tmp_path, era):
    folder = write_model(tmp_path / "model", NEAR)
    query = {"query": "plus"}
    async with gate(settings()) as opened, Talker(era, opened.url) as talker:
        by_words = words(await talker.client.call_tool("search_tools", query))

    serve = Serve(tools="search", search_model=folder)
    async with gate(settings(serve)) as opened, Talker(era, opened.url) as talker:
        await until_found(talker, query, "zoo_add")

    assert "zoo_add(" not in by_words


async def test_a_model_that_is_missing_or_damaged_is_named_and_words_still_find(
    settings, tmp_path, caplog, era
):
    serve = Serve(tools="search", search_model=tmp_path)
    async with gate(settings(serve)) as opened, Talker(era, opened.url) as talker:
        await until(lambda: "serve.search_model" in caplog.text)
        found = await talker.client.call_tool("search_tools", {"query": "sum of two numbers"})

    assert str(tmp_path / "model.onnx") in caplog.text
    assert "found by their words alone" in caplog.text
    assert "zoo_add(" in words(found)
