"""kode (seed B): every scenario as a row, against real processes and sockets.

All rows are here. `tests/upstream/test_backoff.py` has more on the pauses of B12.
"""

import os
import signal
import sys
from contextlib import asynccontextmanager
from random import Random

import anyio
import pytest

from multitap import CallContext, ToolDef, ToolRegistry, open_hub
from multitap.config import HttpServer, StdioServer, ToolFilter, kode, load
from multitap.errors import NotAllowed
from multitap.events import FailureCode, LinkChanged, LinkState, Phase
from multitap.names import Naming
from multitap.tools import HubTools
from multitap.trust.projects import load_trusted
from multitap.upstream.backoff import Restarts
from tests.processes import descendants
from tests.seeds.files import write, zoo
from tests.trusting import trust
from tests.waiting import PATIENCE
from tests.wire.sdk_web import served, toolbox
from tests.zoo.ledger import Ledger
from tests.zoo.modes import HERE
from tests.zoo.tools import TOOLS


@pytest.fixture
def kode_hub(where, project):
    """A hub of what `./.kode.json` says, or the user's own, all servers settled."""

    @asynccontextmanager
    async def make(changes=None, *, is_own=False, **servers):
        folder = where.home if is_own else project
        write(folder / ".kode.json", {"mcpServers": servers})
        trust(project)
        settings = load_trusted(kode(where)).settings
        async with open_hub(settings.replace(**(changes or {}))) as hub:
            with anyio.fail_after(PATIENCE):
                await hub.settled()
            yield hub

    return make


async def change(hub, state, provoke):
    """The next change to a state, after something was done to provoke it."""
    with hub.events.subscribe() as events, anyio.fail_after(PATIENCE):
        await provoke()
        while True:
            event = await anext(events)
            if isinstance(event, LinkChanged) and event.state is state:
                return event


def killing(hub, number):
    async def kill():
        os.kill(hub.snapshot().server("zoo").pid, number)

    return kill


async def test_b1_stdio_starts_the_command_and_speaks_json_rpc_over_its_pipes(kode_hub, tmp_path):
    ledger = Ledger(tmp_path)
    async with kode_hub(zoo=zoo("good_legacy", env=ledger.env)) as hub:
        pid = hub.snapshot().server("zoo").pid

        assert ledger.pids == [pid]
        assert {"initialize", "notifications/initialized"} <= {*ledger.methods}


async def test_b2_sse_connects_to_the_url_and_hears_events(kode_hub):
    with served(toolbox().sse_app()) as url:
        async with kode_hub(web={"transport": "sse", "url": f"{url}/sse"}) as hub:
            result = await hub.call("web:add", {"a": 2, "b": 3})

            assert hub.snapshot().server("web").transport == "sse"
            assert result.text == "5"


@pytest.mark.parametrize(
    ("entry", "code", "words"),
    [
        pytest.param(
            {"command": "no-such-program", "args": []},
            FailureCode.MISSING_PROGRAM,
            "no-such-program",
            id="missing program",
        ),
        pytest.param(
            zoo("exit_code_3_with_traceback"), FailureCode.CRASH, "code 3", id="exit at start"
        ),
        pytest.param(
            {"transport": "sse", "url": "http://127.0.0.1:9/sse"},
            FailureCode.UNREACHABLE,
            "127.0.0.1:9",
            id="nobody there",
        ),
    ],
)
async def test_b3_a_failed_connection_says_why(kode_hub, entry, code, words):
    async with kode_hub(bad=entry) as hub:
        failure = hub.snapshot().server("bad").failure

        assert hub.snapshot().server("bad").state is LinkState.ERROR
        assert failure.code is code
        assert words in failure.message + failure.stderr
        assert failure.hint


async def test_b4_tools_are_listed_after_connecting(kode_hub, tmp_path):
    ledger = Ledger(tmp_path)
    async with kode_hub(zoo=zoo("paged", env=ledger.env)) as hub:
        assert ledger.methods.count("tools/list") > 1
        assert {tool.raw_name for tool in hub.catalog.tools.values()} == TOOLS.keys()


async def test_b5_a_tool_has_its_name_description_and_schema(kode_hub):
    async with kode_hub(zoo=zoo()) as hub:
        tool = hub.catalog.tools["zoo:add"]

        assert (tool.raw_name, tool.description) == ("add", "Adds two numbers")
        assert tool.input_schema == TOOLS["add"].definition["inputSchema"]


@pytest.mark.parametrize("mode", ["list_error", "list_wrong_shape", "crash_on_list"])
async def test_b6_a_server_that_cannot_list_is_in_error_and_offers_nothing(kode_hub, mode):
    async with kode_hub(bad=zoo(mode), good=zoo()) as hub:
        bad = hub.snapshot().server("bad")

        assert (bad.state, bad.failure.phase) == (LinkState.ERROR, Phase.LIST)
        assert {tool.server for tool in hub.tools} == {"good"}


