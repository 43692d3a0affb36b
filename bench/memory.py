"""A hundred thousand calls, and what they leave in memory."""

import gc
import os
from pathlib import Path

import anyio

from bench.clients import hub_client, pipe_config
from bench.report import Promise, Report

LIMIT = 4.0
WARM_UP = 5000
PARALLEL = 16


async def run(*, quick: bool) -> Report:
    calls = 20_000 if quick else 100_000
    async with hub_client(pipe_config())() as call:
        await _calls(call, WARM_UP)
        before = _resident()
        await _calls(call, calls)
        after = _resident()
    rows = [(f"{calls:,}", f"{before:.1f} MB", f"{after:.1f} MB")]
    promise = Promise(f"memory grown by {calls:,} calls", LIMIT, after - before, " MB")
    return Report("Memory", ("calls", "before", "after"), rows, [promise])


async def _calls(call, number):
    async def work():
        for _ in range(number // PARALLEL):
            await call()

    async with anyio.create_task_group() as tasks:
        for _ in range(PARALLEL):
            tasks.start_soon(work)


def _resident() -> float:
    """Megabytes of this process that are in memory now."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
