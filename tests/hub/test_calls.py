"""Calls without a task, and what makes a task of them."""

import asyncio
from contextlib import asynccontextmanager

import anyio
import pytest
from msgspec import Raw

from multitap import Settings, StdioServer, open_hub
from multitap.errors import CallTimeout, MultitapError
from multitap.hub.routes import CallDefaults, route_to
from multitap.upstream.questions import CallContext
from tests.waiting import PATIENCE
from tests.zoo.ledger import Ledger
from tests.zoo.modes import command

PLAIN = CallDefaults("off", errors_are_results=False)


class Begun:
    """One call that was begun, and the news of it."""

    def __init__(self, hub, tool, arguments, **context):
        self.calls = hub.calls
        self.news = asyncio.Event()
        route = route_to(hub.catalog.tools[f"zoo_{tool}"], PLAIN)
        self.call = hub.calls.begin(route, Raw(arguments), CallContext(**context), self.news.set)

    async def end(self):
        with anyio.fail_after(PATIENCE):
            await self.news.wait()
        return self.calls.end(self.call)


@asynccontextmanager
async def zoo(tmp_path, mode="good", **settings):
    argv = command(mode)
    server = StdioServer(
        command=argv[0], args=tuple(argv[1:]), env={"ZOO_DIR": str(tmp_path)}, **settings
    )
    async with open_hub(Settings(servers={"zoo": server}, state_dir=tmp_path / "state")) as hub:
        await hub.settled()
        yield hub


def outcomes(hub):
    return [record.outcome.value for record in hub.calls.latest()]


@pytest.mark.parametrize("mode", ["good_legacy", "good_modern"])
async def test_a_call_that_only_waits_for_its_server_takes_no_task(tmp_path, mode):
    async with zoo(tmp_path, mode) as hub:
        before = asyncio.all_tasks()
        begun = Begun(hub, "echo", b'{"text": "hi"}')
        meanwhile = asyncio.all_tasks()
        slots = hub.links["zoo"].requests.slots

        assert (meanwhile - before, slots.working) == (set(), 1)
        result = await begun.end()
        assert (result.text, outcomes(hub), slots.working) == ("hi", ["ok"], 0)
        assert result is await hub.calls.finish(begun.call)
        assert outcomes(hub) == ["ok"]


async def test_an_error_is_raised_by_the_task_that_goes_on(tmp_path):
    async with zoo(tmp_path, "both") as hub:
        begun = Begun(hub, "fault", b"{}")

        assert await begun.end() is None
        with pytest.raises(MultitapError):
            await hub.calls.finish(begun.call)
        assert (outcomes(hub), hub.links["zoo"].requests.slots.working) == (["failed"], 0)


async def test_a_deadline_ends_a_call_without_a_task(tmp_path):
    async with zoo(tmp_path) as hub:
        begun = Begun(hub, "sleep", b'{"seconds": 5}', timeout=0.2)

        assert await begun.end() is None
        with pytest.raises(CallTimeout):
            await hub.calls.finish(begun.call)
        assert outcomes(hub) == ["timeout"]


async def test_a_server_that_ends_ends_its_calls_without_a_task(tmp_path):
    async with zoo(tmp_path) as hub:
        begun = Begun(hub, "crash", b"{}")

        assert await begun.end() is None
        with pytest.raises(MultitapError):
            await hub.calls.finish(begun.call)
        assert (outcomes(hub), hub.links["zoo"].requests.slots.working) == (["failed"], 0)


async def test_a_cancelled_call_without_a_task_is_cancelled_at_its_server(tmp_path):
    async with zoo(tmp_path) as hub:
        begun = Begun(hub, "sleep", b'{"seconds": 30}')
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hub.calls.finish, begun.call)
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()

        with anyio.fail_after(PATIENCE):
            while not Ledger(tmp_path).cancelled:
                await hub.call("zoo_echo", {"text": "is it here"})
        assert outcomes(hub)[0] == "cancelled"
        assert hub.links["zoo"].requests.slots.working == 0


async def test_a_call_to_a_server_that_is_not_up_is_not_begun(tmp_path):
    async with zoo(tmp_path, "exit_at_start") as hub:
        assert hub.links["zoo"].requests.begin(None, None) is None
