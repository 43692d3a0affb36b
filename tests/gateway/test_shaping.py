"""Results within a budget: what is cut, what is kept, and for whom."""

import json

import mcp_types as types
import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError

from multitap import Settings
from multitap.config import LocalServer, Profile
from multitap.config.models import Serve
from multitap.gateway import shaping
from tests.gateway.talking import MODES, Talker, gate

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

ROWS = [{"id": number, "title": f"title {number}", "body": "x" * 80} for number in range(100)]


@pytest.fixture(params=["old", "new"])
def era(request):
    return request.param


class Issues:
    """A server that counts its calls."""

    def __init__(self):
        self.calls = 0
        self.server = MCPServer("issues")
        self.server.add_tool(self.list_issues)
        self.server.add_tool(self.read_log)

    def list_issues(self) -> dict[str, list[dict[str, int | str]]]:
        """List issues."""
        self.calls += 1
        return {"issues": ROWS}

    def read_log(self) -> str:
        """Read a log."""
        self.calls += 1
        return "\n".join(f"line {number}" for number in range(5000))


@pytest.fixture
def issues():
    return Issues()


@pytest.fixture
def settings(tmp_path, issues):
    def make(**more):
        small = {"token_budget": 500, **more}
        return Settings(
            servers={"github": LocalServer(server=issues.server)},
            profiles={
                "small": Profile(**small),
                "none": Profile(deny=("*list_issues",), **small),
                "whole": Profile(),
            },
            serve=Serve(),
            state_dir=tmp_path,
        )

    return make


def words(result):
    return result.content[0].text


def at(opened, profile):
    return f"{opened.url}?profile={profile}"


async def test_a_cut_result_says_how_many_and_the_rest_is_read_without_a_call(
    settings, issues, era
):
    async with gate(settings(tools="all")) as opened, Talker(era, at(opened, "small")) as talker:
        listed = {tool.name: tool for tool in (await talker.client.list_tools()).tools}
        result = await talker.client.call_tool("github_list_issues", {})
        cut = json.loads(words(result))
        note, rows = cut["_cut"], cut["issues"]
        while "next" in note:
            more = {"result": note["result"], "from": note["next"]}
            cut = json.loads(words(await talker.client.call_tool("read_result", more)))
            note, rows = cut["_cut"], [*rows, *cut["issues"]]
        chosen = await talker.client.call_tool(
            "read_result", {"result": note["result"], "select": "issues[?id > `97`].title"}
        )
        link = result.content[1]
        whole = await talker.client.read_resource(str(link.uri))

        assert set(listed) == {"github_list_issues", "github_read_log", "read_result"}
        assert listed["github_list_issues"].output_schema is None
        assert result.structured_content is None
        assert rows == ROWS
        assert json.loads(words(chosen)) == ["title 98", "title 99"]
        assert json.loads(whole.contents[0].text)["issues"] == ROWS
        assert issues.calls == 1


async def test_search_mode_reads_on_through_call_tool(settings, issues, era):
    async with gate(settings(tools="search")) as opened, Talker(era, at(opened, "small")) as talker:
        call = {"name": "github_read_log"}
        first = words(await talker.client.call_tool("call_tool", call))
        handle = first.rpartition('result "')[2].partition('"')[0]
        more = {"name": "read_result", "arguments": {"result": handle, "from": 2000}}
        second = words(await talker.client.call_tool("call_tool", more))
        missed = words(await talker.client.call_tool("call_tool", {**call, "select": "a"}))

        assert "`call_tool read_result`" in first
        assert "… characters 2,000 to " in second
        assert "its result: {result: string}. `call_tool read_result` with result" in missed
        assert issues.calls == 2


async def test_nothing_is_shaped_unless_something_asks_for_it(settings, era):
    async with gate(settings()) as opened, Talker(era, at(opened, "whole")) as talker:
        listed = {tool.name: tool for tool in (await talker.client.list_tools()).tools}
        result = await talker.client.call_tool("github_list_issues", {})

        assert set(listed) == {"github_list_issues", "github_read_log"}
        assert listed["github_list_issues"].output_schema is not None
        assert result.structured_content == {"issues": ROWS}
        assert "\n" in words(result)


async def test_a_budget_alone_chooses_what_is_listed(settings, era):
    async with (
        gate(settings(token_budget=10)) as opened,
        Talker(era, at(opened, "small")) as talker,
    ):
        listed = [tool.name for tool in (await talker.client.list_tools()).tools]

        assert listed == ["search_tools", "describe_tool", "call_tool"]


async def test_a_result_is_read_only_where_its_tool_may_be_seen(settings, era):
    async with (
        gate(settings(tools="all")) as opened,
        Talker(era, at(opened, "small")) as talker,
        Talker(era, at(opened, "none")) as other,
    ):
        result = await talker.client.call_tool("github_list_issues", {})
        handle = json.loads(words(result))["_cut"]["result"]
        refused = await other.client.call_tool("read_result", {"result": handle})
        with pytest.raises(MCPError):
            await other.client.read_resource(str(result.content[1].uri))
        unknown = await talker.client.call_tool("read_result", {"result": "0" * 18})

        assert refused.is_error
        assert "x" * 80 not in words(refused)
        assert words(refused).replace(handle, "") == words(unknown).replace("0" * 18, "")


async def test_only_the_last_results_are_kept(settings, era):
    async with gate(settings(tools="all")) as opened, Talker(era, at(opened, "small")) as talker:
        handles = []
        for _ in range(shaping.MOST_EACH + 1):
            result = await talker.client.call_tool("github_list_issues", {})
            handles.append(json.loads(words(result))["_cut"]["result"])
        first = await talker.client.call_tool("read_result", {"result": handles[0]})
        second = await talker.client.call_tool("read_result", {"result": handles[1]})

        assert first.is_error
        assert not second.is_error


@pytest.mark.parametrize(("tools", "expected"), [("auto", True), ("search", False)])
async def test_programs_that_search_by_themselves_get_all_tools(
    settings, issues, era, tools, expected
):
    program = types.Implementation(name="claude-code", version="2.1")
    configured = settings(token_budget=10, tools=tools)
    async with gate(configured) as opened:
        client = Client(at(opened, "small"), mode=MODES[era], client_info=program, cache=None)
        async with client:
            listed = {tool.name: tool for tool in (await client.list_tools()).tools}

        assert ("github_list_issues" in listed) is expected
        assert ("search_tools" in listed) is not expected
        assert all(tool.output_schema is None for tool in listed.values())
