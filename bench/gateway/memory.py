"""What a hundred thousand calls and ten thousand sessions leave in a gateway's memory."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.gateway.gateways import FLOOR, MULTITAP, SDK, chosen
from bench.gateway.running import Failed, clients, running, upstream
from bench.report import Promise, Report

LIMIT = 4.0
PARALLEL = 16
WARM_UP = 5000
"""Calls; and a tenth of that sessions."""
STEPS = 4


async def run(*, quick: bool, among: list[str] | None = None) -> Report:
    calls, sessions = (10_000, 1000) if quick else (100_000, 10_000)
    candidates = {FLOOR, MULTITAP} if among is None else {FLOOR, MULTITAP, SDK}
    rows, promises = [], []
    for gateway in (one for one in chosen(among, quick=quick) if one in candidates):
        sizes, hellos, note = await _measured(gateway, calls, sessions)
        rows.append((gateway.name + note, *(f"{size:.1f} MB" for size in sizes), str(hellos)))
        if gateway is MULTITAP:
            promises += _promises(sizes, hellos, calls, sessions)
    columns = (
        "gateway",
        "before",
        f"after {calls:,} calls",
        f"after {sessions:,} sessions",
        f"after {sessions:,} clients that vanished",
        "upstream `initialize`",
    )
    return Report("Memory of a gateway", columns, rows, promises)


def _promises(sizes, hellos, calls, sessions):
    before, called, ended, _ = sizes
    yield Promise(f"gateway's memory grown by {calls:,} calls", LIMIT, called - before, " MB")
    yield Promise(f"gateway's memory grown by {sessions:,} sessions", LIMIT, ended - called, " MB")
    yield Promise("`initialize` that the server behind them sees", 1, hellos)


async def _measured(gateway, calls, sessions):
    """Megabytes after each step, times that the server was introduced to, and a note."""
    sizes, note = [], ""
    with TemporaryDirectory() as folder:
        tally = Path(folder) / "tally"
        tally.touch()
        async with (
            clients() as asking,
            upstream("stdio", tally=tally) as server,
            running(gateway, {"bench": server}) as work,
        ):
            try:
                await _steps(work, asking, calls, sessions, note=sizes.append)
            except Failed as failed:
                note = f": {failed}"
        hellos = tally.read_text().count("\n")
    return [*sizes, *[math.inf] * (STEPS - len(sizes))], hellos, note


async def _steps(work, asking, calls, sessions, *, note):
    name = await work.open(asking, "handshake", PARALLEL)
    many = {"name": name, "tool": work.tool("echo"), "parallel": PARALLEL, "longest": 600}
    await asking.order("calls", calls=WARM_UP, **many)
    await _http_request(work, asking, WARM_UP // 10, end=True)
    note(work.resident)
    await asking.order("calls", calls=calls, **many)
    note(work.resident)
    await _http_request(work, asking, sessions, end=True)
    note(work.resident)
    await _http_request(work, asking, sessions, end=False)
    note(work.resident)


async def _http_request(work, asking, sessions, *, end):
    http_request = {"sessions": sessions, "parallel": PARALLEL, "end": end, "longest": 600}
    await asking.order("sessions", tool=work.tool("echo"), **http_request, **work.door("handshake"))
