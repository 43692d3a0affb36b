"""Programs and libraries that speak MCP, at our gateway."""

import json
import sys
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from multitap import Settings
from multitap.config import StdioServer
from tests.clients.doors import NEW, OLD, open_door
from tests.clients.running import output_of
from tests.clients.shelf import node
from tests.gateway.talking import gate

pytestmark = [pytest.mark.slow, pytest.mark.network]

HERE = Path(__file__).parent
SKILLS = HERE.parent / "gateway" / "skill_server.py"
ALL = {"keeper_add", "doomed_add"}
"""A tool of each server."""
INSPECTOR = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"


def server(door):
    """The gateway, as our own small clients want to be told of it."""
    return {"url": door.url} if door.url else {"command": door.command}


@pytest.mark.wide
async def test_the_inspector_lists_and_calls(shelf, door, tmp_path):
    inspector = [*shelf.program("inspector", INSPECTOR), "--cli", *(door.command or [door.url])]
    home = {"HOME": str(tmp_path)}

    listed = await output_of([*inspector, "--method", "tools/list"], tmp_path / "list", **home)
    calling = ("--method", "tools/call", "--tool-name", "doomed_add", "--tool-arg", "a=2", "b=3")
    called = await output_of([*inspector, *calling], tmp_path / "call", **home)

    assert {tool["name"] for tool in json.loads(listed)["tools"]} >= ALL
    assert json.loads(called)["structuredContent"] == {"result": 5}
    assert door.version == OLD


@pytest.mark.wide
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_inspector_verifies_the_skills_of_all_servers(shelf, tmp_path, era):
    servers = {
        name: StdioServer(command=sys.executable, args=(str(SKILLS), its_era, name))
        for name, its_era in (("alpha", "new"), ("beta", "new"), ("gamma", "old"))
    }
    async with gate(Settings(state_dir=tmp_path / "state", servers=servers)) as gateway:
        inspector = [*shelf.program("inspector", INSPECTOR), "--cli", gateway.url]
        verify = ("--method", "skills/list", "--verify", "--protocol-era", era)
        said = await output_of([*inspector, *verify], tmp_path / "run", HOME=str(tmp_path))
    reports = [json.loads(line) for line in said.splitlines()]

    assert [report["outcome"] for report in reports] == ["verified", "verified", "unverifiable"]
    assert [report["ok"] for report in reports] == [True, True, True]


@pytest.mark.parametrize(("release", "version"), [(1, OLD), (2, NEW)])
async def test_a_client_on_the_typescript_sdk_hears_of_the_death_of_a_server_and_goes_on(
    shelf, door, tmp_path, release, version
):
    told = {
        "home": str(shelf.npm(f"typescript-{release}")),
        "release": release,
        "negotiate": "auto" if version == NEW else None,
        "server": server(door),
        "steps": [
            ("list",),
            ("call", ("doomed_echo", {"text": "here"})),
            ("kill", "doomed_pid"),
            ("hear", "doomed"),
            ("call", ("keeper_echo", {"text": "still here"})),
        ],
    }
    client = [*node(HERE / "sdk.mjs"), json.dumps(told)]

    before, here, _, after, still_here = json.loads(await output_of(client, tmp_path))

    assert set(before) >= ALL
    assert set(after) == {name for name in before if name.startswith("keeper_")}
    assert (here, still_here) == ("here", "still here")
    assert door.version == version


@pytest.mark.wide
async def test_mcp_remote_makes_stdio_of_our_http(shelf, tmp_path):
    async with open_door("http", tmp_path) as door:
        program, *args = shelf.program("mcp-remote", "mcp-remote/dist/proxy.js")
        env = {"MCP_REMOTE_CONFIG_DIR": str(tmp_path), "HOME": str(tmp_path)}
        remote = StdioServerParameters(command=program, args=[*args, door.url], env=env)

        async with Client(stdio_client(remote)) as client:
            listed = {tool.name for tool in (await client.list_tools()).tools}
            called = await client.call_tool("keeper_add", {"a": 2, "b": 3})

        assert listed >= ALL
        assert called.structured_content == {"result": 5}
        assert door.version == NEW


@pytest.mark.wide
async def test_a_client_on_fastmcp_lists_and_calls(shelf, door, tmp_path):
    client = [shelf.fastmcp(), HERE / "with_fastmcp.py", json.dumps(server(door))]

    listed, called = json.loads(await output_of(client, tmp_path))

    assert set(listed) >= ALL
    assert called == 5
    assert door.version == NEW
