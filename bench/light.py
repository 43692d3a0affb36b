"""What it costs to start, and what is in memory when nothing happens."""

import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.clients import pipe_command
from bench.gateway.gateways import MULTITAP
from bench.gateway.running import clients, running
from bench.report import Promise, Report, milli

COMMANDS = {"multitap --help": (80.0, ["--help"]), "multitap status": (200.0, ["status"])}
GATEWAY, LIBRARY = 45.0, 72.0
"""Megabytes; the second is what the SDK's client takes."""
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


async def run(*, quick: bool) -> Report:
    rows, promises = [], []
    for words, (limit, arguments) in COMMANDS.items():
        cpu, wall = min(_once(arguments) for _ in range(5 if quick else 15))
        rows.append((f"`{words}`, nothing configured", milli(cpu), milli(wall), ""))
        promises.append(Promise(f"CPU of `{words}`", limit, cpu * 1e3, " ms"))
    for words, limit, megabytes in (
        ("idle gateway with one server", GATEWAY, await _gateway()),
        ("library with one server", LIBRARY, _library()),
    ):
        rows.append((words, "", "", f"{megabytes:.1f} MB"))
        promises.append(Promise(f"memory: {words}", limit, megabytes, " MB"))
    return Report("A light start", ("", "CPU", "time", "memory"), rows, promises)


def _once(arguments) -> tuple[float, float]:
    """Seconds of CPU and on the clock."""
    with TemporaryDirectory() as folder:
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "multitap", *arguments],
            cwd=folder,
            env=_environment(folder),
            capture_output=True,
            check=True,
        )
        taken, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return user + system, taken


async def _gateway() -> float:
    """The gateway's own process, once a client has listed and called."""
    async with clients() as asking, running(MULTITAP, {"bench": pipe_command()}) as work:
        await work.open(asking, "handshake", 1)
        pages = Path(f"/proc/{work.process.pid}/statm").read_text().split()[1]
    return _megabytes(pages)


def _library() -> float:
    with TemporaryDirectory() as folder:
        said = subprocess.check_output(
            [sys.executable, "-c", LIBRARY_PROGRAM, *pipe_command()],
            text=True,
            env=_environment(folder),
        )
    return _megabytes(said) if said else math.inf


def _megabytes(pages: str) -> float:
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _environment(folder):
    homes = ("CONFIG", "STATE", "DATA", "CACHE")
    return {
        **os.environ,
        **{f"XDG_{home}_HOME": f"{folder}/{home.lower()}" for home in homes},
        "HOME": folder,
        "XDG_RUNTIME_DIR": folder,
    }
