"""A program that offers everything, and says in all of it whose key it was started with."""

import os
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import Completion, ToolAnnotations

KEY = os.environ.get("PERSONAL_KEY", "nobody")
NAME = KEY.rpartition("-")[2]
server = MCPServer("personal")


@server.tool()
async def whoami(note: str = "") -> str:
    print(f"a call of {KEY} {note}", file=sys.stderr, flush=True)
    return f"{KEY} {os.getpid()} {note}"


@server.tool(annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True))
async def key() -> str:
    return KEY


@server.tool(name=f"only_for_{NAME}")
async def own() -> str:
    return KEY


@server.tool()
async def touch(ctx: Context) -> str:
    await ctx.session.send_resource_updated("personal://inbox")
    return KEY


@server.prompt()
def greeting() -> str:
    return f"Greet {KEY}"


@server.resource("personal://inbox")
def inbox() -> str:
    return f"mail of {KEY}"


@server.resource("personal://notes/{topic}")
def notes(topic: str) -> str:
    return f"notes of {KEY} on {topic}"


@server.completion()
async def complete(ref, argument, context):
    return Completion(values=[f"{KEY}-{argument.value}"])


if __name__ == "__main__":
    server.run()
