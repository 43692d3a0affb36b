"""Whatever happens in whatever order: no reply lost, none given twice, no task left (P20, P21)."""

import os
from contextlib import asynccontextmanager

import anyio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multitap.config import HttpServer, Settings, StdioServer
from multitap.errors import RequestFailed, WireClosed
from multitap.events import FailureCode
from multitap.hub.hub import Hub
from multitap.upstream.questions import Handlers
from tests.simulation.clock import run
from tests.simulation.driver import ACTIONS, play
from tests.simulation.world import MemoryStore, SimulatedWire, World

EXAMPLES = int(os.environ.get("MULTITAP_EXAMPLES", "150"))

actions = st.one_of(
    st.tuples(st.just(kind), *map(st.sampled_from, details)) for kind, details in ACTIONS.items()
)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
@given(st.lists(actions, max_size=60), st.integers(0, 2**32))
def test_every_call_has_one_honest_outcome_and_nothing_is_left(steps, seed):
    play(steps, seed)


def test_an_address_where_nobody_answers_is_tried_again_for_as_long_as_it_takes():
    @asynccontextmanager
    async def dial(name, config):
        raise RequestFailed("nobody is there", sent=False)
        yield

    async def main():
        async with anyio.create_task_group() as tasks:
            wanted = Settings(servers={"web": HttpServer(url="http://127.0.0.1:1/mcp")})
            hub = Hub(tasks, wanted, dial=dial, handlers=Handlers(), store=MemoryStore())
            await anyio.sleep(600)
            snapshot = hub.snapshot().server("web")
            tasks.cancel_scope.cancel()
        return snapshot

    snapshot = run(main)

    assert snapshot.failure.code is FailureCode.UNREACHABLE
    assert snapshot.starts > 10


def test_a_server_that_fails_to_come_back_leaves_the_catalog_once_and_not_with_every_attempt():
    world, lives = World(seed=1), 0

    @asynccontextmanager
    async def once(name, config):
        nonlocal lives
        lives += 1
        if lives > 1:
            raise WireClosed("nobody is there", sent=False)
        wire = SimulatedWire(world.server(name))
        world.server(name).wires.add(wire)
        yield wire

    async def main():
        async with anyio.create_task_group() as tasks:
            wanted = Settings(servers={"a": StdioServer(command="one")})
            hub = Hub(tasks, wanted, dial=once, handlers=Handlers(), store=MemoryStore())
            await hub.settled()
            before = hub.catalog
            world.server("a").crash()
            await anyio.sleep(200)
            after = hub.catalog
            tasks.cancel_scope.cancel()
        return before, after

    before, after = run(main)

    assert lives > 3
    assert (len(before.tools), len(after.tools)) == (2, 0)
    assert after.revision == before.revision + 1
