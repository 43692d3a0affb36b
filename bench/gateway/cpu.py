"""CPU of the gateway per call, and how often it introduces itself to the server behind it."""

import math
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.gateway.gateways import FLOOR, MULTITAP, PEERS, Gateway, chosen
from bench.gateway.peers import Missing
from bench.gateway.running import Failed, Running, clients, running, upstream
from bench.report import Promise, Report, micro

LIMIT, SHORTEST = 1.5, 1.2
"""Times the bare forwarder: in general, and for handshake stdio with `SHORTEST_AT` at a time."""
SHORTEST_AT = 16
TYPED = "typed"
"""The tool that is called: it has an `outputSchema`, as every tool of the SDK's servers has."""
WAYS = ("stdio", "http")
ERAS = ("handshake", "stateless")
PARALLEL = (1, 16, 64)
FEWEST, MOST = 32, 2400
"""Calls in one block."""
WARM_UP = 8
"""Blocks' worth of time."""


@dataclass(slots=True)
class Row:
    """One gateway, between clients and servers of given eras."""

    gateway: Gateway
    client: str
    server: str
    cost: dict[tuple[str, int], float] = field(default_factory=dict)
    """Seconds per call, by way and number of calls at a time."""
    hellos: dict[str, int] = field(default_factory=dict)
    """Times that the server was introduced to, by way."""
    notes: dict[str, str] = field(default_factory=dict)
    """Why there are no figures, by way."""


@dataclass(frozen=True, slots=True)
class Place:
    """One gateway that runs, and its clients of one era."""

    running: Running
    name: str
    row: Row

    async def bearable(self, asking, seconds):
        """How many calls it makes in that time, once it is warm; Node takes its time for that."""
        started = time.perf_counter()
        while time.perf_counter() - started < WARM_UP * seconds:
            done = await asking.order("calls", **self._calls(2 * FEWEST, max(PARALLEL)))
        calls = int(seconds / done["taken"] * done["calls"])
        return min(MOST, max(FEWEST, calls - calls % FEWEST))

    async def block(self, asking, way, calls):
        for parallel in PARALLEL:
            spent, done = await self.running.cost(asking, "calls", **self._calls(calls, parallel))
            known = self.row.cost.get((way, parallel), math.inf)
            self.row.cost[way, parallel] = min(known, spent / done["calls"])

    def _calls(self, calls, parallel):
        tool = self.running.tool(TYPED)
        return {"name": self.name, "tool": tool, "calls": calls, "parallel": parallel}


async def run(*, quick: bool, among: list[str] | None = None) -> Report:
    gateways = chosen(among, quick=quick)
    rows = {}
    for way in WAYS:
        for era in ERAS:
            await measure_cell(way, era, gateways, rows, quick=quick)
    columns = ("gateway", "client → server", *_headings(), "upstream `initialize`")
    return Report(
        "CPU of a gateway per call",
        columns,
        [_shown(row, rows) for row in rows.values()],
        _promises(rows) if MULTITAP in gateways else [],
    )


async def measure_cell(way, era, gateways, rows, *, quick):
    """All gateways before servers of one kind; they take turns."""
    async with AsyncExitStack() as stack:
        asking = await stack.enter_async_context(clients())
        folder = Path(stack.enter_context(TemporaryDirectory()))
        places, tallies = [], {}
        for gateway in gateways:
            if way not in gateway.reaches or era not in gateway.eras:
                continue
            tally = tallies[gateway] = folder / gateway.key
            tally.touch()
            server = await stack.enter_async_context(upstream(way, era, tools=3, tally=tally))
            places += await _opened(stack, asking, server, _rows(rows, gateway, era), way)
        await _measure(asking, places, way, quick=quick)
        for place in places:
            place.row.hellos[way] = tallies[place.running.gateway].read_text().count("\n")


def _rows(rows, gateway, era):
    """The rows of one gateway before servers of one era."""
    asked = ERAS if gateway.crosses else (era,)
    return [rows.setdefault((gateway, one, era), Row(gateway, one, era)) for one in asked]


async def _opened(stack, asking, server, rows, way):
    """The places at one gateway; what does not work is noted in its row."""
    places = []
    try:
        work = await stack.enter_async_context(running(rows[0].gateway, {"bench": server}))
        for row in rows:
            name = await work.open(asking, row.client, max(PARALLEL))
            places.append(Place(work, name, row))
    except (Missing, Failed) as error:
        for row in rows[len(places) :]:
            row.notes[way] = str(error)
    return places


async def _measure(asking, places, way, *, quick):
    calls = {}
    for _ in range(2 if quick else 3):
        for place in places:
            if way in place.row.notes:
                continue
            try:
                if place.name not in calls:
                    calls[place.name] = await place.bearable(asking, 0.3 if quick else 0.5)
                await place.block(asking, way, calls[place.name])
            except Failed as failed:
                place.row.notes[way] = str(failed)


def _headings():
    return (f"→ {way}, {parallel} at a time" for way in WAYS for parallel in PARALLEL)


def _floor(rows, era):
    row = rows.get((FLOOR, era, era))
    return row.cost if row else {}


def _ratio(row, rows, how):
    return row.cost.get(how, math.inf) / _floor(rows, row.client).get(how, math.nan)


def _shown(row, rows):
    def figure(how):
        if how not in row.cost:
            return "-"
        ratio = _ratio(row, rows, how)
        return micro(row.cost[how]) + ("" if math.isnan(ratio) else f" ({ratio:.1f})")

    name = ": ".join((row.gateway.name, *sorted({*row.notes.values()})))
    figures = [figure((way, parallel)) for way in WAYS for parallel in PARALLEL]
    hellos = ", ".join(str(row.hellos[way]) for way in WAYS if way in row.hellos)
    return name, f"{row.client} → {row.server}", *figures, hellos


def _promises(rows):
    promises = []
    for row in (row for row in rows.values() if row.gateway is MULTITAP):
        for way in WAYS:
            for parallel in PARALLEL:
                words = f"{row.client} → {row.server} {way}, {parallel} at a time"
                ratio = _ratio(row, rows, (way, parallel))
                way_of_row = (row.client, row.server, way, parallel)
                is_shortest = way_of_row == ("handshake", "handshake", "stdio", SHORTEST_AT)
                if not math.isnan(ratio):
                    limit = SHORTEST if is_shortest else LIMIT
                    promises.append(
                        Promise(f"gateway against a bare forwarder, {words}", limit, ratio)
                    )
    hellos = [n for row in rows.values() if row.gateway is MULTITAP for n in row.hellos.values()]
    promises += _against_peers(rows)
    most = max(hellos, default=math.inf)
    promises.append(Promise("`initialize` that a server behind the gateway sees", 1, most))
    return promises


def _against_peers(rows):
    """The dearest of our figures against the cheapest of theirs, server by server."""
    for way in WAYS:
        for parallel in PARALLEL:
            how = way, parallel
            theirs = [
                row.cost[how] for row in rows.values() if row.gateway in PEERS and how in row.cost
            ]
            ours = [row.cost.get(how, math.inf) for row in rows.values() if row.gateway is MULTITAP]
            if theirs:
                words = f"gateway against the best peer, {way}, {parallel} at a time"
                yield Promise(words, 1, max(ours) / min(theirs))
