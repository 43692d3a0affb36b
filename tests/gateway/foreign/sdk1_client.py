"""A client of the Python SDK 1.x with its experimental tasks: `sdk1_client.py URL SERVER…`.

It calls the tools of each server, and prints what it got.
"""

import asyncio
import json
import sys

from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client


async def answer(context, params):
    key = next(iter(params.requestedSchema["properties"]))
    return types.ElicitResult(action="accept", content={key: "Ada"})


async def main(url, *servers):
    reports = {}
    async with (
        streamable_http_client(url) as (receive, send, _),
        ClientSession(receive, send, elicitation_callback=answer) as session,
    ):
        await session.initialize()
        tasks = session.experimental

        async def run(name, arguments):
            made = await tasks.call_tool_as_task(name, arguments, ttl=60_000)
            async with asyncio.timeout(20):
                async for state in tasks.poll_task(made.task.taskId):
                    if state.status == "input_required":
                        break  # it is asked during `tasks/result`
                result = await tasks.get_task_result(made.task.taskId, types.CallToolResult)
            return result.content[0].text

        for server in servers:
            work = await run(f"{server}_work", {"number": 7})
            asked = await run(f"{server}_ask", {})
            made = await tasks.call_tool_as_task(f"{server}_wait", {}, ttl=60_000)
            await tasks.cancel_task(made.task.taskId)
            status = (await tasks.get_task(made.task.taskId)).status
            reports[server] = {"work": work, "ask": asked, "wait": status}
    print(json.dumps(reports))


asyncio.run(main(*sys.argv[1:]))
