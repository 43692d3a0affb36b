"""A server of the Python SDK 1.x with its experimental tasks, over stdio."""

import anyio
from mcp import types
from mcp.server import Server
from mcp.server.stdio import stdio_server

server = Server("sdk1")
server.experimental.enable_tasks()
WHO = {"type": "object", "properties": {"name": {"type": "string"}}}


@server.list_tools()
async def list_tools():
    execution = types.ToolExecution(taskSupport="required")
    return [
        types.Tool(name=name, inputSchema={"type": "object"}, execution=execution)
        for name in ("work", "ask", "wait")
    ]


@server.call_tool()
async def call_tool(name, arguments):
    context = server.request_context
    context.experimental.validate_task_mode("required")

    async def work(task):
        match name:
            case "work":
                await task.update_status("half of it")
                text = f"worked on {arguments['number']}"
            case "ask":
                answer = await task.elicit(message="who are you?", requestedSchema=WHO)
                text = f"{answer.action} {answer.content['name']}"
            case _:
                await anyio.sleep(1000)
                text = "waited"
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

    return await context.experimental.run_task(work)


async def main():
    async with stdio_server() as (receive, send):
        await server.run(receive, send, server.create_initialization_options())


anyio.run(main)
