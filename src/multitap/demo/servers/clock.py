"""A clock: one tool that answers at once, one that takes its time and reports progress."""

from datetime import datetime, timedelta, timezone

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("clock", version="1.0")


@server.tool()
def now(hours_east: float = 0) -> str:
    """Tell the time; `hours_east` is the offset from UTC in hours."""
    zone = timezone(timedelta(hours=hours_east))
    return datetime.now(zone).isoformat(timespec="seconds")


@server.tool()
async def countdown(seconds: int, context: Context) -> str:
    """Count down, and report progress every second."""
    for passed in range(seconds):
        await context.report_progress(passed, seconds, f"{seconds - passed} to go")
        await anyio.sleep(1)
    return "lift-off"


if __name__ == "__main__":
    server.run()
