"""What it costs a gateway when a client opens a session."""

import math
from contextlib import AsyncExitStack

from bench.gateway.gateways import FLOOR, MULTITAP, chosen
from bench.gateway.peers import Missing
from bench.gateway.running import Failed, clients, running, upstream
from bench.report import Promise, Report, micro

SESSIONS = 200
LIMIT = 300.0


async def run(*, quick: bool, among: list[str] | None = None) -> Report:
    gateways = [one for one in chosen(among, quick=quick) if one.dialect is None]
    best, notes = {}, {}
    async with AsyncExitStack() as stack:
        asking = await stack.enter_async_context(clients())
        places = await _places(stack, asking, gateways, notes)
        for _ in range(4 if quick else 12):
            for work in places:
                await _block(work, asking, best, notes)
    columns = ("gateway", "CPU", "until it is open", "CPU against the bare forwarder")
    rows = [_row(one, best.get(one), best.get(FLOOR), notes.get(one)) for one in gateways]
    promises = []
    if MULTITAP in gateways:
        cpu, _ = best.get(MULTITAP, (math.inf, math.inf))
        promises.append(Promise("CPU of the gateway to open a session", LIMIT, cpu * 1e6, " µs"))
    return Report("Opening a session at a gateway", columns, rows, promises)


async def _places(stack, asking, gateways, notes):
    places = []
    for gateway in gateways:
        try:
            server = await stack.enter_async_context(upstream("stdio"))
            work = await stack.enter_async_context(running(gateway, {"bench": server}))
            await work.open(asking, "handshake", 1)
        except (Missing, Failed) as error:
            notes[gateway] = str(error)
        else:
            places.append(work)
    return places


async def _block(work, asking, best, notes):
    """`initialize` and `notifications/initialized`, as every client sends them."""
    name = work.gateway.key
    if work.gateway in notes:
        return
    try:
        spent, done = await work.cost(
            asking, "greet", name=name, sessions=SESSIONS, **work.door("handshake")
        )
        await asking.order("leave", name=name)
    except Failed as failed:
        notes[work.gateway] = str(failed)
        return
    cpu, seconds = best.get(work.gateway, (math.inf, math.inf))
    best[work.gateway] = min(cpu, spent / SESSIONS), min(seconds, done["seconds"])


def _row(gateway, measured, floor, note):
    if measured is None:
        return f"{gateway.name}: {note}", "-", "-", "-"
    ratio = f"{measured[0] / floor[0]:.1f}" if floor else "-"
    return gateway.name, micro(measured[0]), micro(measured[1]), ratio
