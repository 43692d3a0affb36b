"""An environment as an MCP server."""

import os
import signal
import socket
import subprocess
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import aiohttp
import anyio
import pytest
from mcp import Client, MCPError, StdioServerParameters

from multitap.config import LocalServer, Serve, Settings
from multitap.env.protocol import ENV_TOOLS
from multitap.env.server import EnvMCPServer
from multitap.errors import ConfigError
from multitap.hub.hub import open_hub
from tests.env.env_world import CRITIC, IMAGE, NOON, REVIEW, Workshop, program
from tests.waiting import PATIENCE

ERAS = ["legacy", "2026-07-28"]
WAYS = ["here", "http", "stdio"]
QUESTIONS = {
    "env_get_description": {},
    "env_list_profiles": {},
    "env_get_profile": {"id": "review"},
    "env_list_agents": {},
    "env_get_agent": {"id": "critic"},
    "env_query_logs": {"limit": 5},
    "env_list_tools": {"agent": "critic"},
    "env_execute_tool": {"name": "shout", "arguments": {"text": "hey"}},
    "env_get_prompt": {"name": "greet", "arguments": {"who": "you"}},
    "env_invoke_llm": {"messages": [{"content": "abc"}], "maxTokens": 5},
}
ALL = {"execute_tool": True, "invoke_llm": True}


@asynccontextmanager
async def asking(way="here", era="2026-07-28", world=None, **powers):
    """The SDK's own client of a workshop."""
    server = EnvMCPServer(world or Workshop(), **powers)
    if way == "http":
        async with server.serve_http(port=0) as front, Client(front.url, mode=era) as client:
            yield client
    elif way == "stdio":
        config = program()
        there = StdioServerParameters(command=config.command, args=list(config.args))
        async with Client(there, mode=era) as client:
            yield client
    else:
        async with Client(server.server, mode=era) as client:
            yield client


async def refusal(client, name, arguments=None):
    result = await client.call_tool(name, arguments or {})
    assert result.is_error
    assert result.structured_content is None
    return result.content[0].text


async def post(url, **headers):
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    accept = {"accept": "application/json, text/event-stream"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=ping, headers=accept | headers) as answer,
    ):
        return answer.status


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("way", WAYS)
async def test_every_tool_answers_as_its_schema_says(way, era):
    with anyio.fail_after(PATIENCE):
        async with asking(way, era, **ALL) as client:
            if way == "stdio":  # what is printed there must not disturb the pipes
                await client.call_tool("env_execute_tool", {"name": "print"})
            tools = (await client.list_tools()).tools
            answers = {
                tool.name: await client.call_tool(tool.name, QUESTIONS[tool.name]) for tool in tools
            }

    assert [tool.name for tool in tools] == [tool.listed for tool in ENV_TOOLS.values()]
    assert not any(answer.is_error for answer in answers.values())
    data = {name: answer.structured_content for name, answer in answers.items()}
    assert data["env_get_description"]["displayName"] == "Workshop"
    assert data["env_list_profiles"]["profiles"] == [data["env_get_profile"]]
    assert data["env_get_profile"]["id"] == REVIEW.id
    assert data["env_list_agents"]["agents"] == [data["env_get_agent"]]
    assert data["env_get_agent"]["tools"] == list(CRITIC.tools)
    assert data["env_query_logs"]["entries"][0]["at"] == NOON.isoformat().replace("+00:00", "Z")
    assert data["env_list_tools"]["tools"][0]["name"] == "shout"
    assert data["env_execute_tool"] == {"success": True, "output": "HEY", "content": [IMAGE]}
    assert data["env_get_prompt"]["messages"] == [{"role": "user", "text": "Hello you"}]
    assert data["env_invoke_llm"]["text"] == "cba"


@pytest.mark.parametrize("era", ERAS)
async def test_the_names_with_a_slash_are_accepted(era):
    async with asking("http", era) as client:
        result = await client.call_tool("env/get_profile", {"id": "review"})

    assert result.structured_content["displayName"] == "Review"


@pytest.mark.parametrize("power", ["execute_tool", "invoke_llm"])
async def test_what_is_turned_off_is_not_listed_and_says_how_to_turn_it_on(power):
    async with asking(**(ALL | {power: False})) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        words = await refusal(client, f"env_{power}", QUESTIONS[f"env_{power}"])
        capabilities = (await client.call_tool("env_get_description")).structured_content

    assert len(names) == 9
    assert f"env_{power}" not in names
    assert f"`{power} = true` under [environment]" in words
    assert capabilities["capabilities"]["invokeLlm"] is (power != "invoke_llm")
    assert capabilities["capabilities"]["executeTool"] is (power != "execute_tool")


async def test_tools_that_only_look_say_so():
    async with asking(**ALL) as client:
        hints = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}

    active = {name for name, hint in hints.items() if not hint.read_only_hint}
    assert active == {"env_execute_tool", "env_invoke_llm"}
    assert hints["env_execute_tool"].destructive_hint


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("env_get_profile", {"id": "no"}, "no profile 'no'; list_profiles has them all"),
        ("env_get_agent", {"id": "no"}, "no agent 'no'"),
        ("env_get_prompt", {"name": "no"}, "no prompt named 'no'"),
        ("env_execute_tool", {"name": "no"}, "no tool named 'no'"),
        ("env_get_profile", {}, '"id" is a required property'),
        ("env_query_logs", {"limit": "many"}, '/limit is not of type "integer"'),
    ],
)
@pytest.mark.parametrize("era", ERAS)
async def test_what_cannot_be_answered_is_said_in_words(era, name, arguments, words):
    async with asking(era=era, **ALL) as client:
        assert words in await refusal(client, name, arguments)


