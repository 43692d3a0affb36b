"""The environment that files describe, as one more server of the gateway."""

import asyncio
import json
import os
import re
import subprocess
import sys
from contextlib import asynccontextmanager

import anyio
import mcp_types as types
import pytest
from mcp import Client, MCPError

from multitap.cli.options import CommonOptions
from multitap.cli.serve.gateway import from_files
from multitap.config import HttpServer
from multitap.env.client import EnvClient
from multitap.gateway.fronts.access import Access
from multitap.gateway.fronts.http import HttpFront, serve_http
from multitap.gateway.fronts.tokens import Admitted
from multitap.gateway.gateway import open_gateway
from multitap.http.server.server import bind
from multitap.principal import token_principal
from tests.agent.models.scripted import Say, scripted_model
from tests.gateway.talking import PATIENCE, Gate, Talker
from tests.waiting import until_told
from tests.zoo.modes import command

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

TOOLS = '''
def roll(sides: int = 6) -> int:
    """Roll a die that always shows its highest number."""
    return sides

def get_profile() -> str:
    """Be called like a tool of the protocol."""
    return "mine"
'''
SKILL = "---\nname: bluff\ndescription: How to bluff.\n---\nCarefully.\n"
OFFICE = """
[environment]
id = "office"
tools = ["tools.py:roll"]

[prompts.ask]
text = "What about {topic}?"
arguments = { topic = "What to ask about" }
"""
ROLES = """
[agents.player]
allow = ["roll", "zoo_echo"]
[agents.clerk]
[profiles.games]
servers = ["env"]
deny = ["env_read_skill"]
agents = ["player"]
"""
LOOKING = {
    "env_get_description",
    "env_list_profiles",
    "env_get_profile",
    "env_list_agents",
    "env_get_agent",
    "env_query_logs",
    "env_list_tools",
    "env_get_prompt",
}


@pytest.fixture
def file(tmp_path):
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "multitap.toml").touch()
    return tmp_path / "multitap.toml"


def say(file, *parts):
    """Write the configuration, in one piece because it is watched."""
    fresh = file.with_suffix(".new")
    fresh.write_text("\n".join(('state_dir = "state"', "auto_reload = false", *parts)))
    fresh.replace(file)


def learn(file):
    folder = file.parent / "skills" / "bluff"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL)
    (folder / "two faces.md").write_text("Look bored.")


def zoo(name="zoo", **more):
    program, *args = command("good")
    table = {"command": program, "args": args, **more}
    return "\n".join((f"[servers.{name}]", *(f"{key} = {json.dumps(table[key])}" for key in table)))


@asynccontextmanager
async def gate(file, keys=None):
    """A gateway as the command line makes it."""
    served = from_files(CommonOptions(files=(file,)))
    async with open_gateway(served.open, host=served.host) as gateway:
        front = HttpFront(gateway, Access("127.0.0.1", keys=keys))
        async with serve_http(front, bind("127.0.0.1", 0)) as url:
            opened = Gate(gateway, front, url)
            with anyio.fail_after(PATIENCE):
                await opened.hub.settled()
            yield opened, served.reloader


async def names(client):
    return {tool.name for tool in (await client.list_tools()).tools}


async def asked(client, name, /, **arguments):
    with anyio.fail_after(PATIENCE):
        result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    return result.structured_content


def pid(opened, server):
    return {one.name: one.pid for one in opened.hub.snapshot().servers}[server]


def named(things, key="name"):
    return {thing[key] for thing in things}


