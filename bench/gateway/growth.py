"""What a call costs, and what is in memory, as servers, tools and sessions become more."""

import math
from contextlib import AsyncExitStack

from bench.clients import pipe_command
from bench.gateway.gateways import MULTITAP
from bench.gateway.running import clients, running
from bench.report import Promise, Report, micro

SERVERS = (1, 10, 100)
TOOLS = (10, 100, 1000)
SESSIONS = (1, 100, 1000)
LIMITS = {"server": 1.15, "tool": 1.15, "session": 1.1}
"""A call among the most, against one among the fewest."""
MEGABYTES = {"server": 0.5, "100 tools": 1.0, "100 sessions": 1.0}
PARALLEL = 16
CALLS = 640


async def run(*, quick: bool, among: list[str] | None = None) -> Report:
    if among and MULTITAP.key not in among:
        return Report("Growth of the gateway", ("",), [], [])
    blocks = 3 if quick else 5
    rows, promises = [], []
    for measured in (
        await _servers(blocks),
        await _tools(blocks),
        await _sessions(blocks),
    ):
        rows += measured[0]
        promises += measured[1]
    columns = ("gateway with", "CPU of a call", "ratio", "memory", "for each more")
    return Report("Growth of the gateway", columns, rows, promises)


async def _servers(blocks):
    cases = {}
    for count in SERVERS:
        cases[count] = {f"s{number}": pipe_command() for number in range(count)}
    measured = await _compared(cases, blocks)
    return _told("server", measured, each=1, unit="server")


async def _tools(blocks):
    cases = {count: {"s0": pipe_command(tools=count)} for count in TOOLS}
    measured = await _compared(cases, blocks)
    return _told("tool", measured, each=100, unit="100 tools")


async def _sessions(blocks):
    measured = {}
    async with clients() as asking, running(MULTITAP, {"s0": pipe_command()}) as work:
        calling = await work.open(asking, "handshake", PARALLEL)
        open_now = 1
        for count in SESSIONS:
            if count > open_now:
                more = {"sessions": count - open_now, **work.door("handshake")}
                await asking.order("greet", name=str(count), **more)
                open_now = count
            measured[count] = await _least(work, asking, calling, blocks), work.resident
    return _told("session", measured, each=100, unit="100 sessions")


async def _compared(cases, blocks):
    """CPU of a call and megabytes, by case; the gateways take turns."""
    cpu = dict.fromkeys(cases, math.inf)
    async with AsyncExitStack() as stack:
        asking = await stack.enter_async_context(clients())
        places = {}
        for count, servers in cases.items():
            work = await stack.enter_async_context(running(MULTITAP, servers))
            places[count] = work, await work.open(asking, "handshake", PARALLEL, name=str(count))
        for _ in range(blocks):
            for count, (work, name) in places.items():
                cpu[count] = min(cpu[count], await _least(work, asking, name, 1))
        return {count: (cpu[count], work.resident) for count, (work, _) in places.items()}


async def _least(work, asking, name, blocks):
    best = math.inf
    asked = {"name": name, "tool": work.tool("echo"), "calls": CALLS, "parallel": PARALLEL}
    for _ in range(blocks):
        spent, done = await work.cost(asking, "calls", **asked)
        best = min(best, spent / done["calls"])
    return best


def _told(noun, measured, *, each, unit):
    """Rows and promises: the least is what the others are compared with."""
    (fewest, (first, least)), *_, (most, (last, largest)) = measured.items()
    rows = []
    for count, (cpu, megabytes) in measured.items():
        more = (megabytes - least) / (count - fewest) * each if count > fewest else math.nan
        shown = "" if math.isnan(more) else f"{more:.2f} MB per {unit}"
        words = f"{count:,} {noun}{'s' if count > 1 else ''}"
        rows.append((words, micro(cpu), f"{cpu / first:.2f}", f"{megabytes:.1f} MB", shown))
    growth = (largest - least) / (most - fewest) * each
    return rows, [
        Promise(f"a call among {most:,} {noun}s, against {fewest:,}", LIMITS[noun], last / first),
        Promise(f"memory of the gateway per {unit}", MEGABYTES[unit], growth, " MB"),
    ]
