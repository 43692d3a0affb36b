"""The real gateway in a process of its own, and what its operator and its clients see of it."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio

from tests.waiting import PATIENCE, until_told
from tests.zoo.modes import command

VERSION = "2026-07-28"
_META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "neighbour", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
PROGRAM, *ARGUMENTS = command("good")
GOOD = {"command": PROGRAM, "args": ARGUMENTS}
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGESIZE")


class Gateway:
    """One `multitap serve --http`, seen from outside."""

    def __init__(self, process, url, http):
        self.process = process
        self.url = url
        self._http = http

    def cpu(self):
        """Seconds of CPU that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def memory(self):
        """Bytes that it holds."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * _PAGE

    async def call(self, tool, **arguments):
        params = {"name": tool, "arguments": arguments, "_meta": _META}
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": "tools/call",
            "Mcp-Name": tool,
        }
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        async with self._http.post(f"{self.url}/mcp", json=message, headers=headers) as response:
            return await response.text()

    async def keep_calling(self, tool):
        """Call a tool again and again, whatever it answers."""
        while True:
            await self.call(tool)
            await anyio.sleep(0.01)  # its pace

    async def health(self):
        async with self._http.get(f"{self.url}/health") as response:
            return response.status

    async def until_up(self):
        """Wait until the good server answers."""

        async def ask():
            return "42.0" in await self.call("good_add", a=2.5, b=39.5)

        await until_told(ask)

    async def end(self, patience):
        """Ask it to end, as a service manager would; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        with anyio.fail_after(patience):
            return await self.process.wait()


@asynccontextmanager
async def running(folder, servers):
    """A gateway with a good server and the given ones, from a configuration file."""
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"good": GOOD, **servers}}))
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "multitap", "-c", str(file), "serve", "--http", f"127.0.0.1:{port}",
        env={**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")},
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession() as http:
            gateway = Gateway(process, f"http://127.0.0.1:{port}", http)
            await until_listening(port)
            yield gateway
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until_listening(port):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await anyio.sleep(0.02)  # refused at once while nobody listens
        else:
            writer.close()
            await writer.wait_closed()
            return
    raise TimeoutError(f"nobody listens on port {port}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
