"""otter (seed D): every row of its acceptance list, error table and configuration.

Not here yet: `/mcp`, `/mcp reload` and `/mcp tools` in a terminal screen (D9, D19, D26; what they
show is here), prompts as templates and resources as context (D23, D24), servers by one command
(D27). The official filesystem server, started by the real `npx` (D7, D22), is in
`tests/real/test_servers.py`.
"""

import json
import os
import signal
from contextlib import asynccontextmanager

import anyio
import mcp_types as types
import pytest

from multitap import Handlers, ToolDef, ToolRegistry, open_hub
from multitap.config import otter
from multitap.errors import CallTimeout, Unavailable
from multitap.events import FailureCode, LinkChanged, LinkState, Reloaded, ReloadFailed
from multitap.hub.reload import Reloader
from multitap.tools import HubTools
from multitap.trust.projects import load_trusted
from tests.processes import descendants
from tests.seeds.files import write
from tests.trusting import trust
from tests.waiting import PATIENCE
from tests.wire.sdk_web import served, toolbox
from tests.zoo.ledger import Ledger
from tests.zoo.modes import command
from tests.zoo.tools import TOOLS


def entry(name, mode="good", *options, **more):
    """A `[[mcp.servers]]` that starts a server of the zoo."""
    program, *args = command(mode, *options)
    return table(name=name, transport="stdio", command=program, args=args, **more)


def table(**members):
    return "\n".join(
        ("[[mcp.servers]]", *(f"{key} = {_toml(value)}" for key, value in members.items()))
    )


def _toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


def config(*parts, **general):
    lines = [f"{key} = {_toml(value)}" for key, value in general.items()]
    return "\n\n".join(("\n".join(("[mcp]", *lines)), *parts, ""))


@pytest.fixture
def otter_hub(where, project):
    """A hub of what `otter.toml` says, all servers settled."""

    @asynccontextmanager
    async def make(*parts, handlers=Handlers(), **general):
        write(project / "otter.toml", config(*parts, **general))
        trust(project)
        reloader = Reloader(lambda: load_trusted(otter(where)))
        async with open_hub(reloader, handlers=handlers) as hub:
            with anyio.fail_after(PATIENCE):
                await hub.settled()
            yield hub

    return make


async def until(hub, condition):
    """Wait for an event that makes it true."""
    with hub.events.subscribe() as events, anyio.fail_after(PATIENCE):
        while not condition():
            await anext(events)


async def test_d1_d2_a_stdio_server_is_initialized_listed_and_called(otter_hub, tmp_path):
    ledger = Ledger(tmp_path)
    async with otter_hub(entry("zoo", "good_legacy", env=ledger.env)) as hub:
        result = await hub.call("zoo_echo", {"text": "hi"})

        assert result.text == "hi"
        order = [m for m in ledger.methods if m in {"initialize", "tools/list", "tools/call"}]
        assert order == ["initialize", "tools/list", "tools/call"]


async def test_d3_mcp_tools_are_in_the_same_set_as_built_in_ones(otter_hub):
    def shell(line: str) -> str:
        """Runs a line."""
        return f"ran {line}"

    tools = ToolRegistry([ToolDef.of(shell)])
    async with otter_hub(entry("zoo")) as hub:
        tools.attach(HubTools(hub))

        assert {tool.name for tool in tools.list()} == {"shell", *(f"zoo_{name}" for name in TOOLS)}
        assert (await tools.execute("shell", {"line": "ls"})).output == "ran ls"
        assert (await tools.execute("zoo_add", {"a": 1, "b": 2})).output == "3"


@pytest.mark.parametrize("key", ["mcp.servers", "mcp_servers"])
def test_d4_servers_are_in_the_toml_file(where, project, key):
    write(project / "otter.toml", f'[[{key}]]\nname = "a"\ntransport = "stdio"\ncommand = "npx"\n')
    trust(project)

    assert load_trusted(otter(where)).settings.servers["a"].command == "npx"


async def test_d5_a_server_that_fails_to_start_does_not_disturb(otter_hub):
    broken = table(name="broken", transport="stdio", command="no-such-program")
    async with otter_hub(broken, entry("crash", "exit_at_start"), entry("good")) as hub:
        states = {server.name: server.state for server in hub.snapshot().servers}

        assert states == {
            "broken": LinkState.ERROR,
            "crash": LinkState.ERROR,
            "good": LinkState.CONNECTED,
        }
        assert (await hub.call("good_echo", {"text": "hi"})).text == "hi"


