"""The tools of ten servers with a hundred each, listed as one."""

import math

from bench.clients import pipe_command
from bench.gateway.gateways import FLOOR, MULTITAP, chosen
from bench.gateway.peers import Missing
from bench.gateway.running import Failed, clients, running
from bench.report import Promise, Report

SERVERS, TOOLS = 10, 100
LIMIT = 2.0


async def run(*, quick: bool, among: list[str] | None = None) -> Report:
    rows, promises = [], []
    for gateway in chosen(among, quick=quick):
        if not gateway.many and gateway is not FLOOR:
            continue
        seconds, cpu, note = math.inf, math.inf, ""
        try:
            seconds, cpu = await _measured(gateway, blocks=2 if quick else 5)
        except (Missing, Failed) as error:
            note = f": {error}"
        rows.append((gateway.name + note, _shown(seconds), _shown(cpu)))
        if gateway is MULTITAP:
            words = f"`tools/list` of {SERVERS} servers with {TOOLS} tools each"
            promises.append(Promise(words, LIMIT, seconds * 1e3, " ms"))
    columns = (f"{SERVERS} servers with {TOOLS} tools each", "until it is here", "CPU")
    return Report("`tools/list` of a gateway", columns, rows, promises)


async def _measured(gateway, blocks):
    """Seconds until the list is here, at the median, and of CPU; the bare one has one server."""
    servers = {f"s{number}": pipe_command(tools=TOOLS) for number in range(SERVERS)}
    if gateway is FLOOR:
        servers = {"s0": pipe_command(tools=SERVERS * TOOLS)}
    best, cpu = math.inf, math.inf
    async with clients() as asking, running(gateway, servers) as work:
        name = await work.open(asking, "handshake", 1)
        first = await asking.order("tools", name=name)
        if len(first["tools"]) < SERVERS * TOOLS:
            raise Failed(f"{len(first['tools'])} tools listed")
        times = max(3, min(200, int(0.5 / first["p50"])))
        for _ in range(blocks):
            spent, done = await work.cost(asking, "tools", name=name, times=times)
            best, cpu = min(best, done["p50"]), min(cpu, spent / times)
    return best, cpu


def _shown(seconds):
    return f"{seconds * 1e3:.2f} ms" if math.isfinite(seconds) else "-"
