"""agent-core (seed C): the server role, row by row, as other programs see an environment.

More on the Environment (C1, C17, C19) is in `tests/env`.
"""

import asyncio
import json
import sys
from pathlib import Path

import anyio
import pytest
from jsonschema_rs import validator_for
from mcp import Client

from multitap import BaseEnvironment, HttpServer, McpManager, Settings
from multitap.config import (
    Agent,
    Environment,
    Profile,
    PromptConfig,
    Serve,
    agent_core,
    load,
)
from multitap.env.client import EnvClient
from multitap.env.protocol import EnvAgent, EnvDescription, EnvProfile, LlmRequest, LogQuery
from tests.agent.models.scripted import Say, config, scripted_model
from tests.seeds.files import write
from tests.waiting import PATIENCE
from tests.zoo.modes import command

BASIC = (
    "get_description",
    "list_profiles",
    "get_profile",
    "list_agents",
    "get_agent",
    "query_logs",
)
MORE = ("list_tools", "execute_tool", "get_prompt", "invoke_llm")
PROTOCOL = Path(__file__).parents[2] / "schema" / "env-protocol.json"
QUESTIONS = {
    "get_profile": {"id": "day"},
    "get_agent": {"id": "clerk"},
    "execute_tool": {"name": "zoo_add", "arguments": {"a": 2, "b": 40}},
    "get_prompt": {"name": "hello", "arguments": {"name": "Ada"}},
    "invoke_llm": {"messages": [{"role": "user", "content": "hi"}]},
}


class Office(BaseEnvironment):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def base_settings(self):
        return Settings(
            environment=Environment(execute_tool=True, invoke_llm=True),
            model=self.model,
            agents={"clerk": Agent(allow=("zoo_*",))},
            profiles={"day": Profile(display_name="By day")},
            prompts={"hello": PromptConfig(text="Hello {name}", arguments={"name": "Who"})},
        )

    def mcp_client_config(self):
        return {"zoo": {"type": "local", "command": command("good")}}

    def mcp_server_config(self):
        return Serve(transport="http", port=0)


@pytest.fixture
async def url():
    """Where an environment that can do everything is reached."""
    async with (
        scripted_model([Say("from the model")]) as server,
        Office(config(server, "openai")) as office,
    ):
        yield (await office.start_mcp_server()).url
    await asyncio.get_running_loop().shutdown_default_executor()  # the model's client used it


async def answers(url, names):
    async with Client(url) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        given = {
            name: await client.call_tool(f"env/{name}", QUESTIONS.get(name, {})) for name in names
        }
    assert {f"env_{name}" for name in names} <= listed
    assert not [name for name, answer in given.items() if answer.is_error]
    return {name: answer.structured_content for name, answer in given.items()}


async def test_c2_others_ask_for_description_profiles_agents_and_logs(url):
    given = await answers(url, BASIC)

    assert given["get_description"]["id"] == "Office"
    assert given["list_profiles"]["profiles"] == [given["get_profile"]]
    assert given["get_profile"]["displayName"] == "By day"
    assert given["list_agents"]["agents"] == [given["get_agent"]]
    assert "zoo_add" in given["get_agent"]["tools"]
    assert "connected" in {entry["text"] for entry in given["query_logs"]["entries"]}


async def test_c3_others_use_tools_prompts_and_the_model(url):
    given = await answers(url, MORE)

    assert "zoo_add" in {tool["name"] for tool in given["list_tools"]["tools"]}
    assert (given["execute_tool"]["success"], given["execute_tool"]["output"]) == (True, "42")
    assert given["get_prompt"]["messages"][0]["text"] == "Hello Ada"
    assert given["invoke_llm"]["text"] == "from the model"


SERVED = """
import anyio
from multitap import BaseEnvironment, McpManager

async def main():
    manager = McpManager()
    async with BaseEnvironment() as environment:
        front = await manager.start_server({"enabled": True}, environment)
        await front.closed.wait()
        await manager.stop_server()

anyio.run(main)
"""


async def test_c4_without_a_transport_it_is_served_over_the_pipes(home, project, where):
    folder = home / ".config" / "tong_work" / "agent-core" / "environments" / "dev"
    write(folder / "config.jsonc", {"mcpServer": {"enabled": True}})
    program = write(project / "served.py", SERVED)
    manager = McpManager()
    with anyio.fail_after(PATIENCE):
        await manager.connect_client(
            "other", {"type": "local", "command": [sys.executable, str(program)]}
        )
        tools = {tool.name: tool for tool in manager.get_tools()}
        described = await tools["other_env_get_description"].execute({})
        await manager.close()

    assert load(agent_core(where, "dev")).settings.serve.transport == "stdio"
    assert Serve().transport == "stdio"
    assert described.structured["id"] == "BaseEnvironment"


async def test_c4_it_is_served_over_streamable_http_in_both_eras(url):
    for mode in ("legacy", "2026-07-28"):
        async with Client(url, mode=mode) as client:
            described = await client.call_tool("env_get_description", {})

        assert described.structured_content["id"] == "Office"


async def test_c23_the_client_of_the_protocol_answers_with_typed_values(url):
    async with EnvClient.connect(HttpServer(url=url)) as env:
        description = await env.get_description()
        (profile,) = await env.list_profiles()
        (agent,) = await env.list_agents()
        same = (await env.get_profile("day"), await env.get_agent("clerk"))
        page = await env.query_logs(LogQuery(server="zoo"))
        tools = await env.list_tools("clerk")
        outcome = await env.execute_tool("zoo_add", {"a": 2, "b": 40})
        prompt = await env.get_prompt("hello", {"name": "Ada"})
        reply = await env.invoke_llm(LlmRequest(messages=({"content": "hi"},)))

    assert isinstance(description, EnvDescription)
    assert (type(profile), type(agent)) == (EnvProfile, EnvAgent)
    assert same == (profile, agent)
    assert {entry.server for entry in page.entries} == {"zoo"}
    assert "zoo_add" in {tool.name for tool in tools}
    assert (outcome.output, prompt.text, reply.text) == ("42", "Hello Ada", "from the model")


async def test_c24_what_is_asked_and_answered_is_as_the_file_of_the_protocol_says(url):
    protocol = json.loads(PROTOCOL.read_text())
    given = await answers(url, (*BASIC, *MORE))

    assert protocol["tools"].keys() == {f"env_{name}" for name in (*BASIC, *MORE)}
    for name, answer in given.items():
        tool = protocol["tools"][f"env_{name}"]
        for schema, value in (("input", QUESTIONS.get(name, {})), ("output", answer)):
            validator_for({**tool[schema], "$defs": protocol["$defs"]}).validate(value)
