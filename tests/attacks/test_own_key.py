"""A server that repeats its own key: results pass as they are, everything else without it."""

import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import mcp_types as types
import pytest
from mcp import MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPDeprecationWarning

from multitap.config import Settings, StdioServer
from tests.attacks.served import folders
from tests.gateway.all_fronts import file_of
from tests.gateway.talking import Talker, gate
from tests.waiting import PATIENCE

KEY = "k3y-0f-the-server-9d41"
PROGRAM = str(Path(__file__).with_name("telling_server.py"))


def entry(era):
    return {"command": sys.executable, "args": [PROGRAM, era], "env": {"API_KEY": KEY}}


@asynccontextmanager
async def over_http(folder, server_era, client_era):
    servers = {"telling": StdioServer(**entry(server_era))}
    async with (
        gate(Settings(servers=servers, state_dir=folder / "state")) as gateway,
        Talker(client_era, gateway.url) as talker,
    ):
        yield talker


@asynccontextmanager
async def over_stdio(folder, server_era, client_era):
    config = file_of({"telling": entry(server_era)}, folder / "state")
    command = ["-m", "multitap", "serve", "--config", str(config)]
    env = {**os.environ, **folders(folder)}
    with Path(folder / "stderr").open("w") as errors:
        program = StdioServerParameters(command=sys.executable, args=command, env=env)
        async with Talker(client_era, stdio_client(program, errlog=errors)) as talker:
            yield talker


FRONTS = {"http": over_http, "stdio": over_stdio}


@pytest.mark.parametrize("client_era", ["old", "new"])
@pytest.mark.parametrize("server_era", ["handshake", "stateless"])
@pytest.mark.parametrize("front", FRONTS)
async def test_only_results_have_the_key_of_their_server(tmp_path, front, server_era, client_era):
    progress = []

    async def on_progress(done, total, message):
        progress.append(message)

    with anyio.fail_after(2 * PATIENCE):
        async with FRONTS[front](tmp_path, server_era, client_era) as talker:
            client = talker.client
            meta = {"io.modelcontextprotocol/logLevel": "debug"} if client_era == "new" else None
            tools = await client.list_tools()
            about = [client.instructions, client.server_info]
            if client_era == "old":
                with pytest.warns(MCPDeprecationWarning):
                    await client.set_logging_level("debug")
            else:
                asked = types.DiscoverRequest()
                about.append(await client.session.send_request(asked, types.DiscoverResult))
            rest = [
                await client.list_prompts(),
                await client.list_resources(),
                await client.list_resource_templates(),
            ]
            with pytest.raises(MCPError) as failed:
                await client.call_tool("telling_fail", {})
            called = await client.call_tool(
                "telling_tell", {}, progress_callback=on_progress, meta=meta
            )
            answered = await client.call_tool("telling_ask", {})
            prompt = await client.get_prompt("telling_hint")
            resource = await client.read_resource("note://one")

    results = [called, answered, prompt, resource]
    elsewhere = {
        "lists": [tools, *rest],
        "introduction": about,
        "error": [failed.value.error, str(failed.value)],
        "logs": talker.logs,
        "progress": progress,
        "questions": talker.asked,
        "notifications": talker.told,
    }
    assert {tool.name for tool in tools.tools} == {
        f"telling_{name}" for name in ("tell", "fail", "ask")
    }
    assert all(KEY in repr(result) for result in results)
    assert {place for place, said in elsewhere.items() if KEY in repr(said)} == set()
    if (front, client_era) == ("stdio", "old"):
        del elsewhere["introduction"]  # which such a gateway gives before its servers are up
    del elsewhere["notifications"]
    assert {place for place, said in elsewhere.items() if "***" not in repr(said)} == set()
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".toml"]
    assert [path for path in written if KEY.encode() in path.read_bytes()] == []
