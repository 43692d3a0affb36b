"""A model with the tools of your servers, without an engine: OpenAI's and Anthropic's clients."""

import asyncio
import sys

from anthropic import AsyncAnthropic
from anthropic.types import MessageParam
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from multitap import StdioServer, SyncHub, open_hub
from multitap.config import Settings

calculator = StdioServer(command=sys.executable, args=["-m", "multitap.demo.servers.calculator"])
settings = Settings(servers={"calculator": calculator})


def ask_openai(question: str, model: str = "gpt-5") -> str:
    """Plain functions: `SyncHub` and OpenAI's client."""
    client = OpenAI()
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    with SyncHub(settings) as hub:
        hub.settled()
        while True:
            offer = hub.tools.for_openai()
            answer = client.chat.completions.create(
                model=model, messages=messages, tools=offer.tools
            )
            message = answer.choices[0].message
            calls = offer.calls(message)
            if not calls:
                return message.content or ""
            messages.append({"role": "assistant", "tool_calls": message.model_dump()["tool_calls"]})
            messages += offer.messages([(call, offer.execute(call)) for call in calls])


async def ask_anthropic(question: str, model: str = "claude-sonnet-5") -> str:
    """Coroutines: `open_hub` and Anthropic's client."""
    client = AsyncAnthropic()
    messages: list[MessageParam] = [{"role": "user", "content": question}]
    async with open_hub({"servers": {"calculator": calculator}}) as hub:
        await hub.settled()
        while True:
            offer = hub.tools.for_anthropic()
            answer = await client.messages.create(
                model=model, max_tokens=1000, messages=messages, tools=offer.tools
            )
            calls = offer.calls(answer)
            if not calls:
                return "".join(block.text for block in answer.content if block.type == "text")
            messages.append({"role": "assistant", "content": answer.content})
            messages += offer.messages([(call, await offer.execute(call)) for call in calls])


if __name__ == "__main__":
    print(ask_openai("What is 2 + 40?"))
    print(asyncio.run(ask_anthropic("What is 2 + 40?")))
