"""The SDK's provisional seam: these fail first when it moves."""

import inspect

from mcp import ClientSession
from mcp.server import MCPServer
from mcp.shared.dispatcher import CallOptions, DispatchContext, Dispatcher, Outbound

from multitap import LocalServer, Settings, open_hub
from multitap.wire.seam import Seam, _Context


def test_the_seam_is_where_we_left_it():
    assert "dispatcher" in inspect.signature(ClientSession.__init__).parameters
    assert {"timeout", "headers", "cancel_on_abandon"} <= CallOptions.__annotations__.keys()
    for verb in ("run", "send_raw_request", "notify"):
        theirs = inspect.signature(getattr(Dispatcher, verb)).parameters
        assert list(inspect.signature(getattr(Seam, verb)).parameters) == list(theirs)


def test_a_servers_request_comes_with_all_that_the_sdk_may_ask_about_it():
    wanted = {name for name in dir(DispatchContext) if not name.startswith("_")}
    wanted |= {name for name in dir(Outbound) if not name.startswith("_")}

    assert wanted <= set(dir(_Context)) | {"request_id", "cancel_requested"}


async def test_typed_verbs_travel_through_it(tmp_path):
    server = MCPServer("typed")

    @server.tool()
    async def hello() -> str:
        return "hello"

    wanted = Settings(servers={"typed": LocalServer(server=server)}, state_dir=tmp_path)
    async with open_hub(wanted) as hub:
        await hub.settled()
        client = hub.links["typed"].session.client

        assert [tool.name for tool in (await client.list_tools()).tools] == ["hello"]
        assert (await client.call_tool("hello")).content[0].text == "hello"
