"""One server among ten that never answers, and when the other nine can be used."""

import math
import time

import anyio

from bench.clients import pipe_command
from bench.gateway.gateways import MULTITAP, chosen
from bench.gateway.peers import Missing
from bench.gateway.running import AGAIN, LIMIT, Failed, clients, running
from bench.report import Promise, Report

GOOD = tuple(f"good{number}" for number in range(9))
BEST = 20.0
"""Milliseconds by which a server that hangs may delay the others: none, and some noise."""
TENTH = {"ten good servers": pipe_command(), "one of them hangs": ["sleep", "1000"]}


async def run(*, quick: bool, among: list[str] | None = None) -> Report:
    rows, promises = [], []
    for gateway in (one for one in chosen(among, quick=quick) if one.many):
        times = 1 if gateway.peer else 2 if quick else 5
        seconds, note = await _both(gateway, times)
        rows.append((gateway.name + note, *map(_shown, seconds)))
        if gateway is MULTITAP:
            alone, mixed = seconds
            delay = mixed - alone if math.isfinite(alone) else math.inf
            words = "nine servers usable, the delay by a hanging tenth"
            promises.append(Promise(words, BEST, delay * 1e3, " ms"))
    columns = ("gateway", *TENTH)
    return Report("Time until nine servers can be listed and called", columns, rows, promises)


async def _both(gateway, times):
    best = [math.inf, math.inf]
    for _ in range(times):
        for number, tenth in enumerate(TENTH.values()):
            try:
                best[number] = min(best[number], await _until_usable(gateway, tenth))
            except (Missing, Failed) as error:
                return best, f": {error}"
    return best, ""


async def _until_usable(gateway, tenth):
    """Seconds, or infinity where it takes longer than the limit."""
    servers = {name: pipe_command() for name in GOOD} | {"tenth": tenth}
    async with clients() as asking:
        started = time.perf_counter()
        async with running(gateway, servers, good=GOOD) as work:
            wanted = {work.tool("echo", server) for server in GOOD}
            while (left := LIMIT - (time.perf_counter() - started)) > 0:
                if await _usable(work, asking, wanted, left):
                    return time.perf_counter() - started
                if work.process.returncode is not None:
                    raise work.failed("the port never opened")
                await anyio.sleep(AGAIN)
    return math.inf


async def _usable(work, asking, wanted, left):
    who = {"name": work.gateway.key, "longest": left}
    try:
        await asking.order("open", clients=1, **who, **work.door("handshake"))
        listed = await asking.order("tools", **who)
        if not wanted <= set(listed["tools"]):
            return False
        for tool in wanted:
            await asking.order("calls", tool=tool, calls=1, parallel=1, **who)
    except Failed:
        return False
    return True


def _shown(seconds):
    return f"{seconds:.2f} s" if math.isfinite(seconds) else f"not in {LIMIT:.0f} s"
