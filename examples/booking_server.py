"""A server that asks the person in the middle of a call; used by the examples beside it."""

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

server = MCPServer("booking")


class Seat(BaseModel):
    window: bool


@server.tool()
async def book(flight: str, context: Context) -> str:
    """Book a seat on a flight."""
    answer = await context.elicit(f"A seat at the window on {flight}?", Seat)
    if answer.action != "accept":
        return "nothing is booked"
    return f"{flight}: a seat {'at the window' if answer.data.window else 'in the aisle'}"


if __name__ == "__main__":
    server.run()
