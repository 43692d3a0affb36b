"""A client of an environment that another program serves."""

from contextlib import asynccontextmanager

import anyio
import pytest
from mcp.server.mcpserver import MCPServer

from multitap.config import HttpServer, LocalServer, Settings
from multitap.env.client import EnvClient
from multitap.env.protocol import (
    EnvDescription,
    LlmMessage,
    LlmRequest,
    LogQuery,
    ToolDescription,
    ToolOutcome,
)
from multitap.env.server import EnvMCPServer
from multitap.errors import BadAnswer, BadArguments, ToolFailed, Unavailable, UnknownName
from multitap.events import ServerLog
from multitap.hub.hub import open_hub
from tests.env.env_world import CRITIC, IMAGE, NOON, REVIEW, SHOUT, Workshop, program
from tests.waiting import PATIENCE

ALL = {"execute_tool": True, "invoke_llm": True}


def local(world=None, **powers):
    return LocalServer(server=EnvMCPServer(world or Workshop(), **powers).server)


@pytest.fixture
async def client(tmp_path):
    async with EnvClient.connect(local(**ALL), state_dir=tmp_path) as client:
        yield client


async def test_every_method_returns_what_the_world_said(client):
    request = LlmRequest(messages=(LlmMessage(content="abc"),), model="glass")

    assert (await client.get_description()).capabilities.execute_tool
    assert await client.list_profiles() == (REVIEW,)
    assert await client.get_profile("review") == REVIEW
    assert await client.list_agents() == (CRITIC,)
    assert await client.get_agent("critic") == CRITIC
    assert await client.list_tools() == (SHOUT,)
    assert await client.list_tools("nobody") == ()
    assert (await client.get_prompt("greet", {"who": "you"})).text == "Hello you"
    assert (await client.invoke_llm(request)).model == "glass"


async def test_logs_are_asked_for_in_full(client):
    page = await client.query_logs(LogQuery(level="error", since=NOON, limit=7))

    assert page.entries[0].text == f"error 7 {NOON}"
    assert page.entries[0].at == NOON
    assert page.cursor == "more"


async def test_a_tool_answers_with_all_it_has(client):
    outcome = await client.execute_tool("shout", {"text": "hey"})

    assert outcome == ToolOutcome(success=True, output="HEY", content=(IMAGE,))


async def test_that_a_tool_fails_is_an_outcome(client):
    outcome = await client.execute_tool("shout")

    assert (outcome.success, outcome.error) == (False, "nothing to shout")


async def test_what_is_not_there_raises_in_the_words_of_the_other_side(client):
    with pytest.raises(ToolFailed, match="env: no profile 'no'; list_profiles has them all"):
        await client.get_profile("no")


async def test_a_process_is_reached_over_its_pipes(tmp_path):
    with anyio.fail_after(PATIENCE):
        async with EnvClient.connect(program(), state_dir=tmp_path) as client:
            assert (await client.get_description()).display_name == "Workshop"


@pytest.mark.parametrize("era", ["handshake", "stateless"])
async def test_a_call_that_its_client_gives_up_is_cancelled(tmp_path, era):
    world = Workshop()
    with anyio.fail_after(PATIENCE):
        async with EnvMCPServer(world, **ALL).serve_http(port=0) as front:
            config = HttpServer(url=front.url, era=era)
            async with EnvClient.connect(config, state_dir=tmp_path) as client:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(client.execute_tool, "hang")
                    await world.hanging.wait()
                    tasks.cancel_scope.cancel()
                await world.given_up.wait()


async def test_a_server_that_cannot_be_reached_is_said_at_once(tmp_path):
    config = HttpServer(url="http://127.0.0.1:1/mcp")

    with pytest.raises(Unavailable, match="env: "):
        async with EnvClient.connect(config, state_dir=tmp_path):
            pass


async def test_a_server_that_is_no_environment_is_said_at_once(tmp_path):
    with pytest.raises(UnknownName, match="does not offer env_get_description"):
        async with EnvClient.connect(LocalServer(server=MCPServer("calc")), state_dir=tmp_path):
            pass


async def test_what_is_turned_off_says_how_to_turn_it_on(tmp_path):
    async with EnvClient.connect(local(), state_dir=tmp_path) as client:
        with pytest.raises(UnknownName, match="does not offer env_execute_tool") as caught:
            await client.execute_tool("shout")

    assert "execute_tool = true" in caught.value.hint


async def test_a_hub_that_does_not_know_the_server_says_so(tmp_path):
    async with open_hub(Settings(state_dir=tmp_path)) as hub:
        with pytest.raises(UnknownName, match="no server named 'moon'"):
            await EnvClient(hub, "moon").get_description()


