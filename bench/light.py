"""What it costs to start, and what is in memory when nothing happens."""

import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from bench.clients import pipe_command
from bench.gateway.gateways import FLOOR, MULTITAP
from bench.gateway.running import AGAIN, Failed, clients, running
from bench.report import Promise, Report, milli

NOTHING = ["-c", "pass"]
COMMANDS = {
    "multitap --help": (80.0, ["-m", "multitap", "--help"]),
    "multitap status": (200.0, ["-m", "multitap", "status"]),
}
GATEWAY = 45.0
"""Megabytes."""
SETTLED = 1.0
"""Seconds after which nothing happens any more."""
LIBRARY_PROGRAM = """
import asyncio, sys
from pathlib import Path
from multitap import Settings, StdioServer, open_hub

async def main():
    server = StdioServer(command=sys.argv[1], args=tuple(sys.argv[2:]))
    async with open_hub(Settings(servers={"one": server})) as hub:
        await hub.settled()
        assert hub.catalog.tools
        print(Path("/proc/self/statm").read_text().split()[1])

asyncio.run(main())
"""
SDK_PROGRAM = """
import asyncio, sys
from pathlib import Path
from mcp import Client, StdioServerParameters

async def main():
    async with Client(StdioServerParameters(command=sys.argv[1], args=sys.argv[2:])) as client:
        assert (await client.list_tools()).tools
        print(Path("/proc/self/statm").read_text().split()[1])

asyncio.run(main())
"""


async def run(*, quick: bool) -> Report:
    rows, promises = [], []
    rounds = range(5 if quick else 15)
    least, wall = min(_once(NOTHING) for _ in rounds)
    rows.append(("`python -c pass`", milli(least), milli(wall), "", "1.0"))
    for words, (limit, arguments) in COMMANDS.items():
        cpu, wall = min(_once(arguments) for _ in rounds)
        rows.append((f"`{words}`", milli(cpu), milli(wall), "", f"{cpu / least:.1f}"))
        promises.append(Promise(f"CPU of `{words}`", limit, cpu * 1e3, " ms"))
    bare = (await _idle(FLOOR))[0]
    listed, called = await _idle(MULTITAP)
    sdk, library = _process(SDK_PROGRAM), _process(LIBRARY_PROGRAM)
    rows += [
        ("bare forwarder with one server", *_megabytes(bare, bare)),
        ("idle gateway with one server", *_megabytes(listed, bare)),
        ("the same after its first call", *_megabytes(called, bare)),
        ("SDK's client with one server", *_megabytes(sdk, sdk)),
        ("library with one server", *_megabytes(library, sdk)),
    ]
    promises.append(Promise("memory: idle gateway with one server", GATEWAY, listed, " MB"))
    promises.append(Promise("memory: library against the SDK's client", 1, library / sdk))
    columns = ("nothing configured, or one server", "CPU", "time", "memory", "ratio")
    return Report("A light start", columns, rows, promises)


def _once(arguments) -> tuple[float, float]:
    """Seconds of CPU and on the clock."""
    with TemporaryDirectory() as folder:
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=_environment(folder),
            capture_output=True,
            check=True,
        )
        taken, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return user + system, taken


async def _idle(gateway) -> tuple[float, float]:
    """The gateway's own process once a client has listed, and once it has called."""
    async with clients() as asking, running(gateway, {"bench": pipe_command()}) as work:
        who = {"name": "idle", "longest": 30}
        while True:
            try:
                await asking.order("open", clients=1, **who, **work.door("handshake"))
            except Failed:
                await anyio.sleep(AGAIN)  # the port is not open yet
            else:
                break
        await asking.order("tools", **who)
        await anyio.sleep(SETTLED)
        listed = _resident(work.process.pid)
        await asking.order("calls", tool=work.tool("echo"), calls=1, parallel=1, **who)
        return listed, _resident(work.process.pid)


def _resident(pid) -> float:
    return _of_pages(Path(f"/proc/{pid}/statm").read_text().split()[1])


def _process(program) -> float:
    with TemporaryDirectory() as folder:
        said = subprocess.check_output(
            [sys.executable, "-c", program, *pipe_command()], text=True, env=_environment(folder)
        )
    return _of_pages(said) if said else math.inf


def _of_pages(pages: str) -> float:
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _megabytes(measured, least):
    return "", "", f"{measured:.1f} MB", f"{measured / least:.1f}"


def _environment(folder):
    homes = ("CONFIG", "STATE", "DATA", "CACHE")
    return {
        **os.environ,
        **{f"XDG_{home}_HOME": f"{folder}/{home.lower()}" for home in homes},
        "HOME": folder,
        "XDG_RUNTIME_DIR": folder,
    }
