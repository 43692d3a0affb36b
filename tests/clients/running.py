"""Programs that end with the block that started them, and what they say."""

import os
import signal
import subprocess
from contextlib import asynccontextmanager, suppress

import anyio

from tests.waiting import PATIENCE

GRACE = 5
"""Seconds a program has to go when it is told to."""


@asynccontextmanager
async def started(command, folder, **env):
    """A process in a group of its own, its output in files; the whole group ends with the block."""
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        process = await anyio.open_process(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=folder,
            env={**os.environ, "PWD": str(folder), **env},
            start_new_session=True,
        )
    async with process:
        try:
            yield process
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)


async def _end(process):
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with anyio.move_on_after(GRACE):
        await process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def output_of(command, folder, **env):
    """What a program prints that ends by itself, and well."""
    folder.mkdir(parents=True, exist_ok=True)
    async with started(command, folder, **env) as process:
        with anyio.fail_after(PATIENCE):
            await process.wait()
    said = (folder / "stdout").read_text()
    complaint = (folder / "stderr").read_text()
    assert process.returncode == 0, f"{said[-2000:]}\n{complaint[-3000:]}"
    return said