async def test_d6_a_call_that_takes_too_long_is_reported_to_the_model(otter_hub):
    async with otter_hub(entry("zoo", timeout="200ms")) as hub:
        result = await HubTools(hub)["zoo_sleep"].execute({"seconds": 60})

        assert not result.success
        assert "no answer to 'tools/call' within" in result.error
        assert (await hub.call("zoo_echo", {"text": "still there"})).text == "still there"


async def test_d7_npx_is_found_on_the_path(otter_hub, tmp_path, monkeypatch):
    npx = write(tmp_path / "bin" / "npx", f"#!/bin/sh\nexec {' '.join(command('good'))}\n")
    npx.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npx.parent}:{os.environ['PATH']}")
    server = table(name="npx", transport="stdio", command="npx", args=["-y", "some-server"])
    async with otter_hub(server) as hub:
        assert hub.snapshot().server("npx").state is LinkState.CONNECTED


async def test_d8_an_sse_server_is_reached_by_its_url(otter_hub):
    with served(toolbox().sse_app()) as url:
        async with otter_hub(table(name="web", transport="sse", url=f"{url}/sse")) as hub:
            assert (await hub.call("web_add", {"a": 2, "b": 3})).text == "5"


async def test_d9_d19_everything_that_mcp_shows_is_in_the_snapshot(otter_hub):
    broken = table(name="broken", transport="stdio", command="no-such-program")
    async with otter_hub(entry("zoo"), broken) as hub:
        zoo, lost = (hub.snapshot().server(name) for name in ("zoo", "broken"))

        assert (zoo.state, zoo.tools, zoo.starts, zoo.failure) == ("connected", len(TOOLS), 1, None)
        assert (lost.state, lost.tools) == ("error", 0)
        assert lost.failure.hint
        assert {tool.server for tool in hub.tools} == {"zoo"}


async def test_d10_a_stopped_server_is_found_by_the_health_check_and_comes_back(otter_hub):
    async with otter_hub(entry("zoo"), health_check_interval="300ms") as hub:
        before = hub.snapshot().server("zoo").pid
        os.kill(before, signal.SIGSTOP)
        await until(hub, lambda: hub.snapshot().server("zoo").pid not in {before, None})

        assert (await hub.call("zoo_echo", {"text": "back"})).text == "back"


@pytest.mark.parametrize("key", ["reconnect", "auto_reconnect"])
async def test_d10_a_server_that_is_not_to_reconnect_stays_down_until_it_is_restarted(
    otter_hub, key
):
    async with otter_hub(
        entry("zoo", **{key: False}), entry("bad", "exit_at_start", **{key: False})
    ) as hub:
        before = {server.name: server for server in hub.snapshot().servers}
        os.kill(before["zoo"].pid, signal.SIGKILL)
        await until(hub, lambda: hub.snapshot().server("zoo").state is LinkState.DISCONNECTED)
        await hub.settled()
        lost = hub.snapshot().server("zoo")
        with pytest.raises(Unavailable, match="terminated by SIGKILL") as caught:
            await hub.call("zoo_echo", {"text": "gone"})
        hub.restart("zoo")
        back = await hub.call("zoo_echo", {"text": "back"})

        assert (before["bad"].state, before["bad"].retry_at) == (LinkState.ERROR, None)
        assert (lost.state, lost.retry_at) == (LinkState.DISCONNECTED, None)
        assert "`multitap restart zoo` starts it again" in caught.value.hint
        assert back.text == "back"


async def test_d11_an_image_becomes_a_description_and_keeps_its_bytes(otter_hub):
    async with otter_hub(entry("zoo")) as hub:
        result = await hub.call("zoo_blocks")
        image = result.blocks[1]

        assert "[image: image/png, 0.1 KB, 1x1 pixels]" in result.text
        assert (image.width, image.height) == (1, 1)
        assert image.data.startswith(b"\x89PNG")


