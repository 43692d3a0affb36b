"""ExcelManus (seed E): its classes, its error table, and its six properties.

All rows are here.
"""

import asyncio
import json
import logging
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import anyio
import pytest
from hypothesis import HealthCheck, assume, given, is_hypothesis_test, settings
from hypothesis import strategies as st

from multitap import (
    AgentEngine,
    MCPClientWrapper,
    MCPConfigLoader,
    MCPManager,
    MCPServerConfig,
    Settings,
    StdioServer,
    ToolDef,
    ToolExecutionError,
    ToolRegistry,
    ToolResult,
)
from multitap.catalog.catalog import build_section
from multitap.catalog.naming import NameRegistries
from multitap.catalog.vetting import Vetting
from multitap.errors import ConfigError, Unavailable, UnknownName
from multitap.names import MAX_LENGTH, Naming
from multitap.seeds.excelmanus import tool_def
from multitap.seeds.threaded_hub import ThreadedHub
from multitap.trust.pins import Pins
from multitap.trust.policy import Policy
from multitap.upstream.lists import Offers
from tests.processes import descendants
from tests.seeds.files import write, zoo
from tests.trusting import trust
from tests.waiting import PATIENCE, until
from tests.wire.sdk_web import served, toolbox
from tests.zoo.tools import TOOLS

WORD = st.text(
    st.characters(exclude_categories=["C", "Z"], exclude_characters="$"), min_size=1, max_size=12
)
ENV = st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True), WORD, max_size=3)
STDIO = st.fixed_dictionaries(
    {"transport": st.just("stdio"), "command": WORD},
    optional={
        "args": st.lists(WORD, max_size=4),
        "env": ENV,
        "timeout": st.integers(1, 86400),
    },
)
SSE = st.fixed_dictionaries(
    {"transport": st.just("sse"), "url": WORD.map(lambda word: f"http://localhost/{word}")},
    optional={"timeout": st.integers(1, 86400)},
)
GOOD = STDIO | SSE
BAD = st.one_of(
    GOOD.map(lambda entry: {key: value for key, value in entry.items() if key != "transport"}),
    GOOD.map(lambda entry: entry | {"transport": "carrier-pigeon"}),
    STDIO.map(lambda entry: {key: value for key, value in entry.items() if key != "command"}),
    SSE.map(lambda entry: {key: value for key, value in entry.items() if key != "url"}),
    GOOD.map(lambda entry: entry | {"timeout": 0}),
    st.integers() | st.none() | st.text(max_size=5),
)
IDENTIFIER = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,20}", fullmatch=True)
PROPERTY = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def mcp_json(project):
    def put(**servers):
        path = write(project / "mcp.json", {"mcpServers": servers})
        trust(project)
        return path

    return put


@pytest.fixture
async def manager(project):
    manager = MCPManager(project)
    yield manager
    await manager.shutdown()


@pytest.fixture
async def client():
    client = MCPClientWrapper(MCPServerConfig("zoo", **zoo()))
    await client.connect()
    yield client
    await client.close()


def fields(config):
    names = ("transport", "command", "args", "env", "url", "timeout")
    return {name: getattr(config, name) for name in names}


def test_e1_a_configuration_has_defaults():
    config = MCPServerConfig("x", "stdio")

    assert fields(config) == {
        "transport": "stdio",
        "command": None,
        "args": None,
        "env": None,
        "url": None,
        "timeout": 30,
    }


def test_e1_secrets_are_not_shown():
    assert "hunter2" not in repr(MCPServerConfig("x", "stdio", "y", env={"TOKEN": "hunter2"}))


def test_e2_the_first_file_in_order_is_the_one(home, project, tmp_path, monkeypatch):
    argument, variable = tmp_path / "argument.json", tmp_path / "variable.json"
    places = [home / ".excelmanus" / "mcp.json", project / "mcp.json", argument, variable]
    monkeypatch.setenv("EXCELMANUS_MCP_CONFIG", str(variable))

    found = [MCPConfigLoader.load(str(argument), str(project))]
    for place in places:
        write(place, {"mcpServers": {place.parent.name + "/" + place.name: zoo()}})
        found.append(MCPConfigLoader.load(str(argument), str(project)))

    assert [[config.name for config in configs] for configs in found] == [
        [],
        [".excelmanus/mcp.json"],
        ["project/mcp.json"],
        [f"{tmp_path.name}/argument.json"],
        [f"{tmp_path.name}/variable.json"],
    ]


