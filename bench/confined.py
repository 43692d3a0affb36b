"""What a sandbox costs when a server starts."""

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.report import Promise, Report, milli
from multitap import StdioServer
from multitap.config.models import SandboxRules
from multitap.sandbox.levels import sandbox_support
from multitap.sandbox.sandboxes import Sandboxes, open_sandboxes
from multitap.wire.process import Spawner, open_spawner
from multitap.wire.stdio import open_stdio

LIMIT = 15.0
"""Milliseconds that a confined start may take longer."""
RULES = SandboxRules(hosts=("example.com",))
"""With hosts, so that the proxy is part of it."""


async def run(*, quick: bool) -> Report:
    title, columns = "A server starts in a sandbox", ("stdio server", "fastest", "median")
    support = sandbox_support()
    if support.reason is not None:
        return Report(title, columns, [(support.reason, "-", "-")], [])
    free, confined = [], []
    with TemporaryDirectory() as state:
        async with open_spawner() as spawner, open_sandboxes(Path(state), support) as sandboxes:
            for _ in range(10 if quick else 60):  # in turns: both meet the same machine
                free.append(await _started(spawner, sandboxes, confined=False))
                confined.append(await _started(spawner, sandboxes, confined=True))
    more = (min(confined[1:]) - min(free[1:])) * 1000  # the first one starts the warden
    rows = [
        ("free", milli(min(free)), milli(statistics.median(free))),
        ("confined", milli(min(confined)), milli(statistics.median(confined))),
    ]
    return Report(
        title, columns, rows, [Promise("milliseconds that a sandbox adds to a start", LIMIT, more)]
    )


async def _started(spawner: Spawner, sandboxes: Sandboxes, *, confined: bool) -> float:
    """Seconds until the program runs, from the wish to have it."""
    config = StdioServer(command="cat", sandbox=confined, sandbox_rules=RULES)
    begin = time.perf_counter()
    async with open_stdio("cat", config, spawner, sandboxes=sandboxes):
        return time.perf_counter() - begin
