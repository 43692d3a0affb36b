"""A server that runs on every release of the SDK; it says which one it is on."""

# ruff: noqa: PLC0415 - what there is to import depends on the release

import asyncio
from importlib.metadata import version

SDK = version("mcp")


def on_two():
    from mcp.server import MCPServer

    server = MCPServer("any")

    @server.tool()
    def sdk() -> str:
        return SDK

    server.run()


async def on_one():
    from mcp import types
    from mcp.server import Server
    from mcp.server.stdio import stdio_server

    server = Server("any")

    @server.list_tools()
    async def list_tools():
        return [types.Tool(name="sdk", inputSchema={"type": "object", "properties": {}})]

    @server.call_tool()
    async def call_tool(name, arguments):
        return [types.TextContent(type="text", text=SDK)]

    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    if SDK.startswith("1."):
        asyncio.run(on_one())
    else:
        on_two()
