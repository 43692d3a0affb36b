"""Calls to one server while 64 clients wait for another, slow one."""

import math
import sys

import anyio

from bench.clients import SERVERS, pipe_command
from bench.gateway.gateways import MULTITAP, chosen
from bench.gateway.peers import Missing
from bench.gateway.running import Failed, clients, running
from bench.report import Promise, Report, micro

CROWD = 64
SLOWNESS = 1.0
LIMIT = 1.5
SLOW = [sys.executable, "-S", "-E", str(SERVERS / "slow_server.py"), str(SLOWNESS)]


async def run(*, quick: bool, among: list[str] | None = None) -> Report:
    rows, promises = [], []
    for gateway in (one for one in chosen(among, quick=quick) if one.many):
        alone, crowded, note = math.inf, math.inf, ""
        try:
            alone, crowded = await _measured(gateway, blocks=2 if quick else 6)
        except (Missing, Failed) as error:
            note = f": {error}"
        ratio = crowded / alone if math.isfinite(alone) else math.inf
        shown = (micro(alone), micro(crowded), f"{ratio:.2f}") if not note else ("-",) * 3
        rows.append((gateway.name + note, *shown))
        if gateway is MULTITAP:
            words = f"p99 of calls beside {CROWD} clients of a slow server"
            promises.append(Promise(words, LIMIT, ratio))
    columns = ("gateway", "p99 alone", f"beside {CROWD} clients of a slow server", "ratio")
    return Report("Calls beside a slow server", columns, rows, promises)


async def _measured(gateway, blocks):
    """The least p99 of calls to the quick server, without and with the crowd."""
    servers = {"quick": pipe_command(), "slow": SLOW}
    alone, crowded = math.inf, math.inf
    async with clients() as asking, clients() as crowd, running(gateway, servers) as work:
        one = await work.open(asking, "handshake", 1)
        many = await work.open(crowd, "handshake", CROWD, name="crowd")
        calls = await _bearable(work, asking, one)
        for _ in range(blocks):
            alone = min(alone, await _p99(work, asking, one, calls))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_besiege, work, crowd, many)
                await anyio.sleep(SLOWNESS)  # now all of them wait
                crowded = min(crowded, await _p99(work, asking, one, calls))
    return alone, crowded


async def _bearable(work, asking, name):
    """How many calls take a second; the crowd stays for two."""
    done = await asking.order("calls", name=name, tool=_quick(work), calls=100, parallel=1)
    return max(100, min(4000, int(100 / done["taken"])))


async def _besiege(work, crowd, name):
    slow = work.tool("echo", "slow")
    apart = SLOWNESS / CROWD
    stay = {"calls": 3 * CROWD, "parallel": CROWD, "apart": apart}
    await crowd.order("calls", name=name, tool=slow, **stay)


async def _p99(work, asking, name, calls):
    done = await asking.order("calls", name=name, tool=_quick(work), calls=calls, parallel=1)
    return done["p99"]


def _quick(work):
    return work.tool("echo", "quick")
