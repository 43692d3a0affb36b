"""A gateway as one would write it with the SDK's typed client and server."""

import json
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import uvicorn
from mcp import Client, StdioServerParameters
from mcp.server.lowlevel import Server
from mcp_types import ListToolsResult


class Gateway:
    """The tools of all servers, by the name that clients see."""

    def __init__(self, servers):
        self._servers = servers
        self._tools = {}
        self._owners = {}

    @asynccontextmanager
    async def connected(self, _server):
        async with AsyncExitStack() as stack:
            for name, server in self._servers.items():
                client = await stack.enter_async_context(Client(_target(server)))
                for tool in (await client.list_tools()).tools:
                    seen = tool.name if len(self._servers) == 1 else f"{name}_{tool.name}"
                    self._owners[seen] = client, tool.name
                    self._tools[seen] = tool.model_copy(update={"name": seen})
            yield {}

    async def list_tools(self, _context, _params):
        return ListToolsResult(tools=list(self._tools.values()), ttl_ms=0, cache_scope="private")

    async def call_tool(self, _context, params):
        client, name = self._owners[params.name]
        return await client.call_tool(name, params.arguments)

    def input_schema(self, name):
        return self._tools[name].input_schema if name in self._tools else None


def _target(server):
    if "url" in server:
        return server["url"]
    return StdioServerParameters(command=server["command"], args=server["args"])


def main(port, config):
    gateway = Gateway(json.loads(Path(config).read_text())["mcpServers"])
    server = Server(
        "sdk",
        lifespan=gateway.connected,
        on_list_tools=gateway.list_tools,
        on_call_tool=gateway.call_tool,
        get_tool_input_schema=gateway.input_schema,
    )
    app = server.streamable_http_app(json_response=True, max_sessions=None)
    uvicorn.run(
        app,
        port=int(port),
        loop="uvloop",
        http="httptools",
        log_level="warning",
        timeout_keep_alive=60,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