async def test_a_tool_that_fails_is_an_error_and_an_outcome():
    async with asking(**ALL) as client:
        result = await client.call_tool("env_execute_tool", {"name": "shout"})

    assert result.is_error
    assert result.structured_content["error"] == "nothing to shout"


async def test_a_world_that_breaks_keeps_its_words_to_itself(caplog):
    async with asking(**ALL) as client:
        words = await refusal(client, "env_execute_tool", {"name": "break"})

    assert words == "the environment could not answer: ZeroDivisionError"
    assert "hunter2" in caplog.text


async def test_an_unknown_tool_is_a_protocol_error():
    async with asking() as client:
        with pytest.raises(MCPError, match="no tool named 'env_fly'"):
            await client.call_tool("env_fly")


async def test_a_hub_can_have_it_as_a_server_in_this_process(tmp_path):
    server = EnvMCPServer(Workshop())
    settings = Settings(servers={"w": LocalServer(server=server.server)}, state_dir=tmp_path)

    async with open_hub(settings) as hub:
        await hub.settled()
        result = await hub.call("w_env_get_agent", {"id": "critic"})

    assert result.structured["model"] == "small"


async def test_it_is_reached_as_configured():
    config = Serve(transport="http", port=0)

    async with EnvMCPServer(Workshop()).serve(config) as front:
        assert front.url.startswith("http://127.0.0.1:")
        assert front.url.endswith("/mcp")
        assert not front.closed.is_set()

    assert front.closed.is_set()


async def test_other_names_and_origins_are_turned_away():
    async with EnvMCPServer(Workshop()).serve_http(port=0) as front:
        fine = await post(front.url, origin="http://localhost:8080")
        name = await post(front.url, host="evil.example")
        origin = await post(front.url, origin="https://evil.example")

    assert (fine, name, origin) == (400, 421, 403)  # 400: there is no session yet


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
async def test_an_address_that_others_can_reach_is_refused(host):
    with pytest.raises(ConfigError, match="other machines") as caught:
        async with EnvMCPServer(Workshop()).serve_http(host=host, port=0):
            pass

    assert "insecure" in caught.value.hint


async def test_names_are_checked_at_an_open_address_too():
    server = EnvMCPServer(Workshop())
    how = {"host": "0.0.0.0", "port": 0, "insecure": True, "allowed_hosts": ["box.example"]}

    async with server.serve_http(**how) as front:
        url = front.url.replace("0.0.0.0", "127.0.0.1")
        named = await post(url, host="box.example:80")
        numbered = [await post(url, host=host) for host in ("192.0.2.1:80", "[2001:db8::1]:80")]
        other = [await post(url, host=host) for host in ("evil.example", "1.evil.example:80")]
        origin = await post(url, host="192.0.2.1", origin="https://evil.example")

    assert (named, numbered, other, origin) == (400, [400, 400], [421, 421], 403)


async def test_at_one_address_it_is_called_by_that_one_only():
    async with EnvMCPServer(Workshop()).serve_http(port=0) as front:
        assert await post(front.url, host="192.0.2.1:80") == 421


async def test_a_port_that_is_taken_is_said():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"listen on 127.0.0.1:{port}"):
            async with EnvMCPServer(Workshop()).serve_http(port=port):
                pass


@pytest.mark.parametrize("era", ERAS)
async def test_what_is_turned_off_is_refused_over_http_too(era):
    async with asking("http", era, invoke_llm=True) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        with pytest.raises(MCPError, match="'env_execute_tool' is hidden from this client"):
            await client.call_tool("env_execute_tool", QUESTIONS["env_execute_tool"])

    assert len(names) == 9
    assert "env_execute_tool" not in names


@pytest.mark.parametrize("era", ERAS)
async def test_leaving_the_block_ends_the_calls_that_hang(era):
    world = Workshop()

    async def hold_on(url):
        with suppress(Exception):  # it is cut off, in one way or another
            async with Client(url, mode=era) as client:
                await client.call_tool("env_execute_tool", {"name": "hang"})

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            async with EnvMCPServer(world, **ALL).serve_http(port=0) as front:
                tasks.start_soon(hold_on, front.url)
                await world.hanging.wait()
            await world.given_up.wait()

    host, port = urlsplit(front.url).netloc.split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def started():
    config = program()
    return subprocess.Popen(
        [config.command, *config.args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


INITIALIZE = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
    b'"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}\n'
)


def test_it_ends_when_its_input_does_and_gives_the_output_back():
    with started() as process:
        output, _ = process.communicate(b"no json\n\n" + INITIALIZE, timeout=PATIENCE)

    first, *_, last = output.splitlines()
    assert process.returncode == 0
    assert b"Start with env_get_description" in output
    assert last == b"served"
    assert first != last


def test_sigterm_ends_it_although_nothing_is_read():
    with started() as process:
        process.stdin.write(INITIALIZE)
        process.stdin.flush()
        assert b"Start with env_get_description" in process.stdout.readline()

        process.send_signal(signal.SIGTERM)

        assert process.wait(timeout=PATIENCE) == 0
        assert process.stdout.read() == b"served\n"


@pytest.mark.parametrize("way", ["http", "direct"])
async def test_clients_see_the_name_and_version_it_was_given(way):
    async with asking(way, ERAS[0], name="workshop", version="7.1") as client:
        info = client.server_info

    assert (info.name, info.version) == ("workshop", "7.1")
