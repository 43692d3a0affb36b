"""agent-core (seed C): the client role, row by row, against real servers.

The server role (C2-C4, C23, C24) is in `test_c_server_role.py`, the Environment (C1, C17, C19) in
`tests/env`. How a login goes (C7) is in `tests/oauth`, the commands in
`tests/cli/trust/test_login.py`; where secrets for `${auth:NAME}` are kept (C8) in `tests/trust`.
"""

import sys
from pathlib import Path
from shutil import which

import anyio
import mcp_types as types
import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp.server.lowlevel import Server

from multitap import (
    BaseEnvironment,
    CallContext,
    Handlers,
    HttpServer,
    LocalServer,
    McpManager,
    Settings,
    ToolDef,
    ToolFilter,
    ToolRegistry,
    open_hub,
)
from multitap.config import OAuth, Search, Serve, Source, agent_core, kode, load
from multitap.env.environment import McpClientLoadResult
from multitap.env.server import EnvMCPServer
from multitap.errors import ConfigError, HubClosed, Unavailable, UntrustedWarning
from multitap.oauth.account import Account
from multitap.oauth.storage import LoginStorage
from multitap.tasks import Tasks
from multitap.tools import HubTools, ToolContext
from multitap.trust.projects import load_trusted
from multitap.trust.stored_logins import TokenStore
from tests.oauth.provider import Person, provided
from tests.seeds.files import local, program, write, zoo
from tests.trust.keyrings import no_keyring
from tests.trusting import trust
from tests.waiting import PATIENCE, until
from tests.wire.sdk_web import served, toolbox
from tests.zoo.modes import command
from tests.zoo.tools import TOOLS

EXAMPLES = Path(__file__).parents[2] / "examples" / "mcpservers"


@pytest.fixture
def base(home):
    return home / ".config" / "tong_work" / "agent-core"


@pytest.fixture
def environment(base):
    return base / "environments" / "dev"


@pytest.fixture
def loaded(where):
    return lambda: load(agent_core(where, "dev"))


@pytest.fixture
async def manager():
    manager = McpManager()
    yield manager
    await manager.close()


def script(folder, *argv):
    """A folder with an entry script that becomes another program."""
    arguments = [sys.executable, *argv[1:]] if argv else [sys.executable, "-c", "exit(3)"]
    write(folder / "server.py", f"import os\nos.execv({arguments[0]!r}, {arguments!r})\n")


def tool_names(manager):
    return {tool.name for tool in manager.get_tools()}


def test_c5_c21_the_server_role_is_read_in_both_spellings(environment, loaded):
    role = '{"enabled": true, "transport": "http", "http": {"port": 3100, "host": "127.0.0.1"}}'
    for text in (f'{{"mcpServer": {role}}}', f'{{"mcp": {{"server": {role}, "clients": {{}}}}}}'):
        write(environment / "config.jsonc", text)
        serve = loaded().settings.serve

        assert (serve.enabled, serve.transport, serve.port) == (True, "http", 3100)


async def test_c6_a_local_client_speaks_stdio(manager):
    await manager.connect_client("zoo", local(environment={"GREETING": "hello"}))
    [tool] = [tool for tool in manager.get_tools() if tool.name == "zoo_env"]

    assert "hello" in (await tool.execute({"name": "GREETING"})).output


@pytest.mark.parametrize(("app", "path"), [("streamable_http_app", "/mcp"), ("sse_app", "/sse")])
async def test_c6_a_remote_client_speaks_streamable_http_else_sse(manager, app, path):
    with served(getattr(toolbox(), app)()) as url:
        await manager.connect_client("web", {"type": "remote", "url": url + path})
        [add] = [tool for tool in manager.get_tools() if tool.name == "web_add"]
        result = await add.execute({"a": 2, "b": 3})
        await manager.disconnect_client("web")

    assert result.output == "5"


