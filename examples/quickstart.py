"""One bundled server, one call."""

import sys

import anyio

from multitap import Settings, StdioServer, open_hub

calculator = StdioServer(command=sys.executable, args=("-m", "multitap.demo.servers.calculator"))


async def main() -> None:
    async with open_hub(Settings(servers={"calculator": calculator})) as hub:
        await hub.settled()
        for tool in hub.tools:
            print(tool.name, "-", tool.description)

        result = await hub.call("calculator_add", {"a": 2, "b": 40})
        print(result.text)


anyio.run(main)
