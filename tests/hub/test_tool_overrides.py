"""Tools under other names and with other descriptions than their server gives them."""

import pytest
from mcp.server import MCPServer

from multitap import Settings, StdioServer
from multitap.config import LocalServer
from multitap.errors import ConfigError
from multitap.hub.hub import open_hub
from multitap.trust.pins import places_in
from tests.gateway.talking import zoo


def calculator():
    server = MCPServer("calc")

    @server.tool(description="Adds")
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool(description="Takes away")
    def subtract(a: int, b: int) -> int:
        return a - b

    return server


def settings(folder, **more):
    server = LocalServer(server=calculator(), **more)
    return Settings(servers={"calc": server}, state_dir=folder)


async def test_a_tool_is_listed_and_called_as_its_user_says(tmp_path):
    told = settings(
        tmp_path, tool_names={"add": "plus"}, tool_descriptions={"add": "The sum of a and b"}
    )
    async with open_hub(told) as hub:
        await hub.settled()
        result = await hub.call("calc_plus", {"a": 2, "b": 40})

        assert hub.catalog.tools.keys() == {"calc_plus", "calc_subtract"}
        assert hub.catalog.tools["calc_plus"].description == "The sum of a and b"
        assert hub.catalog.tools["calc_subtract"].description == "Takes away"
        assert result.text == "42"
        assert result.tool == "add"


async def test_names_change_with_the_configuration_whatever_a_lock_remembers(tmp_path):
    async def names(**more):
        told = Settings(servers={"calc": zoo(**more)}, state_dir=tmp_path)
        async with open_hub(told, locks=places_in(tmp_path)) as hub:
            await hub.settled()
            return {*hub.catalog.tools} & {"calc_add", "calc_echo", "calc_plus"}

    assert await names(tool_names={"add": "plus"}) == {"calc_plus", "calc_echo"}
    assert (tmp_path / "multitap.lock").exists()
    assert await names(tool_names={"add": "echo", "echo": "add"}) == {"calc_add", "calc_echo"}
    assert await names() == {"calc_add", "calc_echo"}


async def test_a_name_that_another_tool_has_and_a_tool_that_is_not_there_are_reported(tmp_path):
    told = settings(
        tmp_path, tool_names={"add": "subtract"}, tool_descriptions={"divide": "Divides"}
    )
    async with open_hub(told) as hub:
        await hub.settled()

        assert hub.catalog.tools.keys() == {"calc_add", "calc_subtract"}
        assert hub.snapshot().server("calc").warnings == (
            "`tool_descriptions.divide`: the server has no such tool",
            "`tool_names` has a name that another tool has",
        )


@pytest.mark.parametrize("names", [{"a": "x", "b": "x"}, {"a": ""}])
def test_names_that_cannot_be_meant_are_refused(names):
    with pytest.raises(ConfigError):
        StdioServer(command="x", tool_names=names)