def test_c7_the_three_ways_to_log_in_are_told_apart(environment, loaded):
    remote = {"type": "remote", "url": "https://example.com/mcp"}
    registered = {"clientId": "a", "clientSecret": "b", "scope": "repo read:user"}
    clients = {
        "found": {**remote, "oauth": {}},
        "registered": {**remote, "oauth": registered},
        "never": {**remote, "oauth": False},
    }
    write(environment / "config.jsonc", {"mcp": clients})
    servers = loaded().settings.servers

    assert servers["found"].oauth == OAuth()
    assert servers["registered"].oauth == OAuth(
        client_id="a", client_secret="b", scope="repo read:user"
    )
    assert servers["never"].oauth is False


async def test_c7_a_manager_uses_the_login_that_a_person_made(manager, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with no_keyring():
        async with provided() as provider:
            remote = {"type": "remote", "url": provider.url, "oauth": {}}
            with pytest.raises(Unavailable) as caught:
                await manager.connect_client("guarded", remote)
            assert caught.value.hint == "run `multitap login guarded`"

            async with Tasks() as tasks:
                config = HttpServer(url=provider.url)
                account = Account(
                    "guarded", config, storage=LoginStorage(TokenStore()), tasks=tasks
                )
                await account.log_in(Person().login, "http://127.0.0.1:8414/callback", "")
            await manager.connect_client("guarded", remote)
            assert tool_names(manager) == {"guarded_whoami"}

            with pytest.raises(Unavailable):
                await manager.connect_client("never", {**remote, "oauth": False})
            await manager.close()


async def test_c8_a_variable_of_the_environment_is_put_in_when_connecting(manager, monkeypatch):
    monkeypatch.setenv("ZOO_GREETING", "hello")
    greeting = {"GREETING": "${env:ZOO_GREETING}, ${env:NOBODY:-world}"}
    await manager.connect_client("zoo", local(environment=greeting))
    [tool] = [tool for tool in manager.get_tools() if tool.name == "zoo_env"]

    assert "hello, world" in (await tool.execute({"name": "GREETING"})).output


@pytest.mark.parametrize("name", ["env:NOT_SET", "auth:context7"])
async def test_c8_a_value_that_is_missing_is_named(manager, name):
    with pytest.raises(Unavailable, match=f"`{name.partition(':')[2]}` is not set"):
        await manager.connect_client("zoo", local(environment={"KEY": f"${{{name}}}"}))

    assert not manager.has_client("zoo")


def test_c9_c22_the_environments_file_comes_after_the_global_one(base, environment, loaded):
    write(base / "tong_work.jsonc", {"mcp": {"clients": {"a": local(), "b": local()}}})
    write(environment / "config.jsonc", {"mcp": {"clients": {"b": local("good_legacy")}}})
    script(environment / "mcpservers" / "c")
    found = loaded()

    assert found.settings.servers.keys() == {"a", "b", "c"}
    assert "good_legacy" in found.settings.servers["b"].args
    assert [one.source.path.name for one in found.sources] == [
        "mcpservers",
        "tong_work.jsonc",
        "config.jsonc",
    ]


async def test_c10_a_folder_with_an_entry_script_is_a_server(environment, loaded, manager):
    script(environment / "mcpservers" / "zoo", *command("good"))
    write(environment / "mcpservers" / "notes" / "README.md", "no server here")
    result = await manager.load_clients(loaded())

    assert (result.loaded, result.failed) == (1, ())
    assert tool_names(manager) == {f"zoo_{name}" for name in TOOLS}


def test_c11_explicit_configuration_wins_over_the_folders_and_that_over_the_default(
    environment, loaded
):
    for name in ("plain", "amended", "explicit", "off"):
        script(environment / "mcpservers" / name)
    own = {"timeout": 60000, "environment": {"ALLOW_WRITE": "true"}}
    write(environment / "mcpservers" / "amended" / "config.jsonc", own)
    write(environment / "mcpservers" / "explicit" / "config.jsonc", own)
    write(environment / "mcpservers" / "off" / "config.jsonc", {"enabled": False})
    write(environment / "config.jsonc", {"mcp": {"explicit": local(timeout=5000)}})
    servers = loaded().settings.servers

    assert {name: server.timeout for name, server in servers.items()} == {
        "plain": 30,
        "amended": 60,
        "explicit": 5,
        "off": 30,
    }
    assert servers["amended"].env == {"ALLOW_WRITE": "true"}
    assert servers["amended"].args == (str(environment / "mcpservers" / "amended" / "server.py"),)
    assert servers["explicit"].env == {}
    assert not servers["off"].enabled


async def test_c12_loading_says_how_many_loaded_and_which_failed(environment, loaded, manager):
    script(environment / "mcpservers" / "broken")
    script(environment / "mcpservers" / "scanned", *command("good"))
    clients = {
        "explicit": local(),
        "missing": {"type": "local", "command": ["no-such-program"]},
        "typo": {"type": "locla", "command": ["x"]},
        "off": local(enabled=False),
    }
    write(environment / "config.jsonc", {"mcp": clients})
    result = await manager.load_clients(loaded())

    assert result.loaded == 2
    assert result.failed == ("broken", "missing", "typo")
    assert {name.partition("_")[0] for name in tool_names(manager)} == {"explicit", "scanned"}
    assert not manager.has_client("off")


def nameless():
    """A server whose tool says nothing of itself."""

    async def listed(_context, _params):
        tool = types.Tool(name="mystery", input_schema={"type": "object"})
        return types.ListToolsResult(tools=[tool])

    async def called(_context, _params):
        return types.CallToolResult(content=[types.TextContent(type="text", text="done")])

    return Server("nameless", on_list_tools=listed, on_call_tool=called)


def calculator():
    server = MCPServer("calculator")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    return server


async def test_c13_a_tool_has_name_description_parameters_and_execute(manager):
    await manager.connect_client("zoo", local())
    await manager.connect_client("odd", LocalServer(server=nameless()))
    tools = {tool.name: tool for tool in manager.get_tools()}
    good = await tools["zoo_add"].execute({"a": 1, "b": 2})
    bad = await tools["zoo_fail"].execute({"message": "no luck"})

    assert tools["zoo_add"].description == "Adds two numbers"
    assert tools["zoo_add"].parameters == TOOLS["add"].definition["inputSchema"]
    assert tools["odd_mystery"].description == "MCP tool: mystery"
    assert (good.success, good.output, good.error) == (True, "3", None)
    assert (bad.success, bad.error) == (False, "no luck")


async def test_c13_execute_never_raises(manager):
    await manager.connect_client("zoo", local("exit_mid_call", timeout=2000))
    tools = {tool.name: tool for tool in manager.get_tools()}
    lost = await tools["zoo_fault"].execute({})
    await manager.disconnect_client("zoo")
    gone = await tools["zoo_add"].execute({"a": 1, "b": 2})

    assert not lost.success
    assert "the connection was lost" in lost.error
    assert not gone.success
    assert "connect one first" in gone.error


async def test_c14_a_call_carries_session_and_agent():
    heard = []

    async def elicit(origin, _params):
        heard.append((origin.call.session_id, origin.call.agent_id))
        return types.ElicitResult(action="decline")

    settings = Settings(servers={"zoo": program()})
    async with open_hub(settings, handlers=Handlers(elicit=elicit)) as hub:
        await hub.settled()
        ask = HubTools(hub)["zoo_ask"]
        await ask.execute({}, ToolContext(session_id="s1", agent_id="a1"))

    assert heard == [("s1", "a1")]


async def test_c14_the_session_reaches_the_call_log_and_watchers():
    settings = Settings(servers={"zoo": program()})
    async with open_hub(settings) as hub:
        await hub.settled()
        context = ToolContext(session_id="s1", agent_id="a1")
        with hub.events.subscribe() as events, anyio.fail_after(PATIENCE):
            await hub.tools.execute("zoo_echo", {"text": "hi"}, context)
            done = await anext(events)
        (call,) = (await hub.store.calls()).records
        logged = (await hub.store.logs()).records[0]

    assert [(one.session, one.agent) for one in (done, call, logged)] == [("s1", "a1")] * 3


async def test_c15_arguments_are_checked_by_the_schema_before_they_leave(manager):
    await manager.connect_client("zoo", local())
    tools = {tool.name: tool for tool in manager.get_tools()}
    wrong = await tools["zoo_add"].execute({"a": "two", "b": 3})
    missing = await tools["zoo_add"].execute({"a": 2})

    assert not wrong.success
    assert "/a" in wrong.error
    assert '"b" is a required property' in missing.error


async def test_c16_the_manager_starts_and_stops_a_server(manager, tmp_path):
    class Office(BaseEnvironment):
        def base_settings(self):
            return Settings(state_dir=tmp_path)

    role = {"transport": "http", "http": {"port": 0, "host": "127.0.0.1"}}
    async with Office() as office:
        front = await manager.start_server(role, office)
        async with Client(front.url) as client:
            answer = await client.call_tool("env/get_description", {})
        await manager.stop_server()

        assert answer.structured_content["id"] == "Office"
        assert front.closed.is_set()
        with pytest.raises(ConfigError, match=r"mcpServer\.transport"):
            await manager.start_server({"transport": "pigeon"}, office)


async def test_c12_a_client_that_is_no_table_has_failed_and_not_the_others(tmp_path):
    class Office(BaseEnvironment):
        def base_settings(self):
            return Settings(state_dir=tmp_path)

        def mcp_client_config(self):
            return {"good": local(), "none": None, "five": 5, "what": {"type": "x"}}

    async with Office() as office:
        result = await office.load_mcp_clients()

    assert result == McpClientLoadResult(1, ("five", "none", "what"))


async def test_c12_a_folder_whose_file_is_broken_has_failed(tmp_path):
    script(tmp_path / "mcpservers" / "bad", *command("good"))
    write(tmp_path / "mcpservers" / "bad" / "config.jsonc", '{"enabled": tru')

    class Office(BaseEnvironment):
        def base_settings(self):
            return Settings(state_dir=tmp_path)

        def mcpservers_directory(self):
            return tmp_path / "mcpservers"

    async with Office() as office:
        assert await office.load_mcp_clients() == McpClientLoadResult(0, ("bad",))


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("get_mcp_client_config", "mcp_client_config"),
        ("get_mcpservers_directory", "mcpservers_directory"),
        ("get_mcp_server_config", "mcp_server_config"),
        ("getMcpClientConfig", "mcp_client_config"),
        ("createMcpServerOptions", "create_mcp_server_options"),
        ("getEnvId", "get_env_id"),
    ],
)
def test_c17_hooks_that_nobody_calls_are_refused(name, hook):
    with pytest.raises(TypeError, match=f"name it `{hook}`"):
        type("Office", (BaseEnvironment,), {name: lambda _: None})