def test_e3_a_bad_entry_is_skipped_with_a_warning(mcp_json, project, caplog):
    mcp_json(
        good=zoo(), bad={"transport": "stdio"}, web={"transport": "sse", "url": "http://x/sse"}
    )

    assert [config.name for config in MCPConfigLoader.load(None, project)] == ["good", "web"]
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "`command` is missing" in record.message


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"mcpServers": {"a": }}', "", " \n", "null", "{}", '{"servers": {}}']
)
def test_e3_a_bad_file_is_an_error_in_the_log_and_an_empty_list(project, caplog, text):
    write(project / "mcp.json", text)

    assert MCPConfigLoader.load(None, project) == []
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert "mcp.json" in caplog.records[0].message


def test_e3_a_file_that_names_no_server_is_no_error(project, caplog):
    write(project / "mcp.json", {"mcpServers": {}})

    assert MCPConfigLoader.load(None, project) == []
    assert not caplog.records


def test_e3_no_file_is_no_error(project, caplog):
    assert MCPConfigLoader.load(None, project) == []
    assert not caplog.records


def test_e3_what_a_file_says_beyond_these_fields_is_not_lost(mcp_json, project):
    mcp_json(zoo=zoo(cwd="sub", excludeTools=["crash"]))
    [config] = MCPConfigLoader.load(None, project)
    server = config.server()

    assert server.cwd == project / "sub"
    assert server.filter.deny == ("crash",)


async def test_e4_a_client_connects_discovers_calls_and_closes():
    client = MCPClientWrapper(MCPServerConfig("zoo", **zoo()))
    before = client.is_connected
    await client.connect()
    during = client.is_connected
    tools = await client.discover_tools()
    answer = await client.call_tool("echo", {"text": "hi"})
    await client.close()

    assert (before, during, client.is_connected) == (False, True, False)
    assert [tool["name"] for tool in tools] == [*TOOLS]
    assert tools[0]["inputSchema"] == TOOLS["echo"].definition["inputSchema"]
    assert answer == "hi"


async def test_e4_a_client_reaches_a_server_by_sse():
    with served(toolbox().sse_app()) as url:
        client = MCPClientWrapper(MCPServerConfig("web", "sse", url=f"{url}/sse"))
        await client.connect()
        answer = await client.call_tool("add", {"a": 2, "b": 3})
        await client.close()

    assert answer == "5"


async def test_e4_a_client_that_cannot_connect_says_why():
    for config, error, words in (
        (MCPServerConfig("x", "stdio", "no-such-program"), Unavailable, "no-such-program"),
        (MCPServerConfig("x", "stdio"), ConfigError, "`x.command`"),
        (MCPServerConfig("x", "sse"), ConfigError, "`x.url`"),
    ):
        client = MCPClientWrapper(config)
        with pytest.raises(error, match=words):
            await client.connect()
        assert not client.is_connected
        with pytest.raises(Unavailable):
            await client.discover_tools()


async def test_e5_a_manager_fills_the_registry_and_empties_it_again(mcp_json, project):
    mcp_json(one=zoo(), two=zoo("good_legacy"))
    registry = ToolRegistry()
    manager = MCPManager(str(project))
    await manager.initialize(registry)
    connected = manager.connected_servers
    names = {tool.name for tool in registry.list()}
    await manager.shutdown()

    assert connected == ["one", "two"]
    assert names == {f"mcp_{server}_{tool}" for server in ("one", "two") for tool in TOOLS}
    assert manager.connected_servers == []
    assert registry.list() == ()


async def test_e5_without_configuration_there_is_nothing_to_do(manager):
    registry = ToolRegistry()
    await manager.initialize(registry)

    assert (manager.connected_servers, registry.list()) == ([], ())


async def test_e5_a_server_that_comes_later_brings_its_tools(manager, mcp_json, tmp_path):
    ready = tmp_path / "ready"
    script = f"while [ ! -e {ready} ]; do exit 1; done; exec {' '.join(zoo_line())}"
    mcp_json(late={"transport": "stdio", "command": "sh", "args": ["-c", script]})
    registry = ToolRegistry()
    await manager.initialize(registry)
    before = registry.get("mcp_late_echo")
    ready.touch()
    await until(lambda: registry.get("mcp_late_echo") is not None)

    assert before is None
    assert registry.call_tool("mcp_late_echo", {"text": "hi"}) == "hi"


def zoo_line():
    entry = zoo()
    return [entry["command"], *entry["args"]]


