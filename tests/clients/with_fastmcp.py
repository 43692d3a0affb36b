"""A client on FastMCP: lists, calls, and prints what came of it."""

import asyncio
import json
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport


async def main(server):
    command = server.get("command")
    target = StdioTransport(command[0], command[1:]) if command else server["url"]
    async with Client(target) as client:
        listed = [tool.name for tool in await client.list_tools()]
        result = await client.call_tool("keeper_add", {"a": 2, "b": 3})
    print(json.dumps([listed, result.structured_content["result"]]))


asyncio.run(main(json.loads(sys.argv[1])))
