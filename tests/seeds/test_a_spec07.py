"""SPEC-07 (seed A): every requirement, and scenarios 1 to 5 by their number."""

import pytest

from multitap import (
    Info,
    LocalConfig,
    McpServerRegistry,
    RemoteConfig,
    ToolDef,
    ToolRegistry,
)
from multitap.errors import ConfigError, MultitapError, UnknownName
from multitap.events import LinkState
from multitap.tools import HubTools
from tests.seeds.files import local
from tests.zoo.tools import TOOLS

MEMORY = {"type": "local", "command": ["npx", "mcp-memory"]}
API = {"type": "remote", "url": "https://example.com/mcp"}


@pytest.fixture
def registry():
    return McpServerRegistry()


def test_a1_a_local_configuration_has_defaults(registry):
    registry.register("memory", MEMORY)

    assert registry.get("memory").config == LocalConfig(
        type="local", command=("npx", "mcp-memory"), environment={}, enabled=True, timeout=30000
    )


def test_a1_a_local_configuration_keeps_what_it_is_given(registry):
    given = LocalConfig(("x",), {"TOKEN": "secret"}, enabled=False, timeout=500)
    registry.register("x", given)

    assert registry.get("x").config == given
    assert "secret" not in repr(registry.get("x"))


def test_a2_a_remote_configuration_has_defaults(registry):
    registry.register("api", API)

    assert registry.get("api").config == RemoteConfig(
        type="remote", url="https://example.com/mcp", headers={}, enabled=True, timeout=30000
    )


def test_a2_a_remote_configuration_keeps_what_it_is_given(registry):
    given = RemoteConfig(API["url"], {"X-Key": "secret"}, enabled=False, timeout=1500)
    registry.register("api", given)

    assert registry.get("api").config == given
    assert "secret" not in repr(registry.get("api"))


@pytest.mark.parametrize(
    ("config", "key"),
    [
        pytest.param({"type": "carrier-pigeon", "command": ["x"]}, "type", id="other type"),
        pytest.param({"command": ["x"]}, "type", id="no type"),
        pytest.param({"type": "local"}, "command", id="no command"),
        pytest.param({"type": "local", "command": []}, "command", id="empty command"),
        pytest.param({"type": "local", "command": "x"}, "command", id="command is no list"),
        pytest.param({"type": "local", "url": "https://x"}, "command", id="local with url"),
        pytest.param({"type": "remote"}, "url", id="no url"),
        pytest.param({"type": "remote", "url": "x"}, "url", id="url is no address"),
        pytest.param({**API, "timeout": -1}, "timeout", id="timeout is negative"),
        pytest.param({**API, "headers": ["x"]}, "headers", id="headers are no table"),
    ],
)
def test_a3_anything_else_is_rejected_by_the_name_of_the_field(registry, config, key):
    with pytest.raises(ConfigError, match=rf"`api\.{key}`"):
        registry.register("api", config)

    assert registry.list() == ()


def test_a3_what_is_no_table_is_rejected_in_words(registry):
    with pytest.raises(ConfigError, match="'x': expected a table of settings, not 'nonsense'"):
        registry.register("x", "nonsense")


def test_a3_a_server_may_have_any_name(registry):
    for name in ("mcp", "servers", "server", "a.b", "日本"):
        registry.register(name, MEMORY)

    assert [info.name for info in registry.list()] == ["mcp", "servers", "server", "a.b", "日本"]


@pytest.mark.parametrize("status", ["disconnected", "connecting", "connected", "error"])
def test_a4_a_status_is_one_of_the_known_words(registry, status):
    registry.register("memory", MEMORY)
    registry.update_status("memory", status)

    assert registry.get("memory").status == status


def test_a4_another_word_is_no_status(registry):
    registry.register("memory", MEMORY)
    with pytest.raises(ValueError, match="sleepy"):
        registry.update_status("memory", "sleepy")


