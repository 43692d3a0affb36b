"""The tools of a hub in LangGraph; its model is a script on a loopback port."""

import sys
from typing import Any

import anyio
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from scripted_model import Say, Use, scripted_model

from multitap import Settings, StdioServer, ToolRegistry, open_hub
from multitap.tools import HubTools


def hooked_up(registry: ToolRegistry) -> list[Any]:
    offer = registry.for_openai()

    def tool(name: str, description: str, parameters: dict[str, Any]) -> StructuredTool:
        async def use(**arguments: Any) -> str:
            return (await offer.execute(offer.call("", name, arguments))).text

        return StructuredTool(
            name=name, description=description, args_schema=parameters, coroutine=use
        )

    return [tool(**one["function"]) for one in offer.tools]


def graph(model: ChatOpenAI, tools: list[Any]) -> Any:
    """A model that uses tools until it has its answer."""

    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.bind_tools(tools).ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState).add_node("think", think).add_node(ToolNode(tools))
    builder.add_edge(START, "think").add_edge("tools", "think")
    return builder.add_conditional_edges("think", tools_condition).compile()


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
        model = ChatOpenAI(model="scripted", base_url=scripted.openai_url, api_key="none")
        agent = graph(model, hooked_up(registry))
        state = await agent.ainvoke({"messages": [("user", "What is 2 + 40?")]})
        print("a tool said:", scripted.requests[-1]["messages"][-1]["content"])
        print("the agent says:", state["messages"][-1].content)


anyio.run(main)
