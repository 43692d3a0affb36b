"""A client of FastMCP with its extension for tasks: `fastmcp_client.py URL SERVER…`.

It calls the tools of each server, and prints what it got.
"""

import asyncio
import json
import sys

from fastmcp import Client
from fastmcp_tasks import call_tool_task


async def answer(message, response_type, params, context):
    return {"name": "Ada"}


async def main(url, *servers):
    reports = {}
    async with Client(url, elicitation_handler=answer) as client:
        for server in servers:
            work = await client.call_tool(f"{server}_work", {"number": 7})
            asked = await client.call_tool(f"{server}_ask", {})
            waiting = await call_tool_task(client, f"{server}_wait", {})
            await waiting.cancel()
            async with asyncio.timeout(20):
                while (status := (await waiting.status()).status) in {"working", "input_required"}:
                    await asyncio.sleep(0.05)
            reports[server] = {
                "work": work.content[0].text,
                "ask": asked.content[0].text,
                "wait": status,
            }
    print(json.dumps(reports))


asyncio.run(main(*sys.argv[1:]))
