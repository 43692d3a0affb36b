"""The hub against real servers in this process; nothing is mocked."""

import anyio
import mcp_types as types
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from multitap import (
    CallContext,
    LocalServer,
    Settings,
    StdioServer,
    ToolFilter,
    open_hub,
)
from multitap.errors import (
    BadArguments,
    CallTimeout,
    HubClosed,
    NotAllowed,
    ServerError,
    Unavailable,
    UnknownName,
)
from multitap.events import CallDone, CatalogChanged, LinkChanged, LinkState, Outcome
from multitap.names import Naming
from multitap.wire.request import make_request
from tests.waiting import PATIENCE


def calculator():
    server = MCPServer("calculator", instructions="Add and divide.")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    def divide(a: int, b: int) -> float:
        if b == 0:
            raise ToolError("cannot divide by zero")
        return a / b

    @server.tool()
    async def hang() -> None:
        await anyio.sleep_forever()

    @server.tool()
    async def steps(context: Context) -> str:
        for step in range(3):
            await context.report_progress(step, 3, f"step {step}")
        return "done"

    @server.tool()
    def long() -> str:
        return "\n".join(f"line {n}" for n in range(5000))

    @server.resource("calc://pi")
    def pi() -> str:
        return "3.14159"

    @server.resource("calc://square/{n}")
    def square(n: str) -> str:
        return str(int(n) ** 2)

    @server.prompt()
    def explain(topic: str) -> str:
        return f"Explain {topic}."

    @server.completion()
    async def complete(reference, argument, context):
        return types.Completion(values=[f"{argument.value}!"])

    return server


@pytest.fixture
def settings(tmp_path):
    def make(*names, **more):
        servers = {name: LocalServer(server=calculator(), timeout=0.5) for name in names}
        return Settings(servers=servers, state_dir=tmp_path, **more)

    return make


async def test_a_tool_is_called_by_its_catalog_name(settings):
    async with open_hub(settings("calc")) as hub:
        await hub.settled()
        result = await hub.call("calc_add", {"a": 2, "b": 3})

        assert result.success
        assert result.structured == {"result": 5}
        assert result.text == "5"


async def test_a_tool_carries_its_definition_unchanged(settings):
    async with open_hub(settings("calc")) as hub:
        await hub.settled()
        tool = hub.catalog.tools["calc_add"]

        assert (tool.server, tool.raw_name) == ("calc", "add")
        assert tool.description == "Add two numbers."
        assert tool.input_schema["required"] == ["a", "b"]
        assert tool.output_schema is not None


async def test_a_server_that_cannot_start_does_not_disturb_the_others(settings):
    wanted = settings("calc")
    servers = {**wanted.servers, "broken": StdioServer(command="no-such-program")}
    async with open_hub(wanted.replace(servers=servers)) as hub:
        await hub.settled()
        snapshot = hub.snapshot()

        assert snapshot.server("calc").state is LinkState.CONNECTED
        assert snapshot.server("broken").state is LinkState.ERROR
        assert "not on the PATH" in str(snapshot.server("broken").failure)
        assert {tool.server for tool in hub.tools} == {"calc"}


async def test_a_slow_tool_is_abandoned_after_the_configured_time(settings):
    async with open_hub(settings("calc")) as hub:
        await hub.settled()
        with anyio.fail_after(PATIENCE), pytest.raises(CallTimeout):
            await hub.call("calc_hang")


async def test_a_failing_tool_returns_the_servers_own_words(settings):
    async with open_hub(settings("calc")) as hub:
        await hub.settled()
        result = await hub.call("calc_divide", {"a": 1, "b": 0})

        assert not result.success
        assert "cannot divide by zero" in result.error


async def test_an_unknown_tool_says_which_one_might_be_meant(settings):
    async with open_hub(settings("calc")) as hub:
        await hub.settled()
        with pytest.raises(UnknownName) as caught:
            await hub.call("calc_ad")

        assert "'calc_add'" in caught.value.hint


async def test_arguments_that_do_not_fit_never_leave(settings):
    async with open_hub(settings("calc")) as hub:
        await hub.settled()
        with pytest.raises(BadArguments) as caught:
            await hub.call("calc_add", {"a": "two", "b": 3})

        assert caught.value.path == "/a"


async def test_a_filter_hides_a_tool_and_forbids_its_call(settings):
    wanted = settings()
    server = LocalServer(server=calculator(), filter=ToolFilter(deny=("div*",)))
    async with open_hub(wanted.replace(servers={"calc": server})) as hub:
        await hub.settled()

        assert "calc_divide" not in hub.catalog.tools
        with pytest.raises(NotAllowed):
            await hub.call("calc_divide", {"a": 1, "b": 1})


