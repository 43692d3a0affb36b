import sys

import anyio
import msgspec
import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import prompts as sdk_prompts

from multitap.config import (
    Agent,
    LocalServer,
    ModelConfig,
    Profile,
    PromptConfig,
    Serve,
    Settings,
    StdioServer,
    ToolFilter,
)
from multitap.demo.servers.calculator import server as calculator
from multitap.env.environment import BaseEnvironment, McpClientLoadResult
from multitap.env.protocol import EnvAgent, LlmMessage, LlmRequest, LogQuery
from multitap.errors import (
    BadArguments,
    ConfigError,
    HubClosed,
    MultitapError,
    Unavailable,
    UnknownName,
)
from multitap.tools import ToolDef
from tests.agent.models.scripted import Say, scripted_model, texts
from tests.seeds.files import program
from tests.waiting import PATIENCE

CALCULATOR = ["-m", "multitap.demo.servers.calculator"]


def local(*arguments):
    return {"type": "local", "command": [sys.executable, *arguments]}


@pytest.fixture
def environment(tmp_path):
    """An environment with some servers and settings."""

    def made(clients=None, *, folder=None, serve=None, kind=BaseEnvironment, **settings):
        class Office(kind):
            def base_settings(self):
                return Settings(state_dir=tmp_path / "state", **settings)

            def mcp_client_config(self):
                return {"sums": LocalServer(server=calculator)} if clients is None else clients

            def mcpservers_directory(self):
                return folder

            def mcp_server_config(self):
                return serve

        return Office()

    return made


def names(tools):
    return {tool.name for tool in tools}


async def test_c1_a_subclass_has_the_tools_of_its_servers_and_its_own(environment):
    office = environment({"sums": local(*CALCULATOR)})
    office.register_tool(shout)
    async with office:
        assert "shout" in names(office.get_tools())
        assert names(office.get_mcp_tools()) == {"sums_add", "sums_divide", "sums_mean"}
        assert (await office.registry.execute("sums_add", {"a": 1, "b": 2})).text == "3.0"
        assert (await office.registry.execute("shout", {"text": "hi"})).text == "HI"
    assert names(office.get_tools()) == {"shout"}


def shout(text: str) -> str:
    """In capitals.

    Args:
        text: What to say.
    """
    return text.upper()


async def test_c17_methods_open_and_close_it_as_well_as_a_block(environment):
    office = environment()
    result = await office.initialize_mcp()
    try:
        assert result == McpClientLoadResult(1)
        with pytest.raises(MultitapError, match="open already"):
            await office.initialize_mcp()
    finally:
        await office.shutdown_mcp()
    await office.shutdown_mcp()

    with pytest.raises(HubClosed, match="Office is not open"):
        _ = office.hub


async def test_it_can_be_opened_again(environment):
    office = environment()
    for _ in range(2):
        async with office:
            assert "sums_add" in names(office.get_tools())


async def test_another_task_may_close_it(environment):
    office = environment()
    await office.initialize_mcp()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(office.shutdown_mcp)

    with pytest.raises(HubClosed):
        _ = office.hub


async def test_an_error_of_the_block_leaves_it_as_itself(environment):
    with pytest.raises(KeyError, match="mine"):
        async with environment():
            raise KeyError("mine")


async def test_c17_a_server_that_fails_is_counted_and_costs_only_itself(environment):
    clients = {
        "sums": LocalServer(server=calculator),
        "broken": {"type": "local"},
        "missing": local("/no/such/file.py"),
        "unused": {**local(*CALCULATOR), "enabled": False},
    }
    async with environment(clients) as office:
        with anyio.fail_after(PATIENCE):
            result = await office.load_mcp_clients()

        assert result == McpClientLoadResult(1, ("broken", "missing"))
        assert names(office.get_tools()) == {"sums_add", "sums_divide", "sums_mean"}
        assert [problem.server for problem in office.problems] == ["broken"]


async def test_a_server_that_hangs_does_not_keep_it_from_opening(environment):
    sleeper = StdioServer(command=sys.executable, args=("-c", "import time; time.sleep(60)"))
    office = environment({"sums": LocalServer(server=calculator), "slow": sleeper})
    office.settle_timeout = 0.2
    with anyio.fail_after(PATIENCE):
        assert await office.initialize_mcp() == McpClientLoadResult(1, ("slow",))
        await office.shutdown_mcp()


