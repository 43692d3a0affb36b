"""The SDK's own server, on a loopback socket in this process."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel


class Person(BaseModel):
    name: str


def toolbox() -> MCPServer:
    server = MCPServer("toolbox")

    @server.tool()
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool()
    async def count(to: int, ctx: Context) -> str:
        for number in range(1, to + 1):
            await ctx.report_progress(number, to, f"at {number}")
        return "done"

    @server.tool()
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("who are you?", Person)
        return answer.data.name if answer.action == "accept" else answer.action

    @server.tool()
    async def announce(ctx: Context) -> str:
        await ctx.session.send_tool_list_changed()
        return "announced"

    @server.tool()
    async def sleep() -> str:
        await anyio.sleep_forever()
        return "never"

    return server


class Waiting:
    """A server whose only tool `wait` has no end, and what it noted of its calls."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.server = MCPServer("waiting")

        @self.server.tool()
        async def wait() -> str:
            self.begun += 1
            try:
                await anyio.sleep_forever()
            finally:
                self.ended += 1
            return "never"


class _Server(uvicorn.Server):
    """Says when its loop runs and the socket is open."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


@contextmanager
def served(app: Any) -> Generator[str]:
    """The address of `app`, which runs in a thread: what it leaves behind ends with its loop."""
    listener = socket.create_server(("127.0.0.1", 0))
    # uvloop would keep a pipe for as long as the process lives
    config = uvicorn.Config(app, log_level="error", loop="asyncio", timeout_graceful_shutdown=1)
    server = _Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    # or its loop would count as something that the test left behind
    assert server.is_up.wait(30)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
