"""An agent with a Python function and two real servers, one of which is killed in the middle.

The model is a script on a loopback port, so that this runs anywhere: it speaks OpenAI's protocol,
and is told and asked all that a real one would be. Put your own into `ModelConfig` instead.
"""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
from mcp import Client
from scripted_model import Answer, Say, Use, scripted_model

from multitap import AgentEngine, BaseEnvironment, EnvMCPServer, Settings, StdioServer
from multitap.agent.engine import Finished, ToolCalled, ToolFinished
from multitap.config import ModelConfig

QUESTION = "What is in note.txt, how many words is that, and how late is it in Tokyo?"


def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


class Desk(BaseEnvironment):
    """A folder, a clock and a function."""

    settle_timeout = 60  # `npx` and `uvx` may have to download first

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.register_tool(count_words)

    def base_settings(self) -> Settings:
        npx = ("-y", "@modelcontextprotocol/server-filesystem", str(self.folder))
        servers = {
            "filesystem": StdioServer(command="npx", args=npx),
            "time": StdioServer(command="uvx", args=("mcp-server-time",)),
        }
        return Settings(servers=servers)


async def main(note: Path) -> None:
    async with scripted_model(script(note)) as model, Desk(note.parent) as desk:
        print("the model is a script at", model.openai_url)
        await ask(desk, ModelConfig(name="scripted", base_url=model.openai_url))
        await look_from_outside(desk)


async def ask(desk: Desk, model: ModelConfig) -> None:
    """Have the question answered, and kill a server as soon as the counting begins."""
    agent = AgentEngine(desk.tools_for(), model=model, instructions="Use your tools.")
    print("you:", QUESTION)
    async with agent.run(QUESTION) as steps:
        async for step in steps:
            match step:
                case ToolCalled(call):
                    print("  calls", call.name, dict(call.arguments))
                    if call.name == "count_words":
                        kill(desk, "filesystem")
                case ToolFinished(call, result):
                    print("  from", call.name, "came", result.text.splitlines()[0])
                case Finished(reason, usage, text):
                    print(f"agent: {text}\n({reason}, {usage.total} tokens)")
                case _:
                    pass  # the pieces of the text, and questions for approval


def kill(desk: Desk, server: str) -> None:
    process = desk.hub.snapshot().server(server).pid
    if process is not None:
        os.kill(process, signal.SIGKILL)
        print(f"  (the {server} server is killed)")


async def look_from_outside(desk: Desk) -> None:
    """See the same environment as any other MCP client would."""
    server = EnvMCPServer(desk, execute_tool=True)
    async with server.serve_http(port=0) as front, Client(front.url or "") as client:
        listed = await client.call_tool("env_list_tools", {})
        print("another client sees:", *names(listed.structured_content))
        arguments = {"name": "count_words", "arguments": {"text": "it works"}}
        counted = await client.call_tool("env_execute_tool", arguments)
        print("and counts:", (counted.structured_content or {})["output"])


def names(answer: Any) -> list[str]:
    return [tool["name"] for tool in answer["tools"]]


def script(note: Path) -> Iterator[Answer]:
    """What the model says: it looks, counts, and looks again until it is sure."""
    read = Use("filesystem_read_text_file", {"path": str(note)})
    yield Say("Let me look.", (read, Use("time_get_current_time", {"timezone": "Asia/Tokyo"})))
    yield lambda body: Say(uses=(Use("count_words", {"text": told(body)[0]}), read))
    while True:
        yield lambda body: answer(told(body)) or Say("Once more.", (read,))


def answer(results: list[str]) -> Say | None:
    """The answer, once the file could be read again."""
    if results[-1].startswith("error"):
        return None
    text, time, count, *_ = results
    now = msgspec.json.decode(time)["datetime"]
    return Say(f"It says {text!r}, which is {count} words. In Tokyo it is {now}.")


def told(body: dict[str, Any]) -> list[str]:
    """What the tools answered, as the model sees it."""
    return [message["content"] for message in body["messages"] if message["role"] == "tool"]


with tempfile.TemporaryDirectory() as folder:
    file = Path(folder).resolve() / "note.txt"
    file.write_text("remember the milk")
    anyio.run(main, file)
