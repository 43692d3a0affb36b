"""Many servers at once, some of them no good."""

import sys
import time
from collections.abc import Mapping
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from bench.bare_starter import until_listed
from bench.clients import SERVERS, pipe_config
from bench.report import Promise, Report, milli
from multitap import Settings, StdioServer, open_hub

LIMIT = 1.2
LIGHT = 28
LIGHT_BAD = {
    "hanging": StdioServer(command="sleep", args=("1000",)),
    "crashing": StdioServer(command="false"),
}
HEAVY, HEAVY_BAD = 60, 15
HEAVY_COMMAND = (sys.executable, str(SERVERS / "sdk_server.py"))
BAD_COMMANDS = (
    ("false",),
    ("sleep", "1000"),
    (sys.executable, "-c", "import time; time.sleep(1); raise SystemExit(1)"),
    ("/nonexistent/program",),
    ("yes",),
)


async def run(*, quick: bool) -> Report:
    rows, promises = [], []
    for measured in (await _light(3 if quick else 5), await _heavy(1 if quick else 2)):
        rows += measured[0]
        promises += measured[1]
    return Report(
        "Many servers start", ("stdio servers", "all good ones usable", "ratio"), rows, promises
    )


async def _light(rounds: int) -> tuple[list, list]:
    good = {f"good{number}": pipe_config() for number in range(LIGHT)}
    alone, mixed = [], []
    for _ in range(rounds):
        alone.append(await _until_usable(good))
        mixed.append(await _until_usable(LIGHT_BAD | good))
    ratio = min(mixed) / min(alone)
    rows = [
        (f"{LIGHT} cheap ones", milli(min(alone)), "1.00"),
        ("with a hanging and a crashing one", milli(min(mixed)), f"{ratio:.2f}"),
    ]
    return rows, [Promise("good servers usable, with bad ones among them", LIMIT, ratio)]


async def _heavy(rounds: int) -> tuple[list, list]:
    """Import-heavy servers: whatever costs CPU time while they start makes all of them late."""
    good = {f"good{number}": _stdio(HEAVY_COMMAND) for number in range(HEAVY)}
    mixed = _with_bad(good)
    places = Settings().start_concurrency
    bare, alone, crowded = [], [], []
    for _ in range(rounds):
        bare.append(await until_listed(HEAVY_COMMAND, HEAVY, places=places))
        alone.append(await _until_usable(good))
        crowded.append(await _until_usable(mixed))
    hub, bad = min(alone) / min(bare), min(crowded) / min(alone)
    rows = [
        (f"{HEAVY} on the SDK, bare starter, {places} at a time", milli(min(bare)), "1.00"),
        (f"{HEAVY} on the SDK", milli(min(alone)), f"{hub:.2f}"),
        (f"with {HEAVY_BAD} bad ones among them", milli(min(crowded)), f"{bad:.2f}"),
    ]
    return rows, [
        Promise(f"{HEAVY} import-heavy servers against a bare starter", LIMIT, hub),
        Promise(f"the same with {HEAVY_BAD} bad ones among them, against alone", LIMIT, bad),
    ]


def _with_bad(good: Mapping[str, StdioServer]) -> dict[str, StdioServer]:
    """One bad server before every few good ones."""
    every = len(good) // HEAVY_BAD
    bad = iter(islice(cycle(BAD_COMMANDS), HEAVY_BAD))
    servers: dict[str, StdioServer] = {}
    for number, (name, config) in enumerate(good.items()):
        if number % every == 0:
            servers[f"bad{number}"] = _stdio(next(bad))
        servers[name] = config
    return servers


def _stdio(command: tuple[str, ...]) -> StdioServer:
    return StdioServer(command=command[0], args=command[1:])


async def _until_usable(servers: Mapping[str, StdioServer]) -> float:
    good = sum(name.startswith("good") for name in servers)
    with TemporaryDirectory() as state:
        started = time.perf_counter()
        async with open_hub(Settings(servers=servers, state_dir=Path(state))) as hub:
            with anyio.fail_after(600), hub.events.subscribe() as events:
                async for _ in events:
                    if len({tool.server for tool in hub.tools}) == good:
                        return time.perf_counter() - started
    raise AssertionError("the stream of events ends with the hub")
