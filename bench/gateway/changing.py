"""One tool more among ten thousand: what it costs the gateway, and who has to wait for it."""

import math
import time

import anyio

from bench.clients import pipe_command
from bench.gateway.gateways import MULTITAP, chosen
from bench.gateway.load import Connection
from bench.gateway.running import LIMIT, clients, running
from bench.report import Promise, Report

SERVERS, TOOLS = 10, 1000
BEST, LONGEST, MOST = 60.0, 20.0, 4.0
"""Milliseconds of CPU and of waiting, and megabytes for each thousand tools."""
SETTLED = 3.0
"""Seconds after which everything about a change is done, on the disk as well."""


async def run(*, quick: bool, among: list[str] | None = None) -> Report:
    rows, promises = [], []
    for gateway in (one for one in chosen(among, quick=quick) if one is MULTITAP):
        few, _, _ = await _measured(gateway, 1, rounds=0)
        many, cpu, wait = await _measured(gateway, TOOLS, rounds=2 if quick else 5)
        memory = (many - few) / (SERVERS * TOOLS / 1000)
        rows.append((gateway.name, f"{cpu:.0f} ms", f"{wait:.0f} ms", f"{memory:.1f} MB"))
        promises += [
            Promise("CPU of one tool more among 10,000", BEST, cpu, " ms"),
            Promise("the longest wait of others meanwhile", LONGEST, wait, " ms"),
            Promise("memory: a thousand tools", MOST, memory, " MB"),
        ]
    columns = (
        f"{SERVERS} servers with {TOOLS:,} tools each",
        "CPU of one tool more",
        "the longest wait of `/health`",
        "memory for 1,000 tools",
    )
    return Report("A tool more", columns, rows, promises)


async def _measured(gateway, tools, rounds):
    """Megabytes, and the least milliseconds of CPU and of the longest wait."""
    servers = {f"s{number}": pipe_command(tools=tools) for number in range(SERVERS)}
    cpu, wait = math.inf, math.inf
    async with clients() as asking, running(gateway, servers) as work:
        name = await work.open(asking, "handshake", 1)
        await _until_listed(asking, name, SERVERS * tools)
        await anyio.sleep(SETTLED)
        memory = work.resident
        for _ in range(rounds):
            before = work.cpu
            await _grow(work, asking, name)
            cpu = min(cpu, work.cpu - before)
            wait = min(wait, await _longest_wait(work, asking, name))
        await _until_listed(asking, name, SERVERS * tools + 2 * rounds)
    return memory, cpu * 1e3, wait * 1e3


async def _grow(work, asking, name):
    """Have a server say that it has a tool more, and wait until all that follows is done."""
    call = {"tool": work.tool("echo"), "calls": 1, "parallel": 1}
    await asking.order("calls", name=name, arguments={"text": "more", "grow": True}, **call)
    await anyio.sleep(SETTLED)


async def _longest_wait(work, asking, name):
    """How long others wait for the gateway at most."""
    waits = []

    async def look():
        connection = Connection(work.setup.port)
        while True:
            started = time.perf_counter()
            await connection.exchange("/health", method=b"GET")
            waits.append(time.perf_counter() - started)
            await anyio.sleep(0.002)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        await _grow(work, asking, name)
        tasks.cancel_scope.cancel()
    return max(waits)


async def _until_listed(asking, name, tools):
    with anyio.fail_after(LIMIT):
        while len((await asking.order("tools", name=name))["tools"]) < tools:
            await anyio.sleep(0.1)
