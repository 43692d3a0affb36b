"""Five real servers, one broken and one that hangs: what works is there at once, and stays."""

import os
import signal

import anyio

from multitap import Hub, Settings, StdioServer, open_hub
from multitap.events import LinkChanged

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
    servers = {
        name: StdioServer(
            command=program, args=tuple(args), connect_timeout=10 if name in BAD else 60
        )
        for name, (program, *args) in programs.items()
    }
    async with open_hub(Settings(servers=servers)) as hub, anyio.create_task_group() as tasks:
        tasks.start_soon(tell, hub)
        processes = await running(hub)
        print(*(tool.name for tool in hub.tools), sep="\n")
        for number in (signal.SIGKILL, signal.SIGSTOP):
            for process in processes:
                os.kill(process, number)
            processes = await running(hub, other_than=processes)
        tasks.cancel_scope.cancel()


async def tell(hub: Hub) -> None:
    """Say in plain words what happens to which server."""
    with hub.events.subscribe() as events:
        async for event in events:
            if isinstance(event, LinkChanged):
                print(
                    event.server, "is", event.state, f"({event.failure})" if event.failure else ""
                )


async def running(hub: Hub, other_than: frozenset[int] = frozenset()) -> frozenset[int]:
    """The processes of all good servers, once they are up."""
    with hub.events.subscribe() as events, anyio.fail_after(60):
        async for _ in events:
            servers = [server for server in hub.snapshot().servers if server.name in GOOD]
            processes = frozenset(server.pid for server in servers if server.pid is not None)
            if len(processes) == len(GOOD) and not processes & other_than:
                return processes
    raise AssertionError("a hub's events end with the hub")


anyio.run(main)