async def test_d12_variables_are_put_in_when_connecting(otter_hub, monkeypatch):
    monkeypatch.setenv("ZOO_ONE", "eins")
    env = {"SAID": "${ZOO_ONE}, ${ZOO_TWO:-zwei}", "LITERAL": "$${ZOO_ONE}"}
    async with otter_hub(entry("zoo", env=env)) as hub:
        said = await hub.call("zoo_env", {"name": "SAID"})
        literal = await hub.call("zoo_env", {"name": "LITERAL"})

        assert "eins, zwei" in said.text
        assert "${ZOO_ONE}" in literal.text


async def test_d12_a_variable_in_a_header_reaches_the_server(otter_hub, monkeypatch):
    monkeypatch.setenv("GITHUB_TOKEN", "hunter2")
    seen = []
    app = toolbox().sse_app()

    async def watched(scope, receive, send):
        if scope["type"] == "http":
            seen.append(dict(scope["headers"]).get(b"authorization"))
        await app(scope, receive, send)

    with served(watched) as url:
        headers = {"Authorization": "Bearer ${GITHUB_TOKEN}"}
        server = table(name="web", transport="sse", url=f"{url}/sse", headers=headers)
        async with otter_hub(server) as hub:
            assert hub.snapshot().server("web").state is LinkState.CONNECTED

    assert set(seen) == {b"Bearer hunter2"}


async def test_d12_a_variable_that_is_not_set_disables_that_server_and_says_where(
    otter_hub, project
):
    async with otter_hub(entry("bad", env={"KEY": "${NOT_SET}"}), entry("good")) as hub:
        bad = hub.snapshot().server("bad")

        assert (bad.state, bad.failure.code) == (LinkState.ERROR, FailureCode.CONFIG)
        assert f"{project / 'otter.toml'}:8:" in bad.failure.message
        assert "`NOT_SET` is not set" in bad.failure.message
        assert hub.snapshot().server("good").state is LinkState.CONNECTED


async def test_d12_a_secret_from_a_variable_is_hidden_in_what_the_server_says(
    otter_hub, monkeypatch
):
    monkeypatch.setenv("ZOO_TOKEN", "hunter2-hunter2")
    env = {"ZOO_SECRET": "${ZOO_TOKEN}"}
    async with otter_hub(entry("zoo", "echo_secret", env=env)) as hub:
        failure = hub.snapshot().server("zoo").failure

        assert failure is not None
        assert "hunter2" not in repr(failure)


async def test_d13_prompts_are_listed_and_filled_in(otter_hub):
    async with otter_hub(entry("zoo")) as hub:
        filled = await hub.prompt("zoo_greet", {"name": "Ada"})

        assert hub.catalog.prompts.keys() == {"zoo_greet", "zoo_plain"}
        assert filled.messages[0].content.text == "Hello, Ada"


async def test_d14_resources_are_listed_and_read(otter_hub):
    async with otter_hub(entry("zoo")) as hub:
        assert {one.uri for one in hub.catalog.resources} == {"zoo://text", "zoo://blob"}
        assert (await hub.read("zoo://text")).contents[0].text == "the text"


async def test_d15_a_saved_file_is_taken_over_without_a_restart(otter_hub, project):
    async with otter_hub(entry("kept"), entry("gone")) as hub:
        before = hub.snapshot().server("kept").pid
        with hub.events.subscribe() as events, anyio.fail_after(PATIENCE):
            write(project / "otter.toml", config(entry("kept"), entry("new")))
            trust(project)
            while not isinstance(told := await anext(events), Reloaded):
                continue
        await hub.settled()

        assert told.plan == "start new; stop gone; keep kept"
        assert hub.snapshot().server("kept").pid == before
        assert (await hub.call("new_echo", {"text": "hi"})).text == "hi"


async def test_d15_a_broken_file_changes_nothing_and_says_so(otter_hub, project):
    async with otter_hub(entry("zoo")) as hub:
        with hub.events.subscribe() as events, anyio.fail_after(PATIENCE):
            write(project / "otter.toml", "[[mcp.servers")
            while not isinstance(told := await anext(events), ReloadFailed):
                continue

        assert "not valid TOML" in told.problems[0]
        assert (await hub.call("zoo_echo", {"text": "hi"})).text == "hi"