async def test_an_agent_sees_and_calls_only_what_its_filter_shows(settings):
    agents = {"reader": ToolFilter(allow=("calc_add",))}
    async with open_hub(settings("calc", agents=agents)) as hub:
        await hub.settled()
        context = CallContext(agent_id="reader")

        shown = hub.tools.narrowed(hub.settings.agents["reader"])
        assert [tool.name for tool in shown] == ["calc_add"]
        assert (await hub.call("calc_add", {"a": 1, "b": 1}, context=context)).success
        with pytest.raises(NotAllowed):
            await hub.call("calc_divide", {"a": 1, "b": 1}, context=context)


async def test_progress_is_reported(settings):
    reports = []
    async with open_hub(settings("calc")) as hub:
        await hub.settled()
        context = CallContext(on_progress=lambda *report: reports.append(report))
        await hub.call("calc_steps", context=context)

    assert reports == [(0, 3, "step 0"), (1, 3, "step 1"), (2, 3, "step 2")]


async def test_a_long_text_is_cut_and_the_rest_can_be_paged(settings):
    async with open_hub(settings("calc", result_cap=1000)) as hub:
        await hub.settled()
        result = await hub.call("calc_long")
        kept = hub.result(result.result_id)

        assert result.truncated
        assert len(result.text) < 1300
        assert "line 4999" not in result.text
        assert kept.page(2) != kept.page(1)
        assert "line 4999" in kept.text
        assert str(kept.grep("line 4242"))
        with pytest.raises(UnknownName):
            hub.result("nothing")


async def test_resources_templates_prompts_and_completions(settings):
    async with open_hub(settings("calc")) as hub:
        await hub.settled()

        assert (await hub.read("calc://pi")).contents[0].text == "3.14159"
        assert (await hub.read("calc://square/7")).contents[0].text == "49"
        prompt = await hub.prompt("calc_explain", {"topic": "sums"})
        assert prompt.messages[0].content.text == "Explain sums."
        done = await hub.complete("calc_explain", "topic", "su")
        assert done.completion.values == ["su!"]
        with pytest.raises(UnknownName):
            await hub.read("other://thing")


async def test_a_refused_read_carries_the_servers_words(settings):
    async with open_hub(settings("calc")) as hub:
        await hub.settled()
        with pytest.raises(ServerError):
            await hub.read("calc://square/x")


async def test_reload_keeps_unchanged_servers_and_says_what_it_does(settings):
    first = settings("calc")
    async with open_hub(first) as hub:
        await hub.settled()
        before = hub.links["calc"]
        more = {**first.servers, "second": LocalServer(server=calculator())}
        plan = hub.apply(first.replace(servers=more))
        await hub.settled()

        assert str(plan) == "start second; keep calc"
        assert hub.links["calc"] is before
        assert {tool.server for tool in hub.tools} == {"calc", "second"}


async def test_a_replaced_server_finishes_its_calls(settings):
    release = anyio.Event()
    server = MCPServer("slow")

    @server.tool()
    async def wait() -> str:
        await release.wait()
        return "finished"

    wanted = settings().replace(servers={"slow": LocalServer(server=server)})
    async with open_hub(wanted) as hub, anyio.create_task_group() as tasks:
        await hub.settled()
        results = []

        async def call():
            results.append(await hub.call("slow_wait"))

        tasks.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        changed = LocalServer(server=server, timeout=20)
        hub.apply(wanted.replace(servers={"slow": changed}))
        await hub.settled()
        assert hub.links["slow"].config == changed
        release.set()

    assert results[0].text == "finished"


async def test_names_do_not_depend_on_which_servers_are_up(tmp_path):
    def hub_with(**servers):
        return open_hub(Settings(servers=servers, state_dir=tmp_path))

    down = StdioServer(command="no-such-program")
    up = LocalServer(server=calculator())
    async with hub_with(calc=up, calc_b=down) as hub:
        await hub.settled()
        alone = set(hub.catalog.tools)
    async with hub_with(calc=up, calc_b=up) as hub:
        await hub.settled()
        together = {tool.name for tool in hub.tools if tool.server == "calc"}

    assert alone == together