def test_a_gateway_process_shows_the_environment_to_its_clients(file):
    learn(file)
    say(file, OFFICE, "[serve]\nport = 0")

    async def look(url):
        async with Client(url) as client:
            rolled = await client.call_tool("env_roll", {"sides": 20})
            described = await asked(client, "env_get_description")
            prompt = await client.get_prompt("env_ask", {"topic": "tea"})
            with pytest.raises(MCPError, match="topic"):
                await client.get_prompt("env_ask", {})
            (skill,) = (await client.list_resources()).resources
            manual = await client.read_resource(skill.uri)
            beside = await client.read_resource("skill://bluff/two%20faces.md")
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}

            assert tools.keys() == LOOKING | {"env_roll", "env_read_skill"}
            assert tools["env_read_skill"].description.endswith("- bluff: How to bluff.")
            assert rolled.content[0].text == "20"
            assert (described["id"], described["capabilities"]["executeTool"]) == ("office", False)
            assert prompt.messages[0].content.text == "What about tea?"
            assert (skill.uri, skill.description) == ("skill://bluff/SKILL.md", "How to bluff.")
            assert (manual.contents[0].text, beside.contents[0].text) == (SKILL, "Look bored.")
            with pytest.raises(MCPError, match="outside"):
                await client.read_resource("skill://bluff/../../tools.py")

    program = [sys.executable, "-m", "multitap", "-c", file]
    env = {**os.environ, "HOME": str(file.parent)}
    process = subprocess.Popen(
        [*program, "serve", "--http"], env=env, stderr=subprocess.PIPE, text=True
    )
    try:
        said = [process.stderr.readline(), process.stderr.readline()]
        anyio.run(look, re.search(r"http://127.0.0.1:\d+/mcp", said[1])[0])
        status = subprocess.run(
            [*program, "status"], env=env, capture_output=True, text=True, check=True
        )
    finally:
        process.terminate()
        process.wait(PATIENCE)
        process.stderr.close()

    assert re.search(r"^env +connected +10 ", status.stdout, re.MULTILINE)
    assert "other servers" not in status.stderr
    assert said[0] == "serving env\n"


