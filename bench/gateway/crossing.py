"""Large results for clients of either era, from servers of either era."""

import math
from contextlib import AsyncExitStack

from bench.gateway.gateways import FLOOR, MULTITAP
from bench.gateway.running import clients, running, upstream
from bench.gateway.sizes import KB, MB, cost
from bench.report import Promise, Report

SIZES = {"64 KB": 64 * KB, "1 MB": MB, "8 MB": 8 * MB}
WAYS = ("stdio", "http")
ERAS = ("handshake", "stateless")
LIMIT = 1.5


async def run(*, quick: bool, among: list[str] | None = None) -> Report:
    rows, promises = [], []
    if among is None or {FLOOR.key, MULTITAP.key} <= {*among}:
        for way in WAYS:
            for server in ERAS:
                costs = await _costs(way, server, blocks=3 if quick else 4)
                for client in ERAS:
                    for words in SIZES:
                        bare, ours = costs[FLOOR, server, words], costs[MULTITAP, client, words]
                        how = f"{words}, {client} → {server} {way}"
                        rows.append((how, _shown(ours), _shown(bare), f"{ours / bare:.2f}"))
                        promise = f"result of {how}, against a bare forwarder"
                        promises.append(Promise(promise, LIMIT, ours / bare))
    columns = ("result, client → server", MULTITAP.name, FLOOR.name, "multitap / bare")
    return Report("Big results across the eras", columns, rows, promises)


async def _costs(way, server, blocks):
    """Seconds of CPU per result, by gateway, era of the client, and size; all take turns.

    The bare forwarder only knows clients of its server's era.
    """
    costs = {}
    async with AsyncExitStack() as stack:
        asking = await stack.enter_async_context(clients())
        places = []
        for gateway, eras in ((FLOOR, (server,)), (MULTITAP, ERAS)):
            behind = await stack.enter_async_context(upstream(way, server))
            work = await stack.enter_async_context(running(gateway, {"bench": behind}))
            places += [(work, era, await work.open(asking, era, 1)) for era in eras]
        for words, size in SIZES.items():
            for _ in range(blocks):
                for work, era, name in places:
                    key = work.gateway, era, words
                    spent = await cost(work, asking, name, size)
                    costs[key] = min(costs.get(key, math.inf), spent)
    return costs


def _shown(seconds):
    return f"{seconds * 1e3:.2f} ms"