def test_a5_an_info_has_name_config_status_error_and_tool_count(registry):
    registry.register("memory", MEMORY)
    info = registry.get("memory")

    assert info == Info("memory", LocalConfig(("npx", "mcp-memory")))
    assert (info.name, info.status, info.error, info.tool_count) == (
        "memory",
        "disconnected",
        None,
        0,
    )


def test_a6_scenario_1_a_registered_local_server_is_disconnected(registry):
    registry.register("memory", MEMORY)

    assert registry.get("memory").status == "disconnected"


def test_a6_scenario_2_a_registered_remote_server_is_there(registry):
    registry.register("api", API)

    assert registry.get("api").name == "api"


def test_a6_scenario_3_a_status_is_updated(registry):
    registry.register("memory", MEMORY)
    registry.update_status("memory", "connected")

    assert registry.get("memory").status == "connected"


def test_a6_scenario_4_an_error_has_its_words_until_the_next_status(registry):
    registry.register("memory", MEMORY)
    registry.update_status("memory", "error", "连接超时")
    failed = registry.get("memory")
    registry.update_status("memory", "connecting")

    assert (failed.status, failed.error) == ("error", "连接超时")
    assert registry.get("memory").error is None


def test_a6_scenario_5_all_are_listed_and_one_is_removed(registry):
    registry.register("memory", MEMORY)
    registry.register("api", API)
    both = [info.name for info in registry.list()]
    registry.remove("memory")

    assert both == ["memory", "api"]
    assert registry.get("memory") is None
    assert [info.name for info in registry.list()] == ["api"]


def test_a6_registering_again_starts_over(registry):
    registry.register("memory", MEMORY)
    registry.update_status("memory", "connected")
    registry.register("memory", API)

    assert registry.get("memory").status == "disconnected"
    assert registry.get("memory").config.type == "remote"


def test_a6_reset_forgets_everything(registry):
    registry.register("memory", MEMORY)
    registry.reset()

    assert registry.list() == ()


def test_a6_what_is_not_there_can_be_removed_but_not_updated(registry):
    registry.remove("nothing")
    with pytest.raises(UnknownName):
        registry.update_status("nothing", "connected")


async def test_a7_a_connection_lives_as_long_as_the_block(registry):
    registry.register("zoo", local())
    registry.register("broken", {"type": "local", "command": ["no-such-program"]})
    registry.register("off", local(enabled=False))
    async with registry.connected() as hub:
        await hub.settled()
        up, broken, off = registry.list()
        with pytest.raises(MultitapError, match="already connected"):
            async with registry.connected():
                pass
        with pytest.raises(MultitapError, match="follows its connection"):
            registry.update_status("zoo", "error")

    assert (up.status, up.error, up.tool_count) == (LinkState.CONNECTED, None, len(TOOLS))
    assert (broken.status, broken.tool_count) == (LinkState.ERROR, 0)
    assert "no-such-program" in broken.error
    assert off.status is LinkState.DISABLED
    assert {info.status for info in registry.list()} == {LinkState.DISCONNECTED}


async def test_a7_servers_come_and_go_while_connected(registry):
    async with registry.connected() as hub:
        registry.register("zoo", local())
        await hub.settled()
        assert registry.get("zoo").status == "connected"

        registry.remove("zoo")
        assert registry.get("zoo") is None
        assert not hub.links


async def test_a7_mcp_tools_become_internal_tools(registry):
    def greet(name: str) -> str:
        """Greets."""
        return f"hello {name}"

    registry.register("zoo", local())
    tools = ToolRegistry([ToolDef.of(greet)])
    async with registry.connected() as hub:
        await hub.settled()
        tools.attach(HubTools(hub))
        own = await tools.execute("greet", {"name": "Ada"})
        theirs = await tools.execute("zoo_add", {"a": 2, "b": 3})

        assert (own.output, theirs.output) == ("hello Ada", "5")
        assert {"greet", "zoo_add", "zoo_echo"} <= {tool.name for tool in tools.list()}
