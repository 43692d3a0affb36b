"""Five real servers, one broken and one that hangs: what works is there at once."""

import anyio

from multitap import Settings, StdioServer, open_hub

COMMANDS = {
    "everything": "npx -y @modelcontextprotocol/server-everything",
    "filesystem": "npx -y @modelcontextprotocol/server-filesystem .",
    "memory": "npx -y @modelcontextprotocol/server-memory",
    "time": "uvx mcp-server-time",
    "git": "uvx mcp-server-git",
    "broken": "no-such-program",
    "hanging": "sleep 1000",
}
GOOD = 5


async def main() -> None:
    programs = {name: command.split() for name, command in COMMANDS.items()}
    servers = {name: StdioServer(command=p[0], args=p[1:]) for name, p in programs.items()}
    async with open_hub(Settings(servers=servers)) as hub:
        with anyio.move_on_after(45), hub.events.subscribe() as events:
            async for _ in events:
                if len({tool.server for tool in hub.tools()}) == GOOD:
                    break
        print(*(tool.name for tool in hub.tools()), sep="\n")
        for server in hub.snapshot().servers:
            print(server.name, server.state, server.failure or f"{server.tools} tools", sep=": ")


anyio.run(main)
