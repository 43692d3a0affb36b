"""A server that never stops sending affects no other."""

import resource
import time
from pathlib import Path

import anyio
import pytest

from multitap.config import HttpServer
from multitap.config.models import Limits
from multitap.errors import Flooded, WireFault
from multitap.wire.sse import open_sse
from multitap.wire.streamable import open_streamable
from tests.conftest import no_process_left
from tests.http.http_floods import (
    ANSWERS,
    JUNK,
    MESSAGES,
    flooding,
    path,
)
from tests.http.loops import anyio_backend  # noqa: F401 - a fixture
from tests.waiting import PATIENCE, until
from tests.wire.asking import Launched
from tests.wire.asking import ask as ask_on

LIMITS = Limits(message=2**20)
CALL = 0.4
"""Seconds for a call whose answer never ends."""
STALL = 0.25
"""Seconds of our own work that may stand between a neighbour's call and its answer."""
GROWTH = 24 * 1024 * 1024
"""Bytes that a flood may cost us, with messages of up to a megabyte."""

TYPICAL = {"events", "comments", "logs", "requests", "events in tiny chunks", "spaces under gzip"}
FLOODS = [
    *(("call", kind) for kind in ANSWERS),
    *(("listen", kind) for kind in (*JUNK, *MESSAGES)),
    *(("sse", kind) for kind in (*JUNK, *MESSAGES)),
]
PLACES = ("call", "listen", "sse")


def some(floods):
    """A few of them every day, the others with `make wide`."""
    rest = (pytest.mark.slow, pytest.mark.wide)
    return [pytest.param(*flood, marks=() if flood[-1] in TYPICAL else rest) for flood in floods]


@pytest.fixture(scope="module")
def web():
    for _ in no_process_left():
        with flooding() as url:
            yield url


@pytest.fixture(scope="module")
def quiet(web):
    """A second server: what one process sends without end keeps that process from answering."""
    with flooding() as url:
        yield f"{url}/good/neighbour"


class Listener:
    def __init__(self):
        self.heard = 0

    def on_unaddressed(self):
        pass

    def notification(self, method, params, call):
        self.heard += 1

    async def request(self, method, params, call):
        return {}


class Neighbour:
    """Calls a healthy server all the time, and notes how much of our work it has to wait for."""

    def __init__(self, wire):
        self._wire = wire
        self.longest = 0.0
        self.calls = 0
        self._before = memory()
        self.growth = 0

    async def run(self):
        while True:
            worked = time.thread_time()
            await ask_on(self._wire, "ping", None, timeout=PATIENCE)
            self.longest = max(self.longest, time.thread_time() - worked)
            self.growth = max(self.growth, memory() - self._before)
            self.calls += 1
            await anyio.sleep(0.01)  # its pace


def memory():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def wired(web, place, kind, limits=LIMITS):
    """A wire to the server that floods."""
    config = HttpServer(url=web + path(place, kind), limits=limits, connect_timeout=5)
    return open_sse(config) if place == "sse" else open_streamable(config)


async def begin(wire):
    wire.attach(Listener())
    if wire.kind == "streamable-http":
        await ask_on(wire, "initialize", {}, timeout=PATIENCE, cancellable=False)
        wire.establish("2025-11-25", stateless=False)


@pytest.mark.parametrize(("place", "kind"), some(FLOODS))
async def test_a_flood_holds_up_nobody(web, quiet, place, kind):
    async with open_streamable(HttpServer(url=quiet)) as good:
        await begin(good)
        neighbour = Neighbour(good)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(neighbour.run)
            async with wired(web, place, kind) as wire:
                await begin(wire)
                if place == "call":
                    with pytest.raises(WireFault):
                        await ask_on(wire, "tools/call", {}, timeout=CALL)
                else:
                    with anyio.move_on_after(CALL):
                        await wire.closed.wait()
                    leaving = time.thread_time()
            left = time.thread_time() - leaving if place != "call" else 0.0
            await until(lambda: neighbour.calls >= 2)
            tasks.cancel_scope.cancel()

    assert neighbour.longest < STALL
    assert neighbour.growth < GROWTH
    assert left < STALL


@pytest.mark.parametrize(
    ("place", "kind"),
    some(
        (place, kind)
        for place in PLACES
        for kind in MESSAGES
        if (place, kind) != ("sse", "requests")  # the answer is behind megabytes of them
    ),
)
async def test_after_and_during_a_flood_of_messages_others_are_answered(web, place, kind):
    async with wired(web, place, kind) as wire:
        await begin(wire)
        if place == "call":
            with pytest.raises(WireFault):
                await ask_on(wire, "tools/call", {}, timeout=CALL)
        for _ in range(2):
            await ask_on(wire, "ping", None, timeout=PATIENCE)

        assert not wire.closed.is_set()


@pytest.mark.parametrize(
    ("place", "kind"),
    some([(place, kind) for place in ("listen", "sse") for kind in JUNK]),
)
async def test_a_server_that_sends_nothing_but_junk_is_cut_off(web, place, kind):
    limits = Limits(message=2**16, junk=2**16)
    async with wired(web, place, kind, limits) as wire:
        await begin(wire)
        with anyio.fail_after(PATIENCE):
            await wire.closed.wait()

        assert isinstance(wire.fault, Flooded)
        assert "65,536 bytes of junk" in str(wire.fault)
        with pytest.raises(Flooded):
            await ask_on(wire, "ping", None, timeout=PATIENCE)


async def test_a_call_whose_answer_is_nothing_but_junk_fails_with_that_reason(web):
    limits = Limits(message=2**16, junk=2**16)
    async with wired(web, "call", "comments", limits) as wire:
        await begin(wire)
        with pytest.raises(Flooded, match="65,536 bytes of junk"):
            await ask_on(wire, "tools/call", {}, timeout=PATIENCE)


async def test_a_launched_call_is_reported_too(web):
    limits = Limits(message=2**16, junk=2**16)
    async with wired(web, "call", "comments", limits) as wire:
        await begin(wire)
        launched = Launched(wire, wire._tasks, "tools/call", {}, timeout=PATIENCE)
        assert isinstance(await launched.get(), Flooded)