@pytest.mark.parametrize("world", [None, 5, object(), BaseEnvironment])
def test_c16_what_is_no_environment_is_not_served(world):
    with pytest.raises(ConfigError, match="expected an environment, not "):
        EnvMCPServer(world)


def test_c16_callbacks_in_a_dict_are_refused_in_words():
    with pytest.raises(ConfigError, match="the methods of an object, not a dict"):
        EnvMCPServer({"describe": None})


async def test_c16_the_server_is_stopped_in_any_order_by_any_task(manager, tmp_path):
    role = {"transport": "http", "http": {"port": 0, "host": "127.0.0.1"}}
    settings = Settings(state_dir=tmp_path)
    environment = BaseEnvironment()
    front = await manager.start_server(role, environment)
    async with open_hub(settings):
        await manager.stop_server()
    again = await manager.start_server(role, environment)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(manager.stop_server)
        tasks.start_soon(manager.stop_server)

    assert front.closed.is_set()
    assert again.closed.is_set()


EVERYWHERE = {"transport": "http", "http": {"port": 0, "host": "0.0.0.0"}}


def everywhere(**more):
    return Serve(transport="http", host="0.0.0.0", port=0, **more)


async def described(front):
    """What an environment says to a client that knows the machine by another address."""
    port = front.url.rpartition(":")[2]
    async with Client(f"http://127.0.0.2:{port}") as client:
        return (await client.call_tool("env/get_description", {})).structured_content["id"]


