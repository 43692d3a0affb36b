"""A gateway at work, with servers behind it and clients in front."""

import asyncio
import os
import sys
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from bench.clients import pipe_command, web_server
from bench.gateway import processes
from bench.gateway.dialects import decode, encode
from bench.gateway.gateways import Gateway, Setup, free_port
from bench.measure import AFTERMATH

ROOT = Path(__file__).parent.parent.parent
LIMIT = 30.0
"""Seconds in which a gateway has to be up."""
GRACE = 3.0
"""Seconds in which it has to be down."""
AGAIN = 0.02


class Failed(Exception):
    """A gateway that did not do what it was asked; says why, in a few words."""

    def __init__(self, why):
        super().__init__(why.replace("|", "/")[:160])


class Clients:
    """The load process, which does what it is told."""

    def __init__(self, process):
        self._process = process

    async def order(self, do, **details):
        line = encode({"do": do, **details})
        self._process.stdin.write(line + b"\n")
        reply = decode(await self._process.stdout.readline())
        if "error" in reply:
            raise Failed(reply["error"])
        return reply


@asynccontextmanager
async def clients():
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.gateway.load"),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    try:
        yield Clients(process)
    finally:
        process.stdin.close()
        with anyio.CancelScope(shield=True), suppress(ProcessLookupError):
            with anyio.move_on_after(GRACE):
                await process.wait()
            process.kill()


@dataclass(frozen=True, slots=True)
class Running:
    gateway: Gateway
    setup: Setup
    process: asyncio.subprocess.Process
    good: tuple[str, ...]
    """The servers that are asked."""

    @property
    def cpu(self):
        return processes.cpu(self.process.pid)

    @property
    def resident(self):
        return processes.resident(self.process.pid)

    @property
    def many(self):
        return len(self.setup.servers) > 1

    def tool(self, tool, server=None):
        return self.gateway.name_of(server or self.good[0], tool, many=self.many)

    def door(self, era):
        """Where and how it is asked."""
        own = self.gateway.dialect_of_many if self.many else self.gateway.dialect
        path = ",".join(self.good) if own in {"openapi", "path-per-server"} else "/mcp"
        return {"port": self.setup.port, "dialect": own or era, "path": path}

    async def open(self, asking, era, count, *, name=None):
        """Let clients in as soon as a call to each good server gets its answer."""
        name = name or f"{self.gateway.key} {era}"
        ends = time.perf_counter() + LIMIT
        while True:
            try:
                await self._try(asking, name, count, era, ends)
            except Failed as failed:
                if self.process.returncode is not None or time.perf_counter() > ends:
                    raise self.failed(str(failed)) from failed
            else:
                return name
            await anyio.sleep(AGAIN)

    async def _try(self, asking, name, count, era, ends):
        def soon():
            left = ends - time.perf_counter()
            return {"name": name, "longest": max(1.0, left)}  # long enough to fail for a reason

        await asking.order("open", clients=count, **soon(), **self.door(era))
        for server in self.good:
            tool = self.tool("echo", server)
            await asking.order("calls", tool=tool, calls=1, parallel=1, **soon())

    def failed(self, how):
        """With the gateway's last words."""
        lines = (self.setup.folder / "log").read_text(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        ended = self.process.returncode
        state = "" if ended is None else f"ended with {ended}: {said[-1] if said else 'no word'}; "
        return Failed(f"{state}{how}")

    async def cost(self, asking, do, **details):
        """Seconds of CPU for what the clients do, and what they tell of it."""
        before = self.cpu
        reply = await asking.order(do, **details)
        await anyio.sleep(AFTERMATH)
        return self.cpu - before, reply


@asynccontextmanager
async def running(gateway, servers, good=None, *, folder=None):
    """The gateway's process; whether it is of any use is another question.

    What it keeps is in the folder, if one is given.
    """
    with TemporaryDirectory(ignore_cleanup_errors=True) as own:
        folder = folder or Path(own)
        setup = Setup(servers, free_port(), folder)
        command = await anyio.to_thread.run_sync(gateway.command, setup)
        with (setup.folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=ROOT,
                env=_environment(folder),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield Running(gateway, setup, process, tuple(good or servers))
        finally:
            with anyio.CancelScope(shield=True):
                await _stop(process)


async def _stop(process):
    members = processes.family(process.pid)
    with suppress(ProcessLookupError):
        process.terminate()
    with anyio.move_on_after(GRACE):
        await process.wait()
    processes.end(members)
    await process.wait()


def _environment(folder):
    """Ours, but what it keeps, it keeps in the folder."""
    homes = ("CONFIG", "STATE", "DATA", "CACHE")
    return {
        **os.environ,
        **{f"XDG_{home}_HOME": f"{folder}/{home.lower()}" for home in homes},
        "XDG_RUNTIME_DIR": folder,
    }


@asynccontextmanager
async def upstream(way, era="handshake", *, tools=2, tally=None):
    """A cheap server: its command, or the address where it runs."""
    more = [str(tally)] if tally else []
    if way == "stdio":
        yield [*pipe_command(era, tools), *more]
    else:
        async with web_server(era, str(tools), *more) as url:
            yield url
