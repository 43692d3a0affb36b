"""Whatever happens to a hub in whatever order, and the books that are kept of it."""

from collections import Counter

import anyio

from multitap.config import Settings, StdioServer
from multitap.errors import MultitapError
from multitap.events import LinkState
from multitap.hub.hub import Hub
from multitap.upstream.questions import Handlers
from tests.simulation.clock import run
from tests.simulation.world import MemoryStore, World

NAMES = ("a", "b", "c")
ACTIONS = {
    "add": (NAMES, ("one", "two")),
    "remove": (NAMES,),
    "crash": (NAMES,),
    "call": (NAMES, ("nonce", "safe")),
    "cancel": (NAMES,),
    "change": (NAMES,),
    "restart": (NAMES,),
    "wait": ((0.0, 0.05, 0.5, 5.0, 70.0),),
}
"""What can happen, and to what."""
OFTEN = {"add": 2, "call": 12, "wait": 4}


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


def play(steps, seed):
    """Carry the steps out in virtual time, and check that every promise was kept."""
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
    return driver


def random_steps(random, count):
    """So many actions, with servers to call most of the time."""
    weights = [OFTEN.get(kind, 1) for kind in ACTIONS]
    kinds = random.choices([*ACTIONS], weights, k=count)
    return [(kind, *map(random.choice, ACTIONS[kind])) for kind in kinds]