@pytest.mark.parametrize(
    ("role", "more"),
    [
        pytest.param(EVERYWHERE, {"insecure": True}, id="argument"),
        pytest.param({**EVERYWHERE, "insecure": True}, {}, id="key"),
        pytest.param(everywhere(insecure=True), {}, id="settings"),
    ],
)
async def test_c5_the_manager_serves_everybody_if_that_is_allowed(manager, tmp_path, role, more):
    class Office(BaseEnvironment):
        def base_settings(self):
            return Settings(state_dir=tmp_path)

    async with Office() as office:
        with pytest.raises(ConfigError, match="reachable from other machines"):
            await manager.start_server(EVERYWHERE, office)
        front = await manager.start_server(role, office, **more)
        answer = await described(front)
        await manager.stop_server()

        assert answer == "Office"


@pytest.mark.parametrize("allowed", ["argument", "settings"])
async def test_c5_an_environment_serves_everybody_if_that_is_allowed(tmp_path, allowed):
    class Office(BaseEnvironment):
        def base_settings(self):
            return Settings(state_dir=tmp_path, serve=everywhere(insecure=allowed == "settings"))

    async with Office() as office:
        if allowed == "argument":
            with pytest.raises(ConfigError, match="reachable from other machines"):
                await office.start_mcp_server()
        front = await office.start_mcp_server(insecure=allowed == "argument")

        assert await described(front) == "Office"


