"""Thirty lazy servers whose tools are known from the last run."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.clients import pipe_config
from bench.report import Promise, Report, milli
from multitap import Settings, open_hub

SERVERS, TOOLS = 30, 20
LIMIT = 100.0


async def run(*, quick: bool) -> Report:
    with TemporaryDirectory() as state:
        eager = _settings(Path(state), "eager")
        lazy = _settings(Path(state), "lazy")
        async with open_hub(eager) as hub:
            await hub.settled()
        taken = min([await _until_listed(lazy) for _ in range(3 if quick else 10)])
    rows = [(f"{SERVERS} servers with {TOOLS} tools each", milli(taken))]
    promise = Promise("tools of lazy servers listed after `open_hub()`", LIMIT, taken * 1e3, " ms")
    return Report("Lazy servers", ("stored catalogs", "all tools listed"), rows, [promise])


def _settings(state, start):
    servers = {f"s{number}": pipe_config(tools=TOOLS, start=start) for number in range(SERVERS)}
    return Settings(servers=servers, state_dir=state)


async def _until_listed(settings) -> float:
    started = time.perf_counter()
    async with open_hub(settings) as hub:
        listed = len(hub.catalog.tools)
        taken = time.perf_counter() - started
    assert listed == SERVERS * TOOLS
    return taken
