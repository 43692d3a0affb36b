"""A clock: one tool that answers at once, one that takes its time and reports progress."""

from datetime import datetime, timedelta, timezone

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("clock", version="1.0")


@server.tool()
def now(hours_east: float = 0) -> str:
    """The time, as many hours east of Greenwich as asked."""
    zone = timezone(timedelta(hours=hours_east))
    return datetime.now(zone).isoformat(timespec="seconds")


@server.tool()
async def countdown(seconds: int, context: Context) -> str:
    """Wait, and report every second of it."""
    for passed in range(seconds):
        await context.report_progress(passed, seconds, f"{seconds - passed} to go")
        await anyio.sleep(1)
    return "lift-off"


if __name__ == "__main__":
    server.run()
