"""A stdio server as people write them: the SDK, and with it half a second of imports."""

from mcp.server import MCPServer

server = MCPServer("bench")


@server.tool()
def echo(text: str) -> str:
    return text


if __name__ == "__main__":
    server.run()