async def test_one_hub_reaches_several_environments(tmp_path):
    servers = {"a": local(), "b": local(**ALL)}

    async with open_hub(Settings(servers=servers, state_dir=tmp_path)) as hub:
        a, b = EnvClient(hub, "a"), EnvClient(hub, "b")

        assert not (await a.get_description()).capabilities.invoke_llm
        assert (await b.get_description()).capabilities.invoke_llm


async def test_a_question_that_does_not_fit_is_not_sent(tmp_path):
    server = MCPServer("narrow")

    @server.tool()
    def env_get_profile(id: int) -> str:  # noqa: A002
        return "{}"

    @server.tool()
    def env_get_description() -> str:
        return "{}"

    async with EnvClient.connect(LocalServer(server=server), state_dir=tmp_path) as client:
        with pytest.raises(BadArguments):
            await client.get_profile("review")


async def test_servers_that_only_know_text_are_understood(tmp_path):
    server = MCPServer("older")

    @server.tool(structured_output=False)
    def env_get_description() -> str:
        return '{"id": "o", "displayName": "Older", "version": "0.1"}'

    @server.tool(structured_output=False)
    def env_list_agents() -> str:
        return "two or three"

    async with EnvClient.connect(LocalServer(server=server), state_dir=tmp_path) as client:
        said = await client.get_description()
        with pytest.raises(BadAnswer, match="'env_list_agents' is not of the Env protocol"):
            await client.list_agents()

    assert said == EnvDescription(id="o", display_name="Older", version="0.1")


class HubWorld(Workshop):
    """A world whose tools are those of a hub, and whose log is the hub's."""

    hub = None

    async def list_tools(self, agent=None):
        return [
            ToolDescription(name=tool.name, input_schema=tool.input_schema, server=tool.server)
            for tool in self.hub.catalog.tools.values()
        ]

    async def execute_tool(self, name, arguments, agent=None):
        return ToolOutcome.of(await self.hub.call(name, arguments))

    async def query_logs(self, query, /):
        return await query.ask(self.hub.store)


@asynccontextmanager
async def listening(world):
    async with EnvMCPServer(world, **ALL).serve_http(port=0) as front:
        yield HttpServer(url=front.url)


async def test_two_environments_are_each_others_client_and_server(tmp_path):
    left, right = HubWorld(), HubWorld()
    with anyio.fail_after(PATIENCE):
        async with (
            listening(left) as to_left,
            listening(right) as to_right,
            open_hub(Settings(servers={"r": to_right}, state_dir=tmp_path / "l")) as left.hub,
            open_hub(Settings(servers={"l": to_left}, state_dir=tmp_path / "r")) as right.hub,
        ):
            await left.hub.settled()
            await right.hub.settled()
            r, l = EnvClient(left.hub, "r"), EnvClient(right.hub, "l")  # noqa: E741
            theirs = {tool.name for tool in await r.list_tools()}
            ours = {tool.name for tool in await l.list_tools()}
            through_both = await r.execute_tool("l_env_get_agent", {"id": "critic"})
            log = await l.query_logs(LogQuery(text="env_execute_tool"))

    assert {name.replace("l_", "r_", 1) for name in theirs} == ours
    assert "l_env_query_logs" in theirs
    assert through_both.structured_content["displayName"] == "Critic"
    assert [entry.server for entry in log.entries] == ["r"]


async def test_the_log_is_still_there_after_a_restart(tmp_path):
    async def run():
        world = HubWorld()
        servers = {"w": local()}
        async with open_hub(Settings(servers=servers, state_dir=tmp_path / "hub")) as world.hub:
            await world.hub.settled()
            await world.hub.call("w_env_get_agent", {"id": "no"})
            config = local(world)
            async with EnvClient.connect(config, state_dir=tmp_path / "client") as client:
                return await client.query_logs(LogQuery(level="warning"))

    first = await run()
    second = await run()

    assert [entry.text for entry in first.entries] == ["env_get_agent: no agent 'no'"]
    assert second.entries[1:] == first.entries
    assert first.entries[0].outcome == "error"


async def test_the_log_keeps_no_secrets(tmp_path):
    secret = "hunter2-hunter2"
    async with listening(Workshop()) as config:
        there = config.replace(headers={"X-Key": secret})
        async with open_hub(Settings(servers={"w": there}, state_dir=tmp_path)) as hub:
            await hub.settled()
            await hub.call("w_env_get_agent", {"id": secret})
            hub.links["w"].report.tell(ServerLog("w", "info", None, f"the key is {secret}"))
            page = await LogQuery(server="w").ask(hub.store)

    texts = [entry.text for entry in page.entries]
    assert texts[:2] == ["the key is ***", "env_get_agent: no agent '***'"]
