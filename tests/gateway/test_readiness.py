"""When the first lists are given out; the processes are real, the clock is not."""

from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import anyio
import pytest

from multitap.catalog.audience import Audience
from multitap.config import HttpServer, Settings, StdioServer
from multitap.gateway.gateway import Gateway
from multitap.gateway.readiness import (
    EMPTY,
    IDLE,
    LONGEST,
    PATIENCE,
    AbsentServer,
    is_ready,
    wait_for_servers,
)
from multitap.hub.hub import Hub
from multitap.tasks import Tasks
from multitap.upstream.questions import Handlers
from multitap.wire.wire import Evidence
from tests.processes import process
from tests.simulation.clock import run
from tests.simulation.world import MemoryStore, SimulatedServer, SimulatedWire
from tests.waiting import wait_for

PROGRAM = StdioServer(command="a-program")
PAGE = HttpServer(url="http://127.0.0.1:1/mcp")
NEVER = 1000.0
SOON = 0.4
"""Seconds after which nobody can have waited for `PATIENCE`."""

WORKS = AbsentServer(0.0, visible=True)
HANGS = AbsentServer(IDLE, visible=True)
HUNG = AbsentServer(PATIENCE, visible=True)
FAR = AbsentServer(IDLE, visible=False)


@pytest.mark.parametrize(
    ("missing", "ready"),
    [
        pytest.param([HANGS], True, id="one hangs"),
        pytest.param([HANGS, HANGS], True, id="two of ten hang"),
        pytest.param([HANGS, HANGS, HANGS], False, id="many hang, for a moment"),
        pytest.param([HUNG, HUNG, HUNG], True, id="many hang"),
        pytest.param([WORKS], False, id="one works"),
        pytest.param([WORKS, HANGS], False, id="one works, one hangs"),
        pytest.param([WORKS, HUNG, HUNG], False, id="many are missing and one works"),
        pytest.param([FAR], False, id="one is reached elsewhere"),
        pytest.param([FAR._replace(idle=PATIENCE)], True, id="one far away hangs"),
    ],
)
def test_a_list_is_given_out_without_few_that_hang_but_not_without_many(missing, ready):
    assert is_ready(missing, servers=10) is ready


class Wire(SimulatedWire):
    """Answers after a fixed time."""

    def __init__(self, delay, pid):
        super().__init__(SimulatedServer(Random(0)))
        self._delay = delay
        self._pid = pid

    async def request(self, request):
        await anyio.sleep(self._delay)
        return await super().request(request)

    def evidence(self):
        return Evidence(pid=self._pid)


@pytest.fixture(scope="module")
def idle():
    with process("import _signal; _signal.pause()") as running:
        stat = Path(f"/proc/{running.pid}/stat")
        wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S")
        yield running.pid


def given_out(servers, delays, pid):
    """When the first lists are given out, and who is on them."""

    @asynccontextmanager
    async def dial(name, config):
        yield Wire(delays.get(name, 0.0), pid if isinstance(config, StdioServer) else None)

    async def main():
        async with anyio.create_task_group() as tasks:
            wanted = Settings(servers=servers, start_concurrency=100)
            hub = Hub(tasks, wanted, dial=dial, handlers=Handlers(), store=MemoryStore())
            await wait_for_servers(hub)
            when = anyio.current_time()
            up = {link.name for link in hub.links.values() if link.offers is not None}
            tasks.cancel_scope.cancel()
        return when, up

    return run(main)


def test_nobody_waits_for_one_that_hangs_among_many(idle):
    servers = {f"s{number}": PROGRAM for number in range(10)}

    when, up = given_out(servers, {"s9": NEVER}, idle)

    assert up == servers.keys() - {"s9"}
    assert when < SOON


def test_one_of_two_is_given_some_time(idle):
    when, up = given_out({"a": PROGRAM, "b": PROGRAM}, {"b": NEVER}, idle)

    assert up == {"a"}
    assert SOON < when < LONGEST


def test_servers_that_are_switched_off_do_not_count(idle):
    servers = {f"s{number}": PROGRAM.replace(enabled=False) for number in range(10)}

    when, up = given_out({"a": PROGRAM, "b": PROGRAM, **servers}, {"b": NEVER}, idle)

    assert up == {"a"}
    assert SOON < when < LONGEST


def test_a_server_elsewhere_that_does_not_answer_is_given_some_time():
    servers = {f"s{number}": PAGE for number in range(10)}

    when, up = given_out(servers, {"s9": NEVER}, None)

    assert up == servers.keys() - {"s9"}
    assert SOON < when < LONGEST


def test_servers_that_work_are_waited_for_while_many_are_missing():
    servers = {"a": PROGRAM, "b": PROGRAM}
    with process("while True: pass") as running:
        when, up = given_out(servers, {"b": 1.5}, running.pid)

    assert up == {"a", "b"}
    assert when < LONGEST


def test_programs_that_still_work_are_waited_for_longer_than_those_that_hang():
    servers = {f"s{number}": PROGRAM for number in range(10)}
    with process("while True: pass") as running:
        when, up = given_out(servers, {"s8": 4.0, "s9": 4.0}, running.pid)

    assert up == servers.keys()
    assert EMPTY < when < LONGEST


def test_sessions_for_other_extensions_do_not_prolong_the_wait():
    @asynccontextmanager
    async def dial(*_):
        yield Wire(delays.pop(0), None)

    async def main():
        async with Tasks() as tasks, anyio.create_task_group() as group:
            wanted = Settings(servers={"a": PROGRAM})
            hub = Hub(group, wanted, dial=dial, handlers=Handlers(), store=MemoryStore())
            gateway = Gateway(hub, tasks)
            await gateway.watch_start()
            began = anyio.current_time()
            await gateway._wait_complete(Audience(declared='{"extensions":{"com.example/x":{}}}'))
            took = anyio.current_time() - began
            group.cancel_scope.cancel()
        return took

    delays = [0.0, NEVER]

    assert run(main) == pytest.approx(LONGEST)
    assert not delays


def test_where_none_is_up_the_list_waits_for_a_while(idle):
    when, up = given_out({"a": PROGRAM, "b": PROGRAM}, {"a": NEVER, "b": NEVER}, idle)

    assert up == set()
    assert when == pytest.approx(EMPTY, abs=0.2)
