"""A server of FastMCP with its extension for tasks, over stdio."""

import asyncio

from fastmcp import Context, FastMCP
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

WHO = {"type": "object", "properties": {"name": {"type": "string"}}}

mcp = FastMCP("fastmcp")
mcp.add_extension(TasksExtension(url="memory://"))


@mcp.tool(task=TaskConfig(mode="required"))
async def work(number: int, ctx: Context) -> str:
    await ctx.report_progress(1, 2, "half of it")
    return f"worked on {number}"


@mcp.tool(task=TaskConfig(mode="required"))
async def ask(ctx: Context) -> str | InputRequiredResult:
    if ctx.input_responses is None:
        params = ElicitRequestFormParams(message="who are you?", requested_schema=WHO)
        return InputRequiredResult(input_requests={"who": ElicitRequest(params=params)})
    answer = ctx.input_responses["who"]
    return f"{answer.action} {answer.content['name']}"


@mcp.tool(task=True)
async def wait() -> str:
    await asyncio.sleep(1000)
    return "waited"


if __name__ == "__main__":
    mcp.run("stdio", show_banner=False)