def test_a_gateway_process_is_open_to_others_only_if_the_configuration_allows_it(file):
    program = [sys.executable, "-m", "multitap", "-c", file, "serve"]
    env = {**os.environ, "HOME": str(file.parent)}
    role = '[serve]\ntransport = "http"\nhost = "0.0.0.0"\nport = 0'
    say(file, role)
    refused = subprocess.run(
        program, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    say(file, role, "insecure = true")
    process = subprocess.Popen(program, env=env, stderr=subprocess.PIPE, text=True)
    try:
        told = next(line for line in process.stderr if line.startswith("at "))
    finally:
        process.terminate()
        process.wait(PATIENCE)
        process.stderr.close()

    assert refused.returncode == 3
    assert "`insecure = true` under [serve]" in refused.stderr
    assert told.startswith("at http://0.0.0.0:")


class Guest:
    """Somebody whose token allows the tools of the protocol, and one more."""

    def find(self, bearer):
        return (
            Admitted(token_principal("guest"), allow=("env_*", "zoo_add"))
            if bearer == b"guest"
            else None
        )


async def test_a_token_allows_no_more_through_the_environment_than_directly(file):
    say(file, OFFICE.replace('id = "office"', "execute_tool = true"), ROLES, zoo())
    async with (
        gate(file, Guest()) as (opened, _),
        Talker("new", opened.url, token="guest") as guest,
    ):
        listed = await asked(guest.client, "env_list_tools")
        called = {"name": "zoo_echo", "arguments": {"text": "x"}}
        refused = await guest.client.call_tool("env_execute_tool", called)
        called = {"name": "zoo_add", "arguments": {"a": 1, "b": 2}}
        allowed = await guest.client.call_tool("env_execute_tool", called)

    assert named(listed["tools"]) & {"zoo_echo", "zoo_add"} == {"zoo_add"}
    assert refused.is_error
    assert not allowed.is_error


async def test_servers_with_accounts_of_people_are_not_used_through_the_environment(file):
    """Here they would be asked with the gateway's own account, whoever the client is."""
    say(file, OFFICE, zoo(), zoo("mine", credentials="per-user", service_account=True))
    async with gate(file) as (opened, _), Talker("new", opened.url) as talker:
        tools = (await asked(talker.client, "env_list_tools"))["tools"]

    servers = {tool["name"].partition("_")[0] for tool in tools}
    assert "zoo" in servers
    assert "mine" not in servers


@pytest.mark.parametrize("era", ["old", "new"])
async def test_a_client_learns_nothing_of_what_its_profile_hides(file, era):
    learn(file)
    say(file, OFFICE.replace('id = "office"', "execute_tool = true"), ROLES, zoo())
    async with (
        gate(file) as (opened, _),
        Talker(era, opened.url) as anybody,
        Talker(era, f"{opened.url}?profile=games") as player,
    ):
        await anybody.client.call_tool("zoo_echo", {"text": "secret"})
        everything = await asked(anybody.client, "env_list_tools")
        some = await asked(player.client, "env_list_tools")
        agents = (await asked(player.client, "env_list_agents"))["agents"]
        profiles = (await asked(player.client, "env_get_description"))["profiles"]
        logs = [
            named((await asked(talker.client, "env_query_logs"))["entries"], "server")
            for talker in (anybody, player)
        ]
        hidden = {
            "env_execute_tool": {"name": "zoo_echo", "arguments": {"text": "x"}},
            "env_get_prompt": {"name": "zoo_greet", "arguments": {"name": "x"}},
            "env_get_agent": {"id": "clerk"},
        }
        refused = [await player.client.call_tool(*one) for one in hidden.items()]
        rolled = await asked(player.client, "env_execute_tool", name="roll", arguments={})

    assert named(everything["tools"]) > {"roll", "read_skill", "zoo_echo"}
    assert not any(name.startswith("env_") for name in named(everything["tools"]))
    assert named(some["tools"]) == {"roll"}
    assert [(agent["id"], agent["tools"]) for agent in agents] == [("player", ["roll"])]
    assert named(profiles, "id") == {"games"}
    assert logs[0] >= {"env", "zoo"}
    assert logs[1] == {"env"}
    assert [result.is_error for result in refused] == [True, True, True]
    assert rolled["output"] == "6"


@pytest.mark.parametrize(
    "said",
    [
        pytest.param('[profiles.games]\ndeny = ["zoo_crash"]', id="profiles"),
        pytest.param("[agents.player]", id="agents"),
        pytest.param('[model]\nname = "small"', id="model"),
    ],
)
async def test_what_describes_no_environment_shows_no_tools_of_it(file, said):
    say(file, said, zoo())
    async with gate(file) as (opened, _), Talker("new", opened.url) as anybody:
        found = await names(anybody.client)

        assert {name.partition("_")[0] for name in found} == {"zoo"}
        assert opened.hub.links.keys() == {"zoo"}


@pytest.mark.parametrize("naming", ["{server}_{tool}", "{tool}"])
@pytest.mark.parametrize("era", ["old", "new"])
async def test_only_profiles_that_ask_for_the_environment_see_its_tools(file, era, naming):
    learn(file)
    asking = '[profiles.asks]\nenvironment = true\n[profiles.other]\nservers = ["*"]'
    say(file, f'naming = "{naming}"', asking, '[prompts.hello]\ntext = "Hello"')
    async with (
        gate(file) as (opened, _),
        Talker(era, opened.url) as anybody,
        Talker(era, f"{opened.url}?profile=other") as other,
        Talker(era, f"{opened.url}?profile=asks") as asks,
    ):
        seen = [await names(talker.client) for talker in (anybody, other, asks)]
        prompts = [
            named((await talker.client.list_prompts()).model_dump()["prompts"])
            for talker in (anybody, other, asks)
        ]
        described = await asked(asks.client, "env_get_description")
        for talker in (anybody, other):
            with pytest.raises(MCPError, match="is hidden from this client"):
                await talker.client.call_tool("env_get_description", {})

    read_skill = {"read_skill" if naming == "{tool}" else "env_read_skill"}
    assert seen == [read_skill, read_skill, LOOKING | read_skill]
    assert prompts[0] == prompts[1] == prompts[2]
    assert [profile["id"] for profile in described["profiles"]] == ["asks"]


async def test_it_comes_changes_and_goes_with_the_files(file):
    say(file, zoo())
    async with gate(file) as (opened, reloader), Talker("old", opened.url) as talker:

        async def reloaded(expected, *parts):
            async def are_listed():
                return await names(talker.client) - before == expected

            talker.forget()
            say(file, *parts, zoo())
            report = await reloader.reload(opened.hub)
            # it may still be the one of the change before
            await talker.heard("notifications/tools/list_changed")
            await until_told(are_listed)
            return report.plan

        before = await names(talker.client)
        started = pid(opened, "zoo")
        came = await reloaded(LOOKING | {"env_roll"}, OFFICE)
        # the protocol's tool has the name already
        changed = await reloaded(LOOKING, OFFICE.replace("tools.py:roll", "tools.py:get_profile"))
        able = LOOKING | {"env_roll", "env_execute_tool"}
        more = await reloaded(able, OFFICE.replace('id = "office"', "execute_tool = true"))
        gone = await reloaded(set())
        still = pid(opened, "zoo")

    assert [came, changed, more, gone] == [
        "start env; keep zoo",
        "keep env, zoo",
        "keep env, zoo",
        "stop env; keep zoo",
    ]
    assert started == still


async def test_a_server_of_that_name_stays_what_it_is(file, capsys):
    say(file, OFFICE, zoo("env"))
    async with gate(file) as (opened, _), Talker("new", opened.url) as talker:
        found = await names(talker.client)

    assert "env_echo" in found
    assert not found & LOOKING
    assert "the environment is hidden, because this server" in capsys.readouterr().err


async def test_with_bare_names_the_protocol_s_tools_are_called_as_ever(file):
    say(file, 'naming = "{tool}"', OFFICE)
    async with gate(file) as (opened, _):
        async with Talker("new", opened.url) as talker:
            found = await names(talker.client)
        async with EnvClient.connect(HttpServer(url=opened.url)) as env:
            tools = await env.list_tools()

    assert found == LOOKING | {"roll"}
    assert [tool.name for tool in tools] == ["roll"]


@pytest.mark.parametrize("naming", ["{server}_{tool}", "{server}:{tool}", "{tool}"])
async def test_the_protocols_own_names_with_a_slash_are_understood(file, naming):
    say(file, f'naming = "{naming}"', OFFICE)
    async with gate(file) as (opened, _), Talker("new", opened.url) as talker:
        described = await asked(talker.client, "env/get_description")
        with pytest.raises(MCPError, match="no tool named"):
            await talker.client.call_tool("other/get_description", {})

    assert described["id"] == "office"


@pytest.mark.parametrize("era", ["old", "new"])
async def test_the_model_answers_servers_whose_client_cannot_if_that_is_on(file, era):
    server = zoo(era="handshake")
    async with scripted_model([Say("from the model")]) as model:
        about = f'[model]\nname = "scripted"\nbase_url = "{model.openai_url}"\napi_key = "k"\n'
        say(file, about, server)
        async with (
            gate(file) as (opened, reloader),
            Talker(era, opened.url, able=False) as unable,
            Talker(era, opened.url) as able,
        ):
            off = await unable.client.call_tool("zoo_sample", {})
            say(file, about, "[environment]\ninvoke_llm = true", server)
            await reloader.reload(opened.hub)
            on = await unable.client.call_tool("zoo_sample", {})
            own = await able.client.call_tool("zoo_sample", {})
    await asyncio.get_running_loop().shutdown_default_executor()  # the model's client used it

    assert "`environment.invoke_llm` is off" in off.content[0].text
    assert "from the model" in on.content[0].text
    assert "said" in own.content[0].text


async def test_the_model_is_not_asked_where_a_person_declined(file):
    async def decline(*_):
        return types.ErrorData(code=-1, message="the person declined")

    async with scripted_model([Say("from the model")]) as model:
        about = f'[model]\nname = "scripted"\nbase_url = "{model.openai_url}"\napi_key = "k"\n'
        say(file, about, "[environment]\ninvoke_llm = true", zoo(era="handshake"))
        async with (
            gate(file) as (opened, _),
            Client(opened.url, mode="legacy", sampling_callback=decline) as client,
        ):
            result = await client.call_tool("zoo_sample", {})

    assert "the person declined" in result.content[0].text
    assert model.requests == []
