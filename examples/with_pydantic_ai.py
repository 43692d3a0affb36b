"""The tools of a hub in Pydantic AI; its model is a script on a loopback port."""

import sys
from typing import Any

import anyio
from pydantic_ai import Agent, Tool
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from scripted_model import Say, Use, scripted_model

from multitap import Settings, StdioServer, ToolRegistry, open_hub
from multitap.tools import HubTools


def hooked_up(registry: ToolRegistry) -> list[Any]:
    offer = registry.for_openai()

    def tool(name: str, description: str, parameters: dict[str, Any]) -> Tool:
        async def use(**arguments: Any) -> str:
            return (await offer.execute(offer.call("", name, arguments))).text

        return Tool.from_schema(use, name, description, parameters)

    return [tool(**one["function"]) for one in offer.tools]


async def main() -> None:
    calculator = StdioServer(
        command=sys.executable, args=("-m", "multitap.demo.servers.calculator")
    )
    script = [Say(uses=(Use("calculator_add", {"a": 2, "b": 40}),)), Say("It is 42.")]
    async with (
        scripted_model(script) as scripted,
        open_hub(Settings(servers={"calculator": calculator})) as hub,
    ):
        await hub.settled()
        registry = ToolRegistry()
        registry.attach(HubTools(hub))
        provider = OpenAIProvider(base_url=scripted.openai_url, api_key="none")
        agent = Agent(OpenAIChatModel("scripted", provider=provider), tools=hooked_up(registry))
        result = await agent.run("What is 2 + 40?")
        print("a tool said:", scripted.requests[-1]["messages"][-1]["content"])
        print("the agent says:", result.output)


anyio.run(main)