async def test_b7_a_call_passes_name_and_arguments_and_returns_the_result(kode_hub, tmp_path):
    ledger = Ledger(tmp_path)
    async with kode_hub(zoo=zoo(env=ledger.env)) as hub:
        result = await hub.call("zoo:echo", {"text": "hello"})

        assert (result.success, result.text) == (True, "hello")
        assert ledger.calls == ["echo"]


async def test_b8_a_failing_tool_answers_with_the_servers_details(kode_hub):
    async with kode_hub(zoo=zoo()) as hub:
        result = await hub.call("zoo:fail", {"message": "the disk is full"})

        assert (result.success, result.error) == (False, "the disk is full")


async def test_b9_a_long_call_blocks_nothing_else(kode_hub):
    async with kode_hub(zoo=zoo(), other=zoo()) as hub, anyio.create_task_group() as tasks:
        tasks.start_soon(hub.call, "zoo:sleep", {"seconds": 60})
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(PATIENCE):
            same = await hub.call("zoo:echo", {"text": "same server"})
            other = await hub.call("other:echo", {"text": "other server"})
        in_flight = hub.snapshot().server("zoo").in_flight
        tasks.cancel_scope.cancel()

    assert (same.text, other.text, in_flight) == ("same server", "other server", 1)


async def test_b10_configured_servers_connect_at_start(kode_hub):
    async with kode_hub(one=zoo(), two=zoo("good_legacy"), three=zoo("good_modern")) as hub:
        assert {server.state for server in hub.snapshot().servers} == {LinkState.CONNECTED}


async def test_b11_a_server_that_does_not_answer_a_health_check_is_disconnected(kode_hub):
    async with kode_hub({"health_interval": 0.3}, zoo=zoo("deaf_idle", "--once")) as hub:
        lost = await change(hub, LinkState.DISCONNECTED, lambda: hub.call("zoo:fault"))

        assert lost.failure.code is FailureCode.HANG


async def test_b11_a_stopped_process_is_noticed(kode_hub):
    async with kode_hub(zoo=zoo()) as hub:
        lost = await change(hub, LinkState.DISCONNECTED, killing(hub, signal.SIGSTOP))

        assert lost.failure.code is FailureCode.STOPPED


async def test_b12_a_lost_server_comes_back_by_itself(kode_hub):
    async with kode_hub(zoo=zoo()) as hub:
        before = hub.snapshot().server("zoo").pid
        await change(hub, LinkState.CONNECTED, killing(hub, signal.SIGKILL))

        assert hub.snapshot().server("zoo").pid != before
        assert (await hub.call("zoo:echo", {"text": "back"})).text == "back"


class Unlucky(Random):
    def uniform(self, _low, high):
        return high


def test_b12_the_pause_grows_exponentially():
    restarts = Restarts(Unlucky())
    pauses = []
    for number in range(8):
        restarts.on_started(number * 1000)
        pauses.append(restarts.on_lost(number * 1000, healthy_for=0))

    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60]


async def test_b13_closing_ends_every_process_and_frees_everything(kode_hub):
    before = descendants(os.getpid())
    async with kode_hub(polite=zoo(), family=zoo("daemon_child"), deaf=zoo("ignores_eof")) as hub:
        await hub.call("polite:spawn_child")
        pids = {server.pid for server in hub.snapshot().servers}
        assert pids <= descendants(os.getpid())

    assert descendants(os.getpid()) <= before


TIDY = """
import signal, sys
sys.path.insert(0, {root!r})
from tests.zoo.faults.lifecycle import IgnoresEof

class Tidy(IgnoresEof, mode="tidy"):
    def start(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.tidy_up)

    def tidy_up(self, number, _frame):
        self.record("signals", signal.Signals(number).name)
        self.exit(0)

Tidy({{}}).main()
"""


async def test_b13_a_process_that_does_not_leave_by_itself_may_tidy_up_at_sigterm(
    kode_hub, project, tmp_path
):
    script = write(project / "tidy.py", TIDY.format(root=str(HERE.parents[1])))
    ledger = Ledger(tmp_path)
    entry = {"command": sys.executable, "args": [str(script)], "env": ledger.env}
    async with kode_hub(tidy=entry) as hub:
        assert hub.snapshot().server("tidy").state is LinkState.CONNECTED

    assert (tmp_path / "signals").read_text() == "SIGTERM\n"


async def test_b14_discovered_tools_are_registered_with_the_servers_name_in_front(kode_hub):
    registry = ToolRegistry()
    async with kode_hub(is_own=True, zoo=zoo()) as hub:  # a project's new tools wait for a review
        registry.attach(HubTools(hub))
        known = {tool.name for tool in registry.list()}
        with hub.events.subscribe() as events, anyio.fail_after(PATIENCE):
            added = (await hub.call("zoo:change_tools")).text
            while registry.get(f"zoo:{added}") is None:
                await anext(events)

        assert known == {f"zoo:{name}" for name in TOOLS}
        assert (await registry.execute("zoo:echo", {"text": "hi"})).output == "hi"


