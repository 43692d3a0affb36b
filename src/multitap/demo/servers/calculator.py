"""A calculator: results as text and as data, and errors in words."""

from statistics import fmean

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

server = MCPServer("calculator", version="1.0")
_PURE = ToolAnnotations(read_only_hint=True)  # a lost call may be repeated


@server.tool(annotations=_PURE)
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@server.tool(annotations=_PURE)
def divide(a: float, b: float) -> float:
    """Divide one number by another."""
    if b == 0:
        raise ToolError(f"{a:g} cannot be divided by zero")
    return a / b


@server.tool(annotations=_PURE)
def mean(numbers: list[float]) -> float:
    """Return the mean of a list of numbers."""
    return fmean(numbers)


if __name__ == "__main__":
    server.run()