async def test_e6_an_engine_initializes_and_shuts_down_mcp(mcp_json, project):
    mcp_json(zoo=zoo())
    engine = AgentEngine(workspace_root=project)
    engine.registry.register(ToolDef("own", "", {"type": "object"}, lambda: "mine"))
    await engine.initialize_mcp()
    both = (
        engine.registry.call_tool("own", {}),
        engine.registry.call_tool("mcp_zoo_echo", {"text": "theirs"}),
    )
    await engine.shutdown_mcp()

    assert both == ("mine", "theirs")
    assert [tool.name for tool in engine.registry.list()] == ["own"]


async def test_e4_a_closed_client_says_that_it_is_closed():
    client = MCPClientWrapper(MCPServerConfig("zoo", **zoo()))
    await client.connect()
    await client.close()

    assert await client.call_tool("add", {"a": 1, "b": 2}) == "error: zoo: it is not connected"


def test_e6_an_engine_takes_a_configuration_and_a_registry(tmp_path):
    registry = ToolRegistry()
    engine = AgentEngine(SimpleNamespace(workspace_root=tmp_path), registry)

    assert (engine.workspace_root, engine.registry) == (tmp_path, registry)


@pytest.mark.parametrize("first", ["x", SimpleNamespace(workspace_root=".")])
def test_e6_an_engine_without_a_registry_is_refused_in_words(first):
    with pytest.raises(TypeError, match="expected a ToolRegistry, not "):
        AgentEngine(first)


def test_e6_a_configuration_must_have_a_workspace_root():
    with pytest.raises(AttributeError, match="workspace_root"):
        AgentEngine({"workspace_root": "."}, ToolRegistry())


async def test_e7_a_call_waits_inside_a_running_loop(manager, mcp_json):
    mcp_json(zoo=zoo())
    registry = ToolRegistry()
    await manager.initialize(registry)
    tool = registry.get("mcp_zoo_add")

    assert tool.func(a=2, b=3) == "5"
    assert (await tool.execute({"a": 2, "b": 3})).output == "5"


def test_e7_a_call_waits_outside_of_any_loop(mcp_json, project):
    mcp_json(zoo=zoo())
    registry = ToolRegistry()
    manager = MCPManager(project)
    asyncio.run(manager.initialize(registry))
    func = registry.get("mcp_zoo_add").func
    first = func(a=2, b=3)

    async def in_another_loop():
        return func(a=3, b=4), await manager.clients["zoo"].call_tool("add", {"a": 4, "b": 5})

    others = asyncio.run(in_another_loop())
    before = threading.active_count()
    with ThreadPoolExecutor(20) as pool:
        many = list(pool.map(lambda n: func(a=n, b=1), range(100)))
    after = threading.active_count()
    asyncio.run(manager.shutdown())

    assert (first, others) == ("5", ("7", "9"))
    assert many == [str(n + 1) for n in range(100)]
    assert after <= before


async def test_e8_e9_e10_names_descriptions_and_schemas(manager, mcp_json):
    mcp_json(**{"web-search": zoo(), "filesystem": zoo()})
    registry = ToolRegistry()
    await manager.initialize(registry)
    tool = registry.get("mcp_web_search_add")

    assert registry.get("mcp_filesystem_add") is not None
    assert tool.description == "[MCP:web-search] Adds two numbers"
    assert tool.input_schema == TOOLS["add"].definition["inputSchema"]


async def test_e11_a_result_is_cut_at_5000_characters(manager, mcp_json):
    mcp_json(zoo=zoo())
    registry = ToolRegistry()
    await manager.initialize(registry)
    tool = registry.get("mcp_zoo_big")
    short, long = (registry.call_tool("mcp_zoo_big", {"bytes": size}) for size in (5000, 6000))

    assert tool.max_result_chars == 5000
    assert short == "x" * 5000
    assert len(long) <= 5000
    assert "more characters" in long


# Feature: mcp-client-integration, Property 1: parsing keeps every field
@PROPERTY
@given(servers=st.dictionaries(WORD, GOOD, max_size=5))
def test_e12_property_1_parsing_keeps_every_field(project, servers):
    write(project / "mcp.json", {"mcpServers": servers})
    configs = MCPConfigLoader.load(None, project)

    assert [config.name for config in configs] == [*servers]
    for config in configs:
        assert fields(config) == fields(MCPServerConfig(config.name, **servers[config.name]))
        assert MCPServerConfig.of(config.name, config.server()) == config


