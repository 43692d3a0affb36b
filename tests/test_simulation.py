"""Whatever happens in whatever order: no reply lost, none given twice, no task left (P20, P21)."""

import os
from collections import Counter
from contextlib import asynccontextmanager

import anyio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multitap.config import HttpServer, Settings, StdioServer
from multitap.errors import MultitapError
from multitap.events import FailureCode, LinkState
from multitap.hub import Hub
from multitap.upstream.handlers import Handlers
from multitap.wire.wire import RequestFailed, WireClosed
from tests.simulation.clock import run
from tests.simulation.world import MemoryStore, SimulatedWire, World

EXAMPLES = int(os.environ.get("MULTITAP_EXAMPLES", "150"))

names = st.sampled_from("abc")
actions = st.one_of(
    st.tuples(st.just("add"), names, st.sampled_from(["one", "two"])),
    st.tuples(st.just("remove"), names),
    st.tuples(st.just("crash"), names),
    st.tuples(st.just("call"), names, st.sampled_from(["nonce", "safe"])),
    st.tuples(st.just("cancel"), names),
    st.tuples(st.just("change"), names),
    st.tuples(st.just("restart"), names),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.05, 0.5, 5.0, 70.0])),
)


class Driver:
    """Carries out a list of actions and keeps the books."""

    def __init__(self, seed):
        self.world = World(seed)
        self.wanted = {}
        self.asked = 0
        self.outcomes = Counter()
        self.wrong = []
        self.repeatable = set()
        self.scopes = {}

    async def play(self, actions):
        async with anyio.create_task_group() as tasks:
            self.hub = Hub(
                tasks,
                Settings(drain_timeout=2),
                dial=self.world.dial,
                handlers=Handlers(),
                store=MemoryStore(),
            )
            async with anyio.create_task_group() as calls:
                for kind, *details in actions:
                    await getattr(self, kind)(calls, *details)
                    await anyio.lowlevel.checkpoint()
            await anyio.sleep(200)  # long enough for every wait and every pause to end
            await self.hub.settled()
            self.states = {name: link.state for name, link in self.hub.links.items()}
            self.tools = set(self.hub.catalog.tools)
            tasks.cancel_scope.cancel()

    def apply(self):
        self.hub.apply(Settings(servers=self.wanted, drain_timeout=2))

    async def add(self, _, name, command):
        self.wanted = {**self.wanted, name: StdioServer(command=command, timeout=2)}
        self.apply()

    async def remove(self, _, name):
        self.wanted = {key: value for key, value in self.wanted.items() if key != name}
        self.apply()

    async def crash(self, _, name):
        self.world.server(name).crash()

    async def change(self, _, name):
        self.world.server(name).change()

    async def restart(self, _, name):
        if name in self.hub.links:
            self.hub.restart(name)

    async def wait(self, _, seconds):
        await anyio.sleep(seconds)

    async def call(self, calls, name, tool):
        self.asked += 1
        calls.start_soon(self.ask, name, tool, self.asked)

    async def cancel(self, _, name):
        for scope in self.scopes.pop(name, ()):
            scope.cancel()

    async def ask(self, name, tool, nonce):
        if tool == "safe":
            self.repeatable.add(nonce)
        with anyio.CancelScope() as scope:
            self.scopes.setdefault(name, []).append(scope)
            try:
                result = await self.hub.call(f"{name}_{tool}", {"n": nonce})
            except MultitapError:
                self.outcomes["failed"] += 1
            else:
                self.outcomes["answered"] += 1
                if result.text != str(nonce):
                    self.wrong.append((nonce, result.text))
        if scope.cancelled_caught:
            self.outcomes["cancelled"] += 1


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
@given(st.lists(actions, max_size=60), st.integers(0, 2**32))
def test_every_call_has_one_honest_outcome_and_nothing_is_left(steps, seed):
    driver = Driver(seed)
    run(lambda: driver.play(steps))

    assert driver.outcomes.total() == driver.asked
    assert driver.wrong == []
    for server in driver.world.servers.values():
        assert not server.wires
        for nonce, times in server.runs.items():
            assert times == 1 or nonce in driver.repeatable
    assert driver.states.keys() == driver.wanted.keys()
    for name, state in driver.states.items():
        if state is LinkState.CONNECTED:
            wanted = {f"{name}_{tool['name']}" for tool in driver.world.server(name).tools}
            assert {tool for tool in driver.tools if tool.startswith(f"{name}_")} == wanted


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