async def test_d16_calls_are_counted_and_timed(otter_hub):
    async with otter_hub(entry("zoo", timeout="200ms")) as hub:
        for _ in range(3):
            await hub.call("zoo_echo", {"text": "hi"})
        await hub.call("zoo_fail", {"message": "no"})
        with pytest.raises(CallTimeout):
            await hub.call("zoo_sleep", {"seconds": 60})
        stats = hub.metrics.tools("zoo")

        assert (stats["echo"].calls, stats["echo"].errors) == (3, 0)
        assert stats["fail"].errors == 1
        assert stats["sleep"].timeouts == 1
        assert 0 < stats["echo"].p50 <= stats["echo"].p99


def test_d17_the_general_settings_are_the_users_to_say(where, home, project):
    general = {"enabled": True, "auto_reload": False, "health_check_interval": "1m30s"}
    write(project / "otter.toml", config(entry("zoo"), **general))
    trust(project)
    of_project = load_trusted(otter(where))
    write(home / ".config" / "otter" / "config.toml", config(entry("mine"), **general))
    settings = load_trusted(otter(where)).settings

    assert {problem.key for problem in of_project.errors} == {
        "mcp.auto_reload",
        "mcp.health_check_interval",
    }
    assert of_project.settings.auto_reload
    assert (settings.enabled, settings.auto_reload, settings.health_interval) == (True, False, 90)


async def test_d17_switched_off_as_a_whole_no_server_runs(otter_hub):
    async with otter_hub(entry("zoo"), enabled=False) as hub:
        assert hub.snapshot().server("zoo").state is LinkState.DISABLED


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("30s", 30), ("500ms", 0.5), ("1m30s", 90), ("2h", 7200)],
)
def test_d18_durations_are_written_with_their_unit(where, project, written, seconds):
    write(project / "otter.toml", config(entry("zoo", timeout=written)))
    trust(project)

    assert load_trusted(otter(where)).settings.servers["zoo"].timeout == seconds


def test_d18_a_duration_without_unit_costs_that_server_only(where, project):
    write(project / "otter.toml", config(entry("bad", timeout=30), entry("good")))
    trust(project)
    loaded = load_trusted(otter(where))

    assert loaded.settings.servers.keys() == {"good"}
    assert loaded.errors[0].server == "bad"


async def test_d20_a_crashed_server_is_marked_and_comes_back(otter_hub):
    async with otter_hub(entry("zoo", "crash_idle", "--once")) as hub:
        with hub.events.subscribe() as events, anyio.fail_after(PATIENCE):
            await hub.call("zoo_fault")
            seen = []
            while not seen or seen[-1].state is not LinkState.CONNECTED:
                event = await anext(events)
                seen += [event] if isinstance(event, LinkChanged) else []

        assert seen[0].state is LinkState.DISCONNECTED
        assert seen[0].failure.code is FailureCode.CRASH


async def test_d20_a_tool_with_an_impossible_schema_is_skipped_with_a_warning(otter_hub):
    async with otter_hub(entry("zoo", "tools_bad_schema")) as hub:
        zoo = hub.snapshot().server("zoo")

        assert zoo.state is LinkState.CONNECTED
        assert any("is skipped" in warning for warning in zoo.warnings)
        assert {f"zoo_{name}" for name in TOOLS} <= hub.catalog.tools.keys()


async def test_d20_a_failing_tool_tells_the_model_why(otter_hub):
    async with otter_hub(entry("zoo")) as hub:
        result = await HubTools(hub)["zoo_fail"].execute({"message": "the disk is full"})

        assert (result.success, result.error) == (False, "the disk is full")


async def test_d21_at_shutdown_nothing_is_left_running(otter_hub, tmp_path):
    before = descendants(os.getpid())
    ledger = Ledger(tmp_path)
    async with otter_hub(entry("zoo", env=ledger.env), entry("deaf", "ignores_eof")) as hub:
        await hub.call("zoo_spawn_daemon", {"clean": False})

    assert ledger.children
    assert descendants(os.getpid()) <= before


async def test_d25_a_server_may_use_the_hosts_model(otter_hub):
    async def sample(_origin, _params):
        text = types.TextContent(type="text", text="hello")
        return types.CreateMessageResult(role="assistant", content=text, model="m")

    async with otter_hub(entry("zoo"), handlers=Handlers(sample=sample)) as hub:
        assert "hello" in (await hub.call("zoo_sample")).text