async def test_c16_clients_are_connected_and_disconnected_by_name(manager):
    await manager.connect_client("one", local())
    await manager.connect_client("two", local())
    both = tool_names(manager)
    await manager.disconnect_client("one")

    assert both == {f"{name}_{tool}" for name in ("one", "two") for tool in TOOLS}
    assert (manager.has_client("one"), manager.has_client("two")) == (False, True)
    assert tool_names(manager) == {f"two_{tool}" for tool in TOOLS}


async def test_c16_disconnecting_a_prefix_of_another_name_leaves_the_other(manager):
    await manager.connect_client("file", local())
    await manager.connect_client("file_system", local())
    await manager.disconnect_client("file")

    assert len(manager.get_tools()) == len(TOOLS)


async def test_c16_a_client_of_the_same_name_takes_the_others_place(manager):
    await manager.connect_client("zoo", LocalServer(server=nameless()))
    await manager.connect_client("zoo", local())

    assert tool_names(manager) == {f"zoo_{tool}" for tool in TOOLS}


async def test_c16_the_description_has_a_line_for_each_tool(manager):
    await manager.connect_client("odd", LocalServer(server=nameless()))
    await manager.connect_client("calc", LocalServer(server=calculator()))

    assert manager.get_tools_description() == (
        "  - calc_add: Adds two numbers.\n  - odd_mystery: MCP tool: mystery"
    )


async def test_c16_a_client_that_fails_says_why_and_is_not_there(manager):
    with pytest.raises(Unavailable, match="exited with code 1") as caught:
        await manager.connect_client("bad", local("exit_at_start"))
    with pytest.raises(ConfigError, match=r"`bad\.type`"):
        await manager.connect_client("bad", {"type": "neither"})
    with pytest.raises(Unavailable, match="disabled"):
        await manager.connect_client("bad", local(enabled=False))

    assert caught.value.failure.exit_code == 1
    assert not manager.has_client("bad")
    assert manager.get_tools() == []