async def test_c10_servers_of_a_folder_are_amended_by_what_the_program_says(environment, tmp_path):
    for name in ("one", "two", "three"):
        (tmp_path / "mcpservers" / name).mkdir(parents=True)
        script = "from multitap.demo.servers.calculator import server\nserver.run()\n"
        (tmp_path / "mcpservers" / name / "server.py").write_text(script)
    clients = {"two": {"enabled": False}, "three": LocalServer(server=MCPServer("empty"))}
    async with environment(clients, folder=tmp_path / "mcpservers") as office:
        assert names(office.get_tools()) == {"one_add", "one_divide", "one_mean"}
        assert {*office.hub.links} == {"one", "two", "three"}


async def test_c17_a_client_is_disconnected_and_reconnected(environment):
    async with environment() as office:
        await office.disconnect_mcp_client("sums")
        assert office.get_tools() == ()

        assert await office.load_mcp_clients() == McpClientLoadResult(0)  # it stays away
        with anyio.fail_after(PATIENCE):
            await office.reconnect_mcp_client("sums")
        assert (await office.registry.execute("sums_add", {"a": 1, "b": 2})).text == "3.0"

        before = office.hub.snapshot().server("sums").starts
        with anyio.fail_after(PATIENCE):
            await office.reconnect_mcp_client("sums")
        assert office.hub.snapshot().server("sums").starts == before + 1
        await office.disconnect_mcp_client("nobody")


async def test_reconnecting_says_why_it_does_not_work(environment):
    clients = {"dead": local("-c", "exit(3)"), "off": {**local(*CALCULATOR), "enabled": False}}
    async with environment(clients) as office:
        with anyio.fail_after(PATIENCE), pytest.raises(Unavailable, match="dead"):
            await office.reconnect_mcp_client("dead")
        with pytest.raises(Unavailable, match="disabled"):
            await office.reconnect_mcp_client("off")
        with pytest.raises(UnknownName):
            await office.reconnect_mcp_client("nobody")


async def test_c18_a_servers_tool_gives_way_to_one_of_ours(environment, caplog):
    office = environment()
    office.register_tool(ToolDef("sums_add", "Ours.", {"type": "object"}, lambda: "ours"))
    async with office:
        assert (await office.registry.execute("sums_add", {})).text == "ours"
        assert "sums_add" not in names(office.get_mcp_tools())
        assert len(office.get_tools()) == 3
    assert "'sums_add' is skipped" in caplog.text


async def test_tools_follow_the_catalog(environment):
    growing = MCPServer("growing")
    async with environment({"grow": LocalServer(server=growing)}) as office:
        assert office.get_tools() == ()

        growing.add_tool(shout)
        with anyio.fail_after(PATIENCE):
            await office.reconnect_mcp_client("grow")

        assert names(office.get_tools()) == {"grow_shout"}


@pytest.fixture
def staffed(environment):
    """One with agents, profiles and prompts."""
    return environment(
        agents={
            "adder": Agent(allow=("*_add",), description="Adds.", prompt="greeting", max_steps=3),
            "careful": Agent(deny=("sums_divide",), model=ModelConfig(name="own-model")),
        },
        profiles={
            "numbers": Profile(display_name="Numbers", agents=("a*",), deny=("*_mean",)),
            "alone": Profile(servers=(), prompt="greeting"),
        },
        prompts={
            "greeting": PromptConfig(text="You say {hello}."),
            "letter": PromptConfig(
                text="Dear {name}, {name!r} {0} {other}",
                description="A letter.",
                arguments={"name": "To whom."},
            ),
        },
        model=ModelConfig(name="shared-model"),
    )


async def test_each_agent_has_its_own_tools(staffed):
    staffed.register_tool(shout)
    async with staffed:
        assert names(staffed.tools_for("adder").list()) == {"sums_add"}
        assert names(staffed.tools_for("careful").list()) == {"shout", "sums_add", "sums_mean"}
        assert names(staffed.tools_for("careful", profile="numbers").list()) == {
            "shout",
            "sums_add",
        }
        assert names(staffed.tools_for(profile="alone").list()) == {"shout"}
        assert (await staffed.tools_for("adder").execute("shout", {"text": "x"})).is_error
        for wrong in ({"agent": "ader"}, {"agent": None, "profile": "number"}):
            with pytest.raises(UnknownName, match=r"no (agent|profile)"):
                staffed.tools_for(**wrong)


