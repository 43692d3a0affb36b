"""From the start of a gateway until a client has the list of all its servers' tools."""

import math
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from bench.clients import pipe_command
from bench.gateway.gateways import MANY_FLOOR, MULTITAP, SDK
from bench.gateway.running import LIMIT, Failed, clients, running
from bench.report import Promise, Report, milli

FRESH = (10, 30)
STORED = 30
BEST = 1.3
BEST_STORED = 300.0
AGAIN = 0.005


async def run(*, quick: bool, among: list[str] | None = None) -> Report:
    compared = [one for one in (MANY_FLOOR, MULTITAP, SDK) if not among or one.key in among]
    rows, promises = [], []
    for count in FRESH:
        best = await _fresh(compared, _servers(count), rounds=3 if quick else 10)
        rows += [_row(f"{one.name}, {count} fresh servers", best[one], best) for one in compared]
        if MULTITAP in best and MANY_FLOOR in best:
            ratio = best[MULTITAP][0] / best[MANY_FLOOR][0]
            words = f"{count} fresh servers listed, against a bare forwarder"
            promises.append(Promise(words, BEST, ratio))
    if MULTITAP in compared:
        seconds = await _stored(_servers(STORED), rounds=3 if quick else 10)
        rows.append(_row(f"{MULTITAP.name}, {STORED} from stored catalogs", seconds, best))
        words = f"{STORED} servers listed from stored catalogs"
        promises.append(Promise(words, BEST_STORED, seconds[0] * 1e3, " ms"))
    columns = ("start of a gateway", "until all tools are listed", "ratio", "its CPU", "ratio")
    return Report("From start to list", columns, rows, promises)


def _servers(count):
    return {f"s{number}": pipe_command() for number in range(count)}


async def _fresh(gateways, servers, rounds):
    """The least seconds until all is listed, and of CPU, by gateway; they take turns."""
    best = dict.fromkeys(gateways, (math.inf, math.inf))
    for _ in range(rounds):
        for gateway in gateways:
            with TemporaryDirectory() as folder:
                best[gateway] = _least(best[gateway], await _listed(gateway, servers, folder))
    return best


async def _stored(servers, rounds):
    """The same where the gateway knows the servers from an earlier run."""
    best = (math.inf, math.inf)
    with TemporaryDirectory() as folder:
        await _listed(MULTITAP, servers, folder)
        for _ in range(rounds):
            best = _least(best, await _listed(MULTITAP, servers, folder))
    return best


async def _listed(gateway, servers, folder):
    async with clients() as asking:
        await asking.order("close", name="nobody")  # it is up
        started = time.perf_counter()
        async with running(gateway, servers, folder=Path(folder)) as work:
            wanted = {work.tool("echo", server) for server in servers}
            while (left := LIMIT - (time.perf_counter() - started)) > 0:
                if await _has_all(work, asking, wanted, left):
                    return time.perf_counter() - started, work.cpu
                if work.process.returncode is not None:
                    raise work.failed("the port never opened")
                await anyio.sleep(AGAIN)
    return math.inf, math.inf


async def _has_all(work, asking, wanted, left):
    who = {"name": work.gateway.key, "longest": left}
    try:
        await asking.order("open", clients=1, **who, **work.door("handshake"))
        listed = await asking.order("tools", **who)
    except Failed:
        return False
    return wanted <= set(listed["tools"])


def _least(one, other):
    return tuple(map(min, one, other))


def _row(words, measured, best):
    floor = best.get(MANY_FLOOR, (math.nan, math.nan))
    ratios = [
        "-" if math.isnan(than) else f"{it / than:.2f}"
        for it, than in zip(measured, floor, strict=True)
    ]
    return words, milli(measured[0]), ratios[0], milli(measured[1]), ratios[1]
