"""SPEC-07's registry, and its servers while they run."""

import sys

import anyio

from multitap import McpServerRegistry


async def main() -> None:
    registry = McpServerRegistry()
    command = [sys.executable, "-m", "multitap.demo.servers.calculator"]
    registry.register("calculator", {"type": "local", "command": command})
    registry.register("missing", {"type": "local", "command": ["no-such-program"]})
    print([f"{info.name} is {info.status}" for info in registry.list()])

    async with registry.connected() as hub:  # from here on the status is what the connection says
        await hub.settled()
        for info in registry.list():
            print(info.name, "is", info.status, "with", info.tool_count, "tools;", info.error)


anyio.run(main)
