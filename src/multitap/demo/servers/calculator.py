"""A calculator: results as text and as data, and errors in words."""

from statistics import fmean

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

server = MCPServer("calculator", version="1.0")
_PURE = ToolAnnotations(read_only_hint=True)  # a lost call may be repeated


@server.tool(annotations=_PURE)
def add(a: float, b: float) -> float:
    """The sum of two numbers."""
    return a + b


@server.tool(annotations=_PURE)
def divide(a: float, b: float) -> float:
    """One number divided by another."""
    if b == 0:
        raise ToolError(f"{a:g} cannot be divided by zero")
    return a / b


@server.tool(annotations=_PURE)
def mean(numbers: list[float]) -> float:
    """The arithmetic mean of at least one number."""
    return fmean(numbers)


if __name__ == "__main__":
    server.run()
