"""Results from a kilobyte to eight megabytes."""

import math
from contextlib import AsyncExitStack

from bench.gateway.gateways import FLOOR, MULTITAP, SDK, chosen
from bench.gateway.running import Failed, clients, running, upstream
from bench.report import Promise, Report

KB, MB = 2**10, 2**20
SIZES = {
    "1 KB": KB,
    "16 KB": 16 * KB,
    "128 KB": 128 * KB,
    "1 MB": MB,
    "4 MB": 4 * MB,
    "8 MB": 8 * MB,
}
BLOCK = 16 * MB
"""Bytes that are asked for in one block."""
MOST = 640
"""Calls in one block."""
LIMIT = 1.5
LINEAR = 2.5
"""Twice the bytes may cost this much more: twice, and some noise."""


async def run(*, quick: bool, among: list[str] | None = None) -> Report:
    gateways = [one for one in chosen(among, quick=quick) if one in {FLOOR, MULTITAP, SDK}]
    rows, promises = [], []
    for way in ("stdio", "http"):
        costs = await _costs(way, gateways, blocks=2 if quick else 3)
        rows += _rows(way, costs, gateways)
        if MULTITAP in gateways and FLOOR in gateways:
            promises += _promises(way, costs)
    columns = ("result", *(gateway.name for gateway in gateways), "multitap / bare")
    return Report("Big results through a gateway", columns, rows, promises)


async def _costs(way, gateways, blocks):
    """Seconds of CPU per result, by gateway and size."""
    costs = {}
    async with AsyncExitStack() as stack:
        asking = await stack.enter_async_context(clients())
        places = []
        for gateway in gateways:
            server = await stack.enter_async_context(upstream(way))
            work = await stack.enter_async_context(running(gateway, {"bench": server}))
            try:
                places.append((work, await work.open(asking, "handshake", 1)))
            except Failed:
                continue  # its column stays empty
        for size in SIZES.values():
            for _ in range(blocks):
                for work, name in places:
                    key = work.gateway, size
                    spent = await cost(work, asking, name, size)
                    costs[key] = min(costs.get(key, math.inf), spent)
    return costs


async def cost(work, asking, name, size):
    """Seconds of CPU for one result of that size."""
    calls = min(MOST, max(2, BLOCK // size))
    asked = {"name": name, "tool": work.tool("blob"), "arguments": {"count": size}}
    spent, _ = await work.cost(asking, "calls", calls=calls, parallel=1, **asked)
    return spent / calls


def _rows(way, costs, gateways):
    for words, size in SIZES.items():
        known = [costs.get((gateway, size)) for gateway in gateways]
        figures = ["-" if cost is None else f"{cost * 1e3:.2f} ms" for cost in known]
        ratio = _ratio(costs, size)
        yield f"{words} → {way}", *figures, f"{ratio:.2f}" if math.isfinite(ratio) else "-"


def _ratio(costs, size):
    return costs.get((MULTITAP, size), math.inf) / costs.get((FLOOR, size), 1)


def _promises(way, costs):
    for words in ("1 MB", "8 MB"):
        ratio = _ratio(costs, SIZES[words])
        yield Promise(f"{words} through the gateway against a bare forwarder, {way}", LIMIT, ratio)
    small, large = (costs.get((MULTITAP, SIZES[words]), math.inf) for words in ("4 MB", "8 MB"))
    growth = large / small if math.isfinite(small) else math.inf
    yield Promise(f"8 MB through the gateway against 4 MB, {way}", LINEAR, growth)
