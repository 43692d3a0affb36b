"""Five real servers, one broken and one that hangs: what works is there at once, and stays."""

import os
import signal

import anyio

from multitap import Hub, Settings, StdioServer, open_hub
from multitap.events import LinkChanged, LinkState

GOOD = {
    "everything": "npx -y @modelcontextprotocol/server-everything",
    "filesystem": "npx -y @modelcontextprotocol/server-filesystem .",
    "memory": "npx -y @modelcontextprotocol/server-memory",
    "time": "uvx mcp-server-time",
    "git": "uvx mcp-server-git",
}
BAD = {"broken": "no-such-program", "hanging": "sleep 1000"}


async def main() -> None:
    programs = {name: command.split() for name, command in (GOOD | BAD).items()}
    servers = {name: StdioServer(command=p[0], args=p[1:]) for name, p in programs.items()}
    async with open_hub(Settings(servers=servers)) as hub, anyio.create_task_group() as tasks:
        tasks.start_soon(tell, hub)
        await all_good(hub, starts=1)
        print(*(tool.name for tool in hub.tools()), sep="\n")
        for starts, number in enumerate((signal.SIGKILL, signal.SIGSTOP), start=2):
            for name in GOOD:
                os.kill(hub.snapshot().server(name).pid or 0, number)
            await all_good(hub, starts)
        tasks.cancel_scope.cancel()


async def tell(hub: Hub) -> None:
    with hub.events.subscribe() as events:
        async for event in events:
            if isinstance(event, LinkChanged):
                print(
                    event.server, "is", event.state, f"({event.failure})" if event.failure else ""
                )


async def all_good(hub: Hub, starts: int) -> None:
    with hub.events.subscribe() as events, anyio.fail_after(60):
        async for _ in events:
            good = [server for server in hub.snapshot().servers if server.name in GOOD]
            if all(s.state is LinkState.CONNECTED and s.starts >= starts for s in good):
                return


anyio.run(main)
