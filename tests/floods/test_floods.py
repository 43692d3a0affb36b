"""Endless floods of every kind, against the real gateway on its own loop."""

import sys
from pathlib import Path

import anyio
import pytest

from tests.conftest import no_process_left
from tests.floods.endless import KINDS
from tests.floods.gateway import running
from tests.http import http_floods

pytestmark = [pytest.mark.slow]

STALL = 0.25
"""Seconds of the gateway's own work that may stand between a neighbour's call and its answer."""
GROWTH = 64 * 1024 * 1024
END = 6.0
CALLS = 20
PAUSE = 0.05
ROUNDS = 3
"""Of calls; a machine that is busy with other things spoils one of them, not all."""
ENDLESS = Path(__file__).with_name("endless.py")
FEW = ("junk", "notifications", "requests", "stderr")
"""Several at once: what each may take adds up."""
DAILY = {"logs", "progress"}
"""The kinds that every run of the tests looks at beside those few; `make wide` looks at all."""


def rest(daily):
    """The marks of what takes too long for every day."""
    return () if daily else pytest.mark.wide


def flooding(kind):
    return {"command": sys.executable, "args": [str(ENDLESS), kind]}


WEB = [
    *(
        (place, kind)
        for place in ("listen", "sse", "call")
        for kind in ("events", "comments", "logs", "requests")
    ),
    *(("call", kind) for kind in ("events in tiny chunks", "logs under gzip", "spaces", "headers")),
]
"""A few of them; `tests/wire` looks at all."""
FEW_OF_WEB = [("listen", "events"), ("listen", "logs"), ("sse", "comments"), ("call", "requests")]
DAILY_OF_WEB = [("call", "events in tiny chunks"), ("call", "spaces")]


async def longest_stall(gateway):
    """The most that stood between a neighbour's call and its answer, in the best round."""
    best = await one_round(gateway)
    for _ in range(ROUNDS - 1):
        if best < STALL:
            break
        best = min(best, await one_round(gateway))
    return best


async def one_round(gateway):
    worst = 0.0
    for _ in range(CALLS):
        before = gateway.cpu()
        assert "42.0" in await gateway.call("good_add", a=2.5, b=39.5)
        worst = max(worst, gateway.cpu() - before)
        assert await gateway.health() == 200
        await anyio.sleep(PAUSE)  # the flood goes on meanwhile
    return worst


@pytest.mark.parametrize(
    "servers",
    [
        pytest.param({"yes": {"command": "yes"}}, id="yes"),
        *(
            pytest.param({"bad": flooding(kind)}, id=kind, marks=rest(kind in DAILY))
            for kind in KINDS
        ),
        pytest.param({kind: flooding(kind) for kind in FEW}, id="several"),
    ],
)
async def test_a_flood_without_end_delays_nobody(servers, tmp_path):
    async with running(tmp_path, servers) as gateway:
        await gateway.until_up()
        before = gateway.memory()

        assert await longest_stall(gateway) < STALL

        assert gateway.memory() - before < GROWTH
        assert await gateway.end(END) == 0


@pytest.fixture(scope="module")
def web():
    for _ in no_process_left():
        with http_floods.flooding() as url:
            yield url


def at(web, place, kind):
    transport = "sse" if place == "sse" else "streamable-http"
    return {"url": web + http_floods.path(place, kind), "type": transport, "timeout": 1}


@pytest.mark.parametrize(
    "floods",
    [
        *(
            pytest.param([flood], id=" ".join(flood), marks=rest(flood in DAILY_OF_WEB))
            for flood in WEB
        ),
        pytest.param(FEW_OF_WEB, id="several"),
    ],
)
async def test_a_flood_over_http_delays_nobody(web, floods, tmp_path):
    servers = {f"bad{number}": at(web, *flood) for number, flood in enumerate(floods)}
    async with running(tmp_path, servers) as gateway, anyio.create_task_group() as tasks:
        await gateway.until_up()
        before = gateway.memory()
        for name in servers:
            tasks.start_soon(gateway.keep_calling, f"{name}_say")

        assert await longest_stall(gateway) < STALL

        assert gateway.memory() - before < GROWTH
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            assert await gateway.end(END) == 0