async def test_agents_and_profiles_are_described(staffed):
    async with staffed:
        adder, careful = await staffed.world.list_agents()
        numbers, alone = await staffed.world.list_profiles()

        assert (adder.id, adder.description, adder.model) == ("adder", "Adds.", "shared-model")
        assert (adder.instructions, adder.tools) == ("You say {hello}.", ("sums_add",))
        assert (careful.instructions, careful.model) == (None, "own-model")
        assert (numbers.display_name, numbers.agents) == ("Numbers", ("adder",))
        assert (alone.display_name, alone.agents) == ("alone", ("adder", "careful"))
        assert await staffed.world.get_agent("careful") == careful
        assert await staffed.world.get_profile("alone") == alone
        with pytest.raises(UnknownName, match="no agent named 'ader'"):
            await staffed.world.get_agent("ader")


async def test_a_subclass_says_itself_who_its_agents_are(environment):
    class WithClerk(BaseEnvironment):
        def get_agents(self):
            return [EnvAgent(id="clerk", display_name="Clerk", tools=("sums_add",))]

    async with environment(kind=WithClerk) as office:
        (profile,) = await office.world.list_profiles()

        assert names(office.tools_for("clerk").list()) == {"sums_add"}
        assert (profile.id, profile.agents) == ("default", ("clerk",))


async def test_c19_it_describes_itself(environment, staffed):
    async with environment() as office:
        plain = await office.world.describe()
    async with staffed:
        rich = await staffed.world.describe()

    assert (plain.id, plain.display_name, plain.version) == ("Office", "Office", "1.0.0")
    can = plain.capabilities
    assert (can.logs, can.events, can.profiles, can.mcp_tools, can.mcp_server) == (True,) * 5
    assert not plain.capabilities.execute_tool
    assert (plain.capabilities.prompts, rich.capabilities.prompts) == (False, True)
    assert [profile.id for profile in rich.profiles] == ["numbers", "alone"]


async def test_tools_are_listed_and_executed_by_the_rules_of_an_agent(staffed):
    async with staffed:
        (tool,) = await staffed.world.list_tools("adder")
        added = await staffed.world.execute_tool("sums_add", {"a": 1, "b": 2}, "adder")
        failed = await staffed.world.execute_tool("sums_divide", {"a": 1, "b": 0})

        assert (tool.name, tool.server) == ("sums_add", "sums")
        assert tool.output_schema is not None
        assert (added.success, added.structured_content) == (True, {"result": 3.0})
        assert not failed.success
        assert failed.error.endswith("1 cannot be divided by zero")
        for name, agent in (("sums_divide", "adder"), ("sums_ad", None)):
            with pytest.raises(UnknownName, match=name):
                await staffed.world.execute_tool(name, {}, agent)


async def test_arguments_fill_their_places_in_a_prompt_and_nothing_else(staffed):
    async with staffed:
        prompt = await staffed.world.get_prompt("letter", {"name": "{other}"})

        assert prompt.text == "Dear {other}, {name!r} {0} {other}"
        assert prompt.description == "A letter."
        for wrong in ({}, {"name": "x", "title": "y"}):
            with pytest.raises(BadArguments, match=r"argument '(name|title)'"):
                await staffed.world.get_prompt("letter", wrong)


async def test_prompts_of_servers_are_there_too(environment):
    writer = MCPServer("writer")
    writer.add_prompt(sdk_prompts.Prompt.from_function(lambda topic: topic.upper(), name="essay"))
    async with environment({"pen": LocalServer(server=writer)}) as office:
        prompt = await office.world.get_prompt("pen_essay", {"topic": "tea"})

        assert prompt.text == "TEA"
        with pytest.raises(UnknownName, match="no prompt named 'nothing'"):
            await office.world.get_prompt("nothing", {})


async def test_a_system_prompt_has_what_the_profile_and_the_agent_say(staffed):
    assert staffed.system_prompt("adder", profile="alone") == "You say {hello}.\n\nYou say {hello}."
    assert staffed.system_prompt("careful") == ""


async def test_logs_tell_of_calls_and_are_there_after_a_restart(staffed):
    async with staffed:
        await staffed.world.execute_tool("sums_divide", {"a": 1, "b": 0})
        await staffed.world.execute_tool("sums_add", {"a": 1, "b": 0}, "adder")
    async with staffed:
        bad = await staffed.world.query_logs(LogQuery(level="warning", server="sums", text="zero"))
        calls = await staffed.world.query_logs(LogQuery(text="add: ok"))

    assert [entry.tool for entry in bad.entries] == ["divide"]
    assert [entry.agent for entry in calls.entries] == ["adder"]


