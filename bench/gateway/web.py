"""CPU of our gateway per call on our own HTTP server, on uvicorn and on aiohttp."""

import math

from bench.gateway.cpu import PARALLEL, measure_cell
from bench.gateway.gateways import MULTITAP, ON_OTHERS
from bench.report import Promise, Report, micro

WAY = "stdio"
LIMIT = 1.0


async def run(*, quick: bool, among: list[str] | None = None) -> Report:
    compared = [one for one in (MULTITAP, *ON_OTHERS) if among is None or one.key in among]
    rows = {}
    await measure_cell(WAY, "handshake", compared, rows, quick=quick)
    return Report(
        "The gateway on other HTTP servers",
        ("HTTP server", "clients", *(f"{parallel} at a time" for parallel in PARALLEL)),
        [_shown(row, rows) for row in rows.values()],
        [*_promises(rows)],
    )


def _own(row, rows):
    return rows.get((MULTITAP, row.client, row.server), row)


def _ratio(row, rows, parallel):
    """How much more it costs than on our own."""
    ours = _own(row, rows).cost.get((WAY, parallel), math.nan)
    return row.cost.get((WAY, parallel), math.nan) / ours


def _shown(row, rows):
    def figure(parallel):
        if (WAY, parallel) not in row.cost:
            return "-"
        ratio = _ratio(row, rows, parallel)
        return micro(row.cost[WAY, parallel]) + ("" if math.isnan(ratio) else f" ({ratio:.1f})")

    name = ": ".join((row.gateway.name, *sorted({*row.notes.values()})))
    return name, row.client, *(figure(parallel) for parallel in PARALLEL)


def _promises(rows):
    for client in sorted({row.client for row in rows.values()}):
        for parallel in PARALLEL:
            theirs = [
                _ratio(row, rows, parallel)
                for row in rows.values()
                if row.gateway in ON_OTHERS and row.client == client
            ]
            best = min((one for one in theirs if not math.isnan(one)), default=None)
            if best is not None and any(row.gateway is MULTITAP for row in rows.values()):
                words = (
                    f"our HTTP server against the best of others, {client}, {parallel} at a time"
                )
                yield Promise(words, LIMIT, 1 / best)