async def test_c16_clients_that_connect_at_the_same_time_do_not_wait_for_each_other(manager):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(manager.connect_client, "slow", local("never_init"))
        with anyio.fail_after(PATIENCE):
            await manager.connect_client("quick", local())
        tasks.cancel_scope.cancel()

    assert (manager.has_client("slow"), manager.has_client("quick")) == (False, True)


async def test_c16_a_connection_under_way_can_be_called_off(manager):
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:

            async def connect():
                with pytest.raises((Unavailable, HubClosed)):
                    await manager.connect_client("slow", local("never_init"))

            tasks.start_soon(connect)
            await until(lambda: manager.has_client("slow"))
            await manager.disconnect_client("slow")

    assert manager.get_tools() == []


async def test_c18_built_in_and_mcp_tools_are_in_one_registry(manager, caplog):
    await manager.connect_client("zoo", local())
    registry = ToolRegistry(
        [
            ToolDef("bash", "Runs a command", {"type": "object"}, lambda: "ran"),
            ToolDef("zoo_add", "Ours", {"type": "object"}, lambda: "ours"),
        ]
    )
    registry.attach({tool.name: tool for tool in manager.get_tools()})

    assert {tool.name for tool in registry.list()} == {"bash", *tool_names(manager)}
    assert (await registry.execute("bash", {})).output == "ran"
    assert (await registry.execute("zoo_add", {})).output == "ours"
    assert (await registry.execute("zoo_echo", {"text": "hi"})).output == "hi"
    assert [record.message for record in caplog.records if "skipped" in record.message] == [
        "the tool 'zoo_add' is skipped: another one has that name"
    ]


def test_c20_enabled_alone_switches_an_entry_of_a_lower_layer(base, environment, loaded):
    write(
        base / "tong_work.jsonc",
        {"mcp": {"clients": {"a": local(), "b": local(enabled=False)}}},
    )
    write(
        environment / "config.jsonc",
        {"mcp": {"clients": {"a": {"enabled": False}, "b": {"enabled": True}}}},
    )
    servers = loaded().settings.servers

    assert {name: server.enabled for name, server in servers.items()} == {"a": False, "b": True}


async def test_c25_tools_are_switched_by_prefix():
    settings = Settings(
        servers={name: program() for name in ("files", "todo")},
        agents={"worker": ToolFilter(allow=("todo_*",)), "careful": ToolFilter(deny=("files_*",))},
    )
    async with open_hub(settings) as hub:
        await hub.settled()
        for agent in ("worker", "careful"):
            shown = hub.tools.narrowed(hub.settings.agents[agent])
            assert {tool.server for tool in shown} == {"todo"}
            refused = await HubTools(hub)["files_echo"].execute(
                {"text": "hi"}, CallContext(agent_id=agent)
            )
            assert not refused.success


async def test_c26_the_example_servers_run(manager):
    needs = {"words": None, "dice": "node"}
    result = await manager.load_clients(load(Search((Source(path=EXAMPLES, folder=True),))))

    assert result.loaded == sum(1 for need in needs.values() if need is None or which(need))


async def test_an_untrusted_project_is_a_warning_and_loads_once_it_is_trusted(
    project, where, monkeypatch
):
    monkeypatch.chdir(project)
    write(project / ".kode.json", {"mcpServers": {"zoo": zoo()}})
    manager = McpManager()
    with pytest.warns(UntrustedWarning, match="1 server of .* `multitap trust`") as caught:
        before = await manager.load_clients(load_trusted(kode(where)))
    trust(project)
    after = await manager.load_clients(load_trusted(kode(where)))
    await manager.close()

    assert (before.loaded, after.loaded, after.failed) == (0, 1, ())
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]
