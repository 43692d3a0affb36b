"""The gateway on pipes, started by a client that means harm."""

import json
import subprocess
import sys
from contextlib import asynccontextmanager

import anyio

from tests.gateway.hostile.raw import OLD, PATIENCE, message
from tests.gateway.hostile.stage import UPSTREAM


class Pipes:
    """One such gateway."""

    def __init__(self, process):
        self.process = process
        self._rest = b""

    async def send(self, *said):
        lines = (one if isinstance(one, bytes) else json.dumps(one).encode() for one in said)
        await self.process.stdin.send(b"".join(line + b"\n" for line in lines))

    async def told(self):
        """The next message."""
        with anyio.fail_after(PATIENCE):
            while b"\n" not in self._rest:
                self._rest += await self.process.stdout.receive()
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    async def asks(self, said):
        """The answer to a request."""
        await self.send(said)
        while "method" in (told := await self.told()):
            continue
        return told

    async def ended(self):
        """Its exit code."""
        with anyio.fail_after(PATIENCE):
            return await self.process.wait()


@asynccontextmanager
async def open_pipes(path):
    config = path / "multitap.toml"
    command = json.dumps(sys.executable)
    arguments = json.dumps(["-I", "-S", str(UPSTREAM)])
    state = json.dumps(str(path))
    server = f"[servers.counts]\ncommand = {command}\nargs = {arguments}\n"
    config.write_text(f"state_dir = {state}\n{server}")
    serve = [sys.executable, "-m", "multitap", "serve", "-c", str(config)]
    async with await anyio.open_process(serve, stderr=subprocess.DEVNULL) as process:
        pipes = Pipes(process)
        info = {"name": "raw", "version": "1"}
        params = {"protocolVersion": OLD, "capabilities": {}, "clientInfo": info}
        assert "result" in await pipes.asks(message(0, "initialize", **params))
        await pipes.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        yield pipes