@pytest.mark.parametrize(
    ("naming", "name"),
    [
        (Naming.SERVER_TOOL, "my-calc_add"),
        (Naming.KODE, "my-calc:add"),
        (Naming.EXCELMANUS, "mcp_my_calc_add"),
        (Naming.CLAUDE, "mcp__my-calc__add"),
        (Naming.BARE, "add"),
    ],
)
async def test_each_naming_reaches_the_tool(settings, naming, name):
    async with open_hub(settings("my-calc", naming=naming)) as hub:
        await hub.settled()

        assert (await hub.call(name, {"a": 1, "b": 1})).text == "2"


async def test_bare_names_are_prefixed_where_two_servers_share_them(settings):
    async with open_hub(settings("one", "two", naming=Naming.BARE)) as hub:
        await hub.settled()

        named = {tool.server: name for name, tool in hub.catalog.tools.items() if "add" in name}

        assert named in ({"one": "add", "two": "two_add"}, {"one": "one_add", "two": "add"})


def offering(**tools):
    """Servers in this process, each with tools of some names."""
    servers = {}
    for name, names in tools.items():
        server = MCPServer(name)
        for tool in names:
            server.tool(tool)(lambda: None)
        servers[name] = LocalServer(server=server)
    return servers


def named(hub):
    return {(tool.server, tool.raw_name): name for name, tool in hub.catalog.tools.items()}


async def test_a_name_stays_with_who_had_it_and_the_newcomer_is_known_by_another(tmp_path):
    first = Settings(servers=offering(a_b=["c"]), state_dir=tmp_path)
    both = Settings(servers=offering(a=["b_c", "d"], a_b=["c"]), state_dir=tmp_path)
    async with open_hub(first) as hub:
        await hub.settled()
        hub.apply(both)
        await hub.settled()
        names = named(hub)
    async with open_hub(both) as hub:
        await hub.settled()
        again = named(hub)

    assert names["a_b", "c"] == "a_b_c"
    assert names["a", "d"] == "a_d"
    assert names["a", "b_c"].startswith("a_b_c_")
    assert again == names


async def test_hubs_that_share_a_state_directory_agree_on_names(tmp_path):
    both = Settings(servers=offering(a=["b_c"], a_b=["c"]), state_dir=tmp_path)
    only = [both.replace(servers={name: both.servers[name]}) for name in both.servers]
    async with open_hub(only[0]) as one, open_hub(only[1]) as other:
        await one.settled()
        await other.settled()
        for hub in (one, other):
            hub.apply(both)
            await hub.settled()
        assert named(one) != named(other)
        with anyio.fail_after(PATIENCE):
            await one.store.flush()
            await other.store.flush()

        assert named(one) == named(other)
        assert len({*named(one).values()}) == 2


async def test_names_do_not_depend_on_who_comes_first_where_nothing_can_be_remembered(tmp_path):
    occupied = tmp_path / "occupied"
    occupied.touch()
    servers = offering(a=["b_c", "d"], a_b=["c"])
    found = []
    for order in (["a", "a_b"], ["a_b", "a"]):
        ordered = {name: servers[name] for name in order}
        async with open_hub(Settings(servers=ordered, state_dir=occupied)) as hub:
            await hub.settled()
            found.append(named(hub))

    assert found[0] == found[1]
    assert found[0]["a_b", "c"] == "a_b_c"


async def test_prompts_with_the_same_bare_name_are_all_there(settings):
    async with open_hub(settings("one", "two", naming=Naming.BARE)) as hub:
        await hub.settled()

        assert {prompt.server for prompt in hub.catalog.prompts.values()} == {"one", "two"}


async def test_still_starting_is_said_of_the_server_that_the_name_belongs_to(settings):
    deaf = StdioServer(command="sleep", args=("60",), timeout=0.2)
    wanted = settings(naming=Naming.EXCELMANUS).replace(servers={"web": deaf, "web-search": deaf})
    async with open_hub(wanted) as hub:
        with anyio.fail_after(PATIENCE), pytest.raises(Unavailable) as caught:
            await hub.call("mcp_web_search_images")

    assert caught.value.server == "web-search"


async def test_a_resource_of_two_servers_is_read_by_the_address_of_each(settings):
    async with open_hub(settings("one", "two")) as hub:
        await hub.settled()
        addresses = {one.server: one.address for one in hub.catalog.resources}
        for server, address in addresses.items():
            assert hub.catalog.find_resource(address).server == server
            assert hub.catalog.find_resource("calc://pi", server).address == address
            assert (await hub.read(address)).contents[0].text == "3.14159"

    assert sorted(addresses.values()) in (
        ["calc://one/~/pi", "calc://pi"],
        ["calc://pi", "calc://two/~/pi"],
    )


