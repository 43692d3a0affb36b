"""Real clients see of six servers through the gateway what they see directly, but for the names."""

import json
import sys
from contextlib import asynccontextmanager

import pytest

from tests.agent.models.scripted import Use, scripted_model
from tests.clients.agents import AGENTS, OFFLINE
from tests.clients.doors import Door, multitap, open_door
from tests.clients.models import EveryModel, script
from tests.clients.running import output_of
from tests.clients.test_clients import INSPECTOR
from tests.zoo.modes import command as zoo

pytestmark = [
    pytest.mark.wide,
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.timeout(600),
]

BUNDLED = ("calculator", "notebook", "clock")
SERVERS = {
    **{name: [sys.executable, "-m", f"multitap.demo.servers.{name}"] for name in BUNDLED},
    "zoo": zoo("good"),
    "twin": zoo("good"),
    "legacy": zoo("good_legacy"),
}
USES = (
    ("calculator", "add", {"a": 2, "b": 40}),
    ("calculator", "divide", {"a": 1, "b": 0}),
    ("notebook", "write", {"title": "plan", "text": "eat"}),
    ("notebook", "search", {"word": "eat"}),
    ("zoo", "nonce", {"n": 7}),
    ("twin", "echo", {"text": "hi"}),
    ("twin", "fail", {"message": "ouch"}),
    ("legacy", "add", {"a": 1, "b": 2}),
)
NAMES = {
    "claude": lambda server, tool: f"mcp__{server}__{tool}",
    "opencode": lambda server, tool: f"{server}_{tool}",
}
"""What an agent calls a tool of a server."""


@pytest.mark.parametrize("kind", ["stdio", "http"])
@pytest.mark.parametrize("name", NAMES)
async def test_an_agent_shows_its_model_the_same_tools_and_results(shelf, tmp_path, name, kind):
    named = NAMES[name]
    own = {f"{server}_{tool}": named(server, tool) for server, tool, _ in USES}

    direct = await seen(
        shelf,
        name,
        {server: Door(tmp_path, command=line) for server, line in SERVERS.items()},
        [Use(own[f"{server}_{tool}"], given) for server, tool, given in USES],
        tmp_path / "direct",
    )
    async with open_known_door(kind, tmp_path) as door:
        uses = [Use(named("gw", f"{server}_{tool}"), given) for server, tool, given in USES]
        through = await seen(shelf, name, {"gw": door}, uses, tmp_path / "through")

    renamed = {
        named("gw", f"{server}_{tool.removeprefix(named(server, ''))}"): shown
        for tool, shown in direct.tools.items()
        for server in SERVERS
        if tool.startswith(named(server, ""))
    }
    assert len(renamed) > 80
    assert {tool: shown for tool, shown in through.tools.items() if tool in renamed} == renamed
    assert not [
        tool for tool in through.tools if tool.startswith(named("gw", "")) and tool not in renamed
    ]
    assert len(direct.results) == len(USES)
    assert through.results == direct.results


@asynccontextmanager
async def open_known_door(kind, folder):
    """A gateway that has seen its servers before, so that its first lists are complete."""
    await output_of([*multitap(folder, SERVERS), "tools", "--wait", "60"], folder / "look")
    async with open_door(kind, folder, SERVERS) as door:
        yield door


class Seen:
    """What a model was shown at last: tools by name, and the results of its calls."""

    def __init__(self, body):
        tools = [tool.get("function", tool) for tool in body["tools"]]
        self.tools = {tool["name"]: {**tool, "name": ""} for tool in tools}
        self.results = [*_results(body["messages"])]


def _results(messages):
    for message in messages:
        if message["role"] == "tool":
            yield message["content"]
        elif isinstance(message["content"], list):
            for block in message["content"]:
                if block["type"] == "tool_result":
                    yield block.get("is_error", False), block["content"]


async def seen(shelf, name, doors, uses, home):
    home.mkdir()
    async with scripted_model(script(*uses), EveryModel) as model:
        command, env = AGENTS[name].prepare(shelf, doors, model, home)
        await output_of(command, home, HOME=str(home), **OFFLINE, **env)
    return Seen(
        [body for body in model.requests if uses[-1].tool in json.dumps(body.get("tools", []))][-1]
    )


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_the_inspector_lists_the_same_tools(shelf, tmp_path, kind):
    inspector = [*shelf.program("inspector", INSPECTOR), "--cli"]

    async def listed(target, place):
        command = [*inspector, *target, "--method", "tools/list"]
        return json.loads(await output_of(command, tmp_path / place, HOME=str(tmp_path)))["tools"]

    direct = {}
    for server, line in SERVERS.items():
        direct |= {f"{server}_{tool['name']}": tool for tool in await listed(line, server)}
    async with open_known_door(kind, tmp_path) as door:
        through = {tool["name"]: tool for tool in await listed(door.command or [door.url], "gw")}

    assert len(direct) > 80
    assert through == {name: {**tool, "name": name} for name, tool in direct.items()}