async def test_c1_it_is_shown_to_other_clients_as_soon_as_it_is_open(environment):
    async with environment(serve=Serve(enabled=True, transport="http", port=0)) as office:
        front = await office.start_mcp_server()
        async with Client(front.url) as client:
            answer = await client.call_tool("env_get_description", {})
            offered = {tool.name for tool in (await client.list_tools()).tools}

        assert answer.structured_content["id"] == "Office"
        assert "env_execute_tool" not in offered


async def test_its_server_is_stopped_by_any_task_and_started_again(environment):
    async with environment(serve=Serve(transport="http", port=0)) as office:
        await office.stop_mcp_server()
        front = await office.start_mcp_server()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(office.stop_mcp_server)
        assert front.closed.is_set()

        async with Client((await office.start_mcp_server()).url) as client:
            assert (await client.list_tools()).tools


async def test_what_others_may_do_is_turned_on_by_the_settings(environment):
    allowed = {"execute_tool": True}
    serve = Serve(transport="http", port=0)
    async with (
        environment(serve=serve, environment=allowed) as office,
        Client((await office.start_mcp_server()).url) as client,
    ):
        answer = await client.call_tool(
            "env_execute_tool", {"name": "sums_add", "arguments": {"a": 1, "b": 2}}
        )

    assert answer.structured_content["output"] == "3.0"


async def test_a_port_that_is_taken_is_reported_and_costs_nothing_else(environment):
    async with environment(serve=Serve(transport="http", port=0)) as office:
        front = await office.start_mcp_server()
        port = int(front.url.rpartition(":")[2].partition("/")[0])
        async with environment(serve=Serve(transport="http", port=port)) as other:
            with pytest.raises(ConfigError, match="cannot listen"):
                await other.start_mcp_server()
            assert "sums_add" in names(other.get_tools())


async def test_without_a_model_nobody_can_ask_one(environment, staffed):
    request = LlmRequest(messages=(LlmMessage(content="hello"),))
    with pytest.raises(ConfigError, match="no model is configured"):
        await environment().world.invoke_llm(request)
    with pytest.raises(UnknownName, match="no model named 'other'"):
        await staffed.world.invoke_llm(msgspec.structs.replace(request, model="other"))

    assert staffed.model_for().name == "shared-model"
    assert staffed.model_for("careful").name == "own-model"


@pytest.mark.usefixtures("own_executor")
async def test_others_ask_the_model_with_its_key_put_in(environment, monkeypatch):
    monkeypatch.setenv("OUR_KEY", "sk-hunter2")
    asked = LlmRequest(
        messages=(
            LlmMessage(role="system", content="Be brief."),
            LlmMessage(content="hello"),
            LlmMessage(role="assistant", content="hi"),
            LlmMessage(content="and now?"),
        ),
        max_tokens=7,
    )
    async with scripted_model([Say("Tea.", usage=(12, 3))]) as server:
        model = ModelConfig(name="m", base_url=server.openai_url, api_key="${OUR_KEY}")
        reply = await environment(model=model).world.invoke_llm(asked)

    assert (reply.text, reply.stop_reason, reply.usage.output_tokens) == ("Tea.", "end", 3)
    assert texts(server, "openai") == [
        "system: Be brief.",
        "user: hello",
        "assistant: hi",
        "user: and now?",
    ]
    assert server.requests[-1]["max_tokens"] == 7


@pytest.mark.usefixtures("own_executor")
async def test_a_server_asks_the_model(environment):
    async with scripted_model([Say("Please.")]) as server:
        model = ModelConfig(name="m", base_url=server.openai_url)
        clients = {"zoo": program()}
        office = environment(clients, model=model, environment={"invoke_llm": True})
        async with office:
            result = await office.registry.execute("zoo_sample", {})

    assert "Please." in result.text


def test_servers_may_ask_the_model_only_where_others_may(environment):
    model = ModelConfig(name="m")

    assert environment(model=model).handlers().sample is None
    assert environment(environment={"invoke_llm": True}).handlers().sample is None
    assert environment(model=model, environment={"invoke_llm": True}).handlers().sample


def test_a_filter_alone_is_an_agent(environment):
    office = environment(agents={"reader": ToolFilter(allow=("read_*",))})

    assert office.settings.agents == {"reader": Agent(allow=("read_*",))}