async def test_calls_are_measured_and_published_as_events(settings):
    async with open_hub(settings("calc")) as hub:
        await hub.settled()
        with hub.events.subscribe() as events:
            added = await hub.call("calc_add", {"a": 1, "b": 1})
            divided = await hub.call("calc_divide", {"a": 1, "b": 0})
            first, second = await anext(events), await anext(events)
        stats = hub.metrics.tools("calc")

    assert isinstance(first, CallDone)
    assert 0 < first.seconds == added.seconds
    assert 0 < second.seconds == divided.seconds
    assert (first.outcome, second.outcome) == (Outcome.OK, Outcome.ERROR)
    assert stats["add"].calls == 1
    assert stats["divide"].errors == 1
    assert 'gen_ai_tool_name="add"' in hub.metrics.prometheus()


async def test_events_tell_the_story_of_a_start(settings):
    async with open_hub(settings("calc")) as hub:
        with hub.events.subscribe() as events, anyio.fail_after(PATIENCE):
            seen = [await anext(events) for _ in range(3)]

    assert seen == [
        LinkChanged("calc", LinkState.CONNECTING),
        LinkChanged("calc", LinkState.CONNECTED),
        CatalogChanged(1),
    ]


async def test_calling_a_disabled_server_says_so(settings):
    wanted = settings("calc")
    disabled = {"calc": wanted.servers["calc"].replace(enabled=False)}
    async with open_hub(wanted) as hub:
        await hub.settled()
        hub.apply(wanted.replace(servers=disabled))
        await hub.settled()

        assert hub.snapshot().server("calc").state is LinkState.DISABLED
        with pytest.raises(Unavailable, match="disabled"):
            hub.restart("calc")
        with pytest.raises(UnknownName):
            await hub.call("calc_add", {"a": 1, "b": 1})


async def test_the_callers_own_error_leaves_the_block_unwrapped(settings):
    with pytest.raises(UnknownName):
        async with open_hub(settings("calc")) as hub:
            await hub.call("nothing")


async def test_a_closed_hub_refuses(settings):
    async with open_hub(settings("calc")) as hub:
        await hub.settled()

    with pytest.raises(HubClosed):
        await hub.call("calc_add", {"a": 1, "b": 1})


async def test_a_call_on_a_removed_server_fails_at_once(settings):
    async with open_hub(settings("calc", drain_timeout=0)) as hub:
        await hub.settled()
        tool = hub.catalog.tools["calc_add"]
        hub.apply(settings())
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(PATIENCE), pytest.raises(Unavailable, match="removed"):
            await tool.link.request(
                make_request("tools/call", {"name": "add", "arguments": {"a": 1, "b": 1}}, 30.0)
            )


async def test_whatever_is_asked_of_a_server_that_is_still_starting_waits_for_it(settings):
    async with open_hub(settings("calc")) as hub:
        with anyio.fail_after(PATIENCE):
            read = await hub.read("calc://pi")
    async with open_hub(settings("calc")) as hub:
        with anyio.fail_after(PATIENCE):
            prompt = await hub.prompt("calc_explain", {"topic": "pi"})
    async with open_hub(settings("calc")) as hub:
        with anyio.fail_after(PATIENCE):
            result = await hub.call("calc_add", {"a": 2, "b": 3})

    assert read.contents[0].text == "3.14159"
    assert prompt.messages[0].content.text == "Explain pi."
    assert result.text == "5"


async def test_a_name_that_no_starting_server_can_have_fails_at_once(settings):
    deaf = StdioServer(command="sleep", args=("60",))
    wanted = settings("calc").replace(servers={"deaf": deaf})
    async with open_hub(wanted) as hub:
        with anyio.fail_after(PATIENCE), pytest.raises(UnknownName):
            await hub.call("other_add")


@pytest.mark.parametrize("naming", [Naming.SERVER_TOOL, Naming.BARE])
async def test_a_call_that_waited_says_why_its_server_did_not_come_up(settings, naming):
    broken = StdioServer(command="no-such-program")
    wanted = settings(naming=naming).replace(servers={"broken": broken})
    async with open_hub(wanted) as hub:
        with anyio.fail_after(PATIENCE), pytest.raises(Unavailable, match="no-such-program"):
            await hub.call("broken_add")


@pytest.mark.parametrize("naming", [Naming.SERVER_TOOL, Naming.BARE])
async def test_a_call_that_waited_for_a_tool_that_is_not_there_says_so(settings, naming):
    async with open_hub(settings("calc", naming=naming)) as hub:
        with anyio.fail_after(PATIENCE), pytest.raises(UnknownName, match="calc_nothing"):
            await hub.call("calc_nothing")
