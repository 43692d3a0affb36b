"""Thirty servers at once, two of them no good."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from bench.clients import pipe_config
from bench.report import Promise, Report, milli
from multitap import Settings, StdioServer, open_hub

GOOD = 28
LIMIT = 1.2
BAD = {
    "hanging": StdioServer(command="sleep", args=("1000",)),
    "crashing": StdioServer(command="false"),
}


async def run(*, quick: bool) -> Report:
    good = {f"good{number}": pipe_config() for number in range(GOOD)}
    alone, mixed = [], []
    for _ in range(3 if quick else 8):
        alone.append(await _until_usable(good))
        mixed.append(await _until_usable(BAD | good))
    ratio = min(mixed) / min(alone)
    rows = [
        (f"{GOOD} good ones alone", milli(min(alone)), "1.00"),
        ("with a hanging and a crashing one", milli(min(mixed)), f"{ratio:.2f}"),
    ]
    promise = Promise("good servers usable, with bad ones among them", LIMIT, ratio)
    return Report(
        "Thirty servers start", ("stdio servers", "all good ones usable", ""), rows, [promise]
    )


async def _until_usable(servers) -> float:
    with TemporaryDirectory() as state:
        started = time.perf_counter()
        async with open_hub(Settings(servers=servers, state_dir=Path(state))) as hub:
            with anyio.fail_after(60), hub.events.subscribe() as events:
                async for _ in events:
                    if len({tool.server for tool in hub.tools}) == GOOD:
                        return time.perf_counter() - started
    raise AssertionError("the stream of events ends with the hub")