async def test_b15_names_are_server_colon_tool_and_never_clash(kode_hub):
    async with kode_hub(**{"a": zoo(), "b": zoo(), "a:b": zoo()}) as hub:
        names = [tool.name for tool in hub.tools]

        assert hub.settings.naming is Naming.KODE
        assert {"a:echo", "b:echo"} <= {*names}
        assert len({*names}) == 3 * len(TOOLS)


async def test_b16_an_agents_filter_binds_mcp_tools_too(kode_hub):
    agents = {"reader": ToolFilter(allow=("zoo:echo", "local_*"), deny=("*:add",))}
    async with kode_hub({"agents": agents}, zoo=zoo()) as hub:
        registry = ToolRegistry([ToolDef("local_time", "", {"type": "object"}, lambda: "noon")])
        registry.attach(HubTools(hub, agent="reader"))
        allowed = await registry.execute("zoo:echo", {"text": "hi"})
        refused = await registry.execute("zoo:add", {"a": 1, "b": 1})

        assert [tool.name for tool in registry.list()] == ["local_time", "zoo:echo"]
        assert allowed.output == "hi"
        assert not refused.success
        with pytest.raises(NotAllowed):
            await hub.call("zoo:add", {"a": 1, "b": 1}, context=CallContext(agent_id="reader"))


def test_b17_the_users_file_serves_all_projects(where, home):
    write(home / ".kode.json", {"mcpServers": {"everywhere": zoo()}})

    assert load(kode(where)).settings.servers.keys() == {"everywhere"}


def test_b18_the_projects_file_is_for_this_project_and_overrides_the_users(
    where, home, project, tmp_path
):
    write(home / ".kode.json", {"mcpServers": {"both": zoo(), "everywhere": zoo()}})
    write(project / ".kode.json", {"mcpServers": {"both": zoo("good_legacy"), "here": zoo()}})
    untrusted = load_trusted(kode(where)).settings.servers
    trust(project)

    here = load_trusted(kode(where)).settings.servers
    elsewhere = load_trusted(kode(type(where).here(tmp_path))).settings.servers

    assert here.keys() == {"both", "everywhere", "here"}
    assert "good_legacy" not in untrusted["both"].args
    assert ("good_legacy" in here["both"].args, here["both"].provenance) == (True, "project")
    assert elsewhere.keys() == {"both", "everywhere"}


@pytest.mark.parametrize(
    ("entry", "missing"),
    [
        pytest.param({"transport": "stdio", "args": []}, "command", id="command"),
        pytest.param({"transport": "stdio", "command": "x"}, "args", id="args"),
    ],
)
def test_b19_stdio_needs_command_and_args(where, project, entry, missing):
    write(project / ".kode.json", {"mcpServers": {"bad": entry, "good": zoo(env={"A": "1"})}})

    trust(project)
    loaded = load_trusted(kode(where))

    assert loaded.settings.servers.keys() == {"good"}
    assert isinstance(loaded.settings.servers["good"], StdioServer)
    assert loaded.settings.servers["good"].env == {"A": "1"}
    assert f"`{missing}` is missing" in str(loaded.errors[0])


def test_b20_sse_needs_a_url_and_may_have_headers(where, project):
    headers = {"Authorization": "Bearer x"}
    servers = {
        "bad": {"transport": "sse", "headers": headers},
        "good": {"transport": "sse", "url": "http://localhost/sse", "headers": headers},
    }
    write(project / ".kode.json", {"mcpServers": servers})

    trust(project)
    loaded = load_trusted(kode(where))

    assert loaded.settings.servers.keys() == {"good"}
    assert isinstance(loaded.settings.servers["good"], HttpServer)
    assert loaded.settings.servers["good"].headers == headers
    assert "`url` is missing" in str(loaded.errors[0])


async def test_b20_the_headers_reach_the_server_and_nobody_else(kode_hub):
    seen = []
    app = toolbox().sse_app()

    async def watched(scope, receive, send):
        if scope["type"] == "http":
            seen.append(dict(scope["headers"]).get(b"authorization"))
        await app(scope, receive, send)

    with served(watched) as url:
        entry = {
            "transport": "sse",
            "url": f"{url}/sse",
            "headers": {"Authorization": "Bearer hunter2"},
        }
        async with kode_hub(web=entry) as hub:
            await hub.call("web:add", {"a": 1, "b": 1})

            assert "hunter2" not in repr(hub.snapshot())

    assert set(seen) == {b"Bearer hunter2"}


async def test_b21_resources_are_listed_with_uri_and_metadata(kode_hub):
    async with kode_hub(zoo=zoo()) as hub:
        listed = {one.uri: one.definition for one in hub.catalog.resources}

        assert listed.keys() == {"zoo://text", "zoo://blob"}
        assert listed["zoo://text"]["mimeType"] == "text/plain"
        assert [one.uri for one in hub.catalog.templates] == ["zoo://item/{id}"]


async def test_b22_a_resource_is_read(kode_hub):
    async with kode_hub(zoo=zoo()) as hub:
        text = await hub.read("zoo://text")
        item = await hub.read("zoo://item/7")

        assert (text.contents[0].text, item.contents[0].text) == ("the text", "7")