# Feature: mcp-client-integration, Property 2: exactly the valid entries survive
@PROPERTY
@given(
    good=st.dictionaries(WORD, GOOD, max_size=4),
    bad=st.dictionaries(WORD, BAD, max_size=4),
    order=st.randoms(),
)
def test_e13_property_2_exactly_the_valid_entries_survive(project, good, bad, order):
    entries = [*{**bad, **good}.items()]
    order.shuffle(entries)
    write(project / "mcp.json", json.dumps({"mcpServers": dict(entries)}))

    assert {config.name for config in MCPConfigLoader.load(None, project)} == good.keys()


SCHEMA = st.dictionaries(IDENTIFIER, st.sampled_from(["string", "number", "boolean"])).map(
    lambda properties: {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
    }
)


# Feature: mcp-client-integration, Property 3: a tool is converted faithfully
@PROPERTY
@given(server=IDENTIFIER, name=IDENTIFIER, description=st.text(max_size=50), schema=SCHEMA)
def test_e14_property_3_a_tool_is_converted_faithfully(server, name, description, schema):
    plain = f"mcp_{server.replace('-', '_')}_{name}"
    assume(len(plain) <= MAX_LENGTH)
    definition = {"name": name, "description": description, "inputSchema": schema}
    offers = Offers(tools=(definition,))
    config = StdioServer(command="x")
    link = SimpleNamespace(name=server, config=config, report=config, session=None)
    registries = NameRegistries({server}, Naming.EXCELMANUS, {}, lasting=True)
    section = build_section(link, offers, registries, Vetting(Pins()), Policy(Settings()))
    [tool] = [tool_def(tool, ThreadedHub()) for tool in section.tools.values()]

    assert tool.name == plain
    assert description.rstrip() in tool.description
    assert tool.input_schema == schema
    assert tool.max_result_chars == 5000


# Feature: mcp-client-integration, Property 4: names forth and back
@PROPERTY
@given(
    tools=st.dictionaries(
        st.text(min_size=1, max_size=70), st.sets(st.text(max_size=70), max_size=5), max_size=4
    )
)
def test_e15_property_4_names_lead_back_to_server_and_tool(tools):
    back = {}
    books = NameRegistries(tools, Naming.EXCELMANUS, {}, lasting=True)
    for server, names in tools.items():
        exposed = books.tools.give(server, names)
        back.update({name: (server, tool) for tool, name in exposed.items()})

    assert sorted(back.values()) == sorted(
        (server, tool) for server, names in tools.items() for tool in names
    )
    assert all(len(name) <= MAX_LENGTH for name in back)


BLOCK = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, st.text()),
    st.just({"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}),
    st.just({"type": "resource_link", "uri": "file:///x", "name": "x"}),
)


# Feature: mcp-client-integration, Property 5: every text is in the result
@PROPERTY
@given(content=st.lists(BLOCK, max_size=6))
def test_e16_property_5_every_text_is_in_the_result(content):
    result = ToolResult(json.dumps({"content": content}).encode())

    assert all(block["text"] in result.text for block in content if block["type"] == "text")


@pytest.fixture(scope="module")
def web():
    with served(toolbox().sse_app()) as url:
        yield url


# Feature: mcp-client-integration, Property 6: M good of N gives M connected, with their tools
@PROPERTY
@given(servers=st.dictionaries(IDENTIFIER, st.booleans(), max_size=4))
def test_e17_property_6_the_good_ones_are_connected_with_all_their_tools(web, project, servers):
    paths = {True: "/sse", False: "/nowhere"}
    entries = {
        name: {"transport": "sse", "url": web + paths[good]} for name, good in servers.items()
    }
    write(project / "mcp.json", {"mcpServers": entries})
    trust(project)
    registry = ToolRegistry()
    manager = MCPManager(project)
    asyncio.run(manager.initialize(registry))
    connected = manager.connected_servers
    tools = registry.list()
    asyncio.run(manager.shutdown())

    assert connected == [name for name, good in servers.items() if good]
    assert len(tools) == 5 * len(connected)


async def test_e17_processes_that_fail_do_not_disturb_those_that_work(manager, mcp_json):
    mcp_json(
        a=zoo(),
        b=zoo("exit_at_start"),
        c={"transport": "stdio", "command": "no-such-program"},
        d=zoo("good_legacy"),
        e=zoo("list_error"),
    )
    registry = ToolRegistry()
    await manager.initialize(registry)

    assert manager.connected_servers == ["a", "d"]
    assert len(registry.list()) == 2 * len(TOOLS)


async def test_e18_a_failed_connection_is_an_error_in_the_log(manager, mcp_json, caplog):
    mcp_json(bad={"transport": "stdio", "command": "no-such-program"}, good=zoo())
    await manager.initialize(ToolRegistry())
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]

    assert len(errors) == 1
    assert "bad is not connected" in errors[0].message
    assert "no-such-program" in errors[0].message


