"""The tools of a hub in the OpenAI Agents SDK; its model is a script on a loopback port."""

import sys
from typing import Any

import anyio
from agents import Agent, FunctionTool, OpenAIChatCompletionsModel, RunConfig, Runner
from openai import AsyncOpenAI
from scripted_model import Say, Use, scripted_model

from multitap import Settings, StdioServer, ToolRegistry, open_hub
from multitap.tools import HubTools


def hooked_up(registry: ToolRegistry) -> list[Any]:
    offer = registry.for_openai()

    async def use(context: Any, arguments: str) -> str:
        call = offer.call(context.tool_call_id, context.tool_name, arguments)
        return (await offer.execute(call)).text

    return [
        FunctionTool(
            one["name"], one["description"], one["parameters"], use, strict_json_schema=False
        )
        for one in (tool["function"] for tool in offer.tools)
    ]


async def main() -> None:
    calculator = StdioServer(
        command=sys.executable, args=("-m", "multitap.demo.servers.calculator")
    )
    script = [Say(uses=(Use("calculator_add", {"a": 2, "b": 40}),)), Say("It is 42.")]
    async with (
        scripted_model(script) as scripted,
        open_hub(Settings(servers={"calculator": calculator})) as hub,
        AsyncOpenAI(base_url=scripted.openai_url, api_key="none") as client,
    ):
        await hub.settled()
        registry = ToolRegistry()
        registry.attach(HubTools(hub))
        model = OpenAIChatCompletionsModel("scripted", client)
        agent = Agent("clerk", tools=hooked_up(registry), model=model)
        quiet = RunConfig(tracing_disabled=True)
        result = await Runner.run(agent, "What is 2 + 40?", run_config=quiet)
        print("a tool said:", scripted.requests[-1]["messages"][-1]["content"])
        print("the agent says:", result.final_output)


anyio.run(main)
