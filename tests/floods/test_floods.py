"""Endless floods of every kind, against the real gateway on its own loop."""

import sys
from pathlib import Path

import anyio
import pytest

from tests.floods.endless import KINDS
from tests.floods.gateway import running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

STALL = 0.25
"""Seconds of the gateway's own work that may stand between a neighbour's call and its answer."""
GROWTH = 64 * 1024 * 1024
END = 6.0
CALLS = 20
PAUSE = 0.05
ENDLESS = Path(__file__).with_name("endless.py")
FEW = ("junk", "notifications", "requests", "stderr")
"""Several at once: what each may take adds up."""


def flooding(kind):
    return {"command": sys.executable, "args": [str(ENDLESS), kind]}


async def look_at(gateway):
    """Call the neighbour now and then; the most that stood between a call and its answer."""
    worst = 0.0
    for _ in range(CALLS):
        before = gateway.cpu()
        assert "42.0" in await gateway.call("good_add", a=2, b=40)
        worst = max(worst, gateway.cpu() - before)
        assert await gateway.health() == 200
        await anyio.sleep(PAUSE)
    return worst


@pytest.mark.parametrize(
    "servers",
    [
        pytest.param({"yes": {"command": "yes"}}, id="yes"),
        *(pytest.param({"bad": flooding(kind)}, id=kind) for kind in KINDS),
        pytest.param({kind: flooding(kind) for kind in FEW}, id="several"),
    ],
)
async def test_a_flood_without_end_delays_nobody(servers, tmp_path):
    async with running(tmp_path, servers) as gateway:
        await gateway.until_up()
        before = gateway.memory()

        assert await look_at(gateway) < STALL

        assert gateway.memory() - before < GROWTH
        assert await gateway.end(END) == 0
