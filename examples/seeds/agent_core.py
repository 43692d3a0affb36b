"""agent-core's manager: clients that come and go."""

import sys

import anyio

from multitap import McpManager


async def main() -> None:
    manager = McpManager()
    for name in ("calculator", "notebook"):
        command = [sys.executable, "-m", f"multitap.demo.servers.{name}"]
        await manager.connect_client(name, {"type": "local", "command": command, "timeout": 5000})
    print(manager.get_tools_description())

    add = next(tool for tool in manager.get_tools() if tool.name == "calculator_add")
    print((await add.execute({"a": 2, "b": 40})).output)

    await manager.disconnect_client("notebook")
    print(manager.has_client("notebook"), len(manager.get_tools()))
    await manager.close()


anyio.run(main)
