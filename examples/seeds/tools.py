"""A function and the tools of a server, in one set."""

import sys

import anyio

from multitap import Settings, StdioServer, ToolDef, ToolRegistry, open_hub
from multitap.tools import HubTools

calculator = StdioServer(command=sys.executable, args=("-m", "multitap.demo.servers.calculator"))


def shout(text: str) -> str:
    """The text in capitals."""
    return text.upper()


async def main() -> None:
    registry = ToolRegistry([ToolDef.of(shout)])
    async with open_hub(Settings(servers={"calculator": calculator})) as hub:
        await hub.settled()
        registry.attach(HubTools(hub))
        for tool in registry.list():
            print(tool.name, "-", tool.description)

        print((await registry.execute("shout", {"text": "hello"})).output)
        print((await registry.execute("calculator_divide", {"a": 1, "b": 0})).error)


anyio.run(main)