async def test_e18_a_connection_that_takes_too_long_is_one_that_failed():
    client = MCPClientWrapper(MCPServerConfig("slow", **zoo("never_init")))
    server = client.config.server().replace(connect_timeout=0.5)
    client.config = MCPServerConfig.of("slow", server)
    with anyio.fail_after(PATIENCE), pytest.raises(Unavailable):
        await client.connect()


async def test_e18_a_tool_with_an_invalid_schema_is_skipped_with_a_warning(
    manager, mcp_json, caplog
):
    mcp_json(zoo=zoo("tools_bad_schema"))
    registry = ToolRegistry()
    await manager.initialize(registry)

    assert {f"mcp_zoo_{name}" for name in TOOLS} <= {tool.name for tool in registry.list()}
    assert any("is skipped" in record.message for record in caplog.records)


async def test_e18_a_tool_that_clashes_with_a_built_in_one_is_skipped_with_a_warning(
    manager, mcp_json, caplog
):
    mcp_json(zoo=zoo())
    own = ToolDef("mcp_zoo_echo", "Ours", {"type": "object"}, lambda: "ours")
    registry = ToolRegistry([own])
    await manager.initialize(registry)

    assert registry.get("mcp_zoo_echo") is own
    assert registry.call_tool("mcp_zoo_add", {"a": 1, "b": 2}) == "3"
    assert "the tool 'mcp_zoo_echo' is skipped" in caplog.text


async def test_e18_a_call_that_takes_too_long_answers_with_words(manager, mcp_json):
    mcp_json(zoo=zoo(timeout=1))
    registry = ToolRegistry()
    await manager.initialize(registry)

    answer = registry.call_tool("mcp_zoo_sleep", {"seconds": 60})

    assert answer.startswith("error: zoo: no answer to 'tools/call' within")


async def test_e18_a_failing_tool_raises_its_words(client, manager, mcp_json):
    mcp_json(zoo=zoo())
    registry = ToolRegistry()
    await manager.initialize(registry)

    with pytest.raises(ToolExecutionError, match="the disk is full"):
        await client.call_tool("fail", {"message": "the disk is full"})
    with pytest.raises(ToolExecutionError, match="the disk is full"):
        registry.call_tool("mcp_zoo_fail", {"message": "the disk is full"})
    with pytest.raises(ToolExecutionError, match="/a is not"):
        registry.call_tool("mcp_zoo_add", {"a": "two", "b": 1})
    with pytest.raises(ToolExecutionError, match="no tool named 'nothing'"):
        await client.call_tool("nothing", {})
    with pytest.raises(UnknownName):
        registry.call_tool("nothing", {})


async def test_e18_a_server_lost_in_the_middle_of_a_call_answers_with_words(manager, mcp_json):
    mcp_json(zoo=zoo("exit_mid_call"))
    registry = ToolRegistry()
    await manager.initialize(registry)

    assert "the connection was lost" in registry.call_tool("mcp_zoo_fault", {})


async def test_e18_a_server_that_is_gone_for_good_answers_with_words(manager, mcp_json, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    script = f"[ -e {gate} ] && exec {' '.join(zoo_line())}"
    mcp_json(zoo={"transport": "stdio", "command": "sh", "args": ["-c", script]})
    registry = ToolRegistry()
    await manager.initialize(registry)
    pid = int(json.loads(registry.call_tool("mcp_zoo_pid", {})))
    gate.unlink()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not registry.list())

    assert registry.call_tool("mcp_zoo_echo", {"text": "hi"}).startswith("error: zoo: ")


async def test_e18_shutting_down_ends_every_process(mcp_json, project):
    before = descendants(os.getpid())
    mcp_json(one=zoo(), two=zoo("ignores_eof"))
    manager = MCPManager(project)
    await manager.initialize(ToolRegistry())
    during = descendants(os.getpid())
    await manager.shutdown()

    assert len(during - before) >= 2
    assert descendants(os.getpid()) <= before


def test_e19_configuration_manager_and_each_property_are_tested():
    tests = {name: test for name, test in globals().items() if name.startswith("test_e")}
    rows = {name.split("_")[1] for name in tests}
    properties = [
        test for name, test in tests.items() if re.match(r"test_e1[2-7]_property_[1-6]_", name)
    ]

    assert {"e1", "e2", "e3", "e4", "e5"} <= rows
    assert len(properties) == 6
    assert all(is_hypothesis_test(test) for test in properties)
    assert PROPERTY.max_examples >= 100
