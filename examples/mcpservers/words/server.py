"""An MCP server in one file; the folder it lies in is its name."""

from mcp.server import MCPServer

server = MCPServer("words")


@server.tool()
def count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


@server.tool()
def longest(text: str) -> str:
    """Find the longest word of a text."""
    return max(text.split(), key=len, default="")


if __name__ == "__main__":
    server.run()
