"""Many real servers that start, good ones and bad ones: who when, how often, how many at once."""

import asyncio
import socket

import anyio
import pytest
import uvloop

from multitap import HttpServer, Settings, StdioServer, open_hub
from multitap.events import FailureCode, LinkState
from tests.hub.test_lifecycle import zoo
from tests.waiting import until
from tests.zoo.ledger import Ledger

any_loop = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
"""Whether a write reached its pipe is for the loop to know."""


@pytest.fixture(scope="module", autouse=True)
def _used_uvloop():
    """The first loop of a process opens pipes that are never closed."""
    uvloop.run(anyio.sleep(0))


@pytest.fixture
def ledger(tmp_path):
    folder = tmp_path / "ledger"
    folder.mkdir()
    return Ledger(folder)


@pytest.fixture
def hub_of(tmp_path):
    def make(concurrency=1, **servers):
        return open_hub(
            Settings(servers=servers, start_concurrency=concurrency, state_dir=tmp_path / "state")
        )

    return make


def connected(hub, *names):
    return all(hub.links[name].state is LinkState.CONNECTED for name in names)


def busy(ledger, *names, **options):
    return {name: zoo("busy_start", "--name", name, env=ledger.env, **options) for name in names}


async def test_servers_that_were_up_start_first_and_those_that_failed_last(hub_of, ledger):
    good, new = zoo("good", env=ledger.env), zoo("good_legacy", env=ledger.env)
    bad = zoo("exit_at_start", env=ledger.env)
    async with hub_of(bad=bad, good=good) as hub:
        await until(lambda: hub.links["bad"].failure is not None and connected(hub, "good"))
    before = len(ledger.modes)
    async with hub_of(bad=bad, new=new, good=good) as hub:
        await until(lambda: hub.links["bad"].failure is not None)

    assert ledger.modes[before : before + 3] == ["good", "good_legacy", "exit_at_start"]


async def test_servers_of_which_nothing_is_known_start_in_the_order_of_the_settings(hub_of, ledger):
    names = ("e", "b", "d", "a", "c")
    async with hub_of(**busy(ledger, *names)) as hub:
        await until(lambda: connected(hub, *names))

    assert [name for step, name in ledger.startup if step == "begin"] == list(names)


async def test_no_more_servers_start_at_once_than_may(hub_of, ledger):
    names = tuple("abcdefgh")
    async with hub_of(concurrency=2, **busy(ledger, *names)) as hub:
        await until(lambda: connected(hub, *names))
    starting, most = set(), 0
    for step, name in ledger.startup:
        (starting.add if step == "begin" else starting.discard)(name)
        most = max(most, len(starting))

    assert most == 2


async def test_servers_that_hang_do_not_keep_good_ones_from_starting(hub_of):
    async with hub_of(first=zoo("never_init"), second=zoo("login_prompt"), good=zoo("good")) as hub:
        await until(lambda: connected(hub, "good"))

        assert {hub.links[name].state for name in ("first", "second")} == {LinkState.CONNECTING}


async def test_servers_elsewhere_take_no_place_and_wait_for_none(hub_of, ledger):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        remote = {f"web{number}": HttpServer(url=address) for number in range(3)}
        async with hub_of(**remote, **busy(ledger, "here")) as hub:
            await until(lambda: connected(hub, "here"))

            assert {hub.links[name].state for name in remote} == {LinkState.CONNECTING}


@pytest.mark.parametrize(
    "mode", ["exit_at_start", "exit_silently", "exit_code_3_with_traceback", "usage_on_stdout"]
)
@any_loop
def test_one_that_ends_before_it_reads_is_started_once_for_each_attempt(hub_of, ledger, mode, run):
    async def main():
        async with hub_of(bad=zoo(mode, env=ledger.env)) as hub:
            await until(lambda: hub.links["bad"].failure is not None)

            assert len(ledger.starts) == hub.snapshot().server("bad").starts

    run(main())


@any_loop
def test_one_that_ends_at_once_is_started_once_for_each_attempt(hub_of, ledger, run):
    async def main():
        note = ledger.folder / "note"
        crash = StdioServer(command="/bin/sh", args=("-c", f"echo >> {note}; exit 1"))
        async with hub_of(bad=crash) as hub:
            await until(lambda: hub.links["bad"].failure is not None)

            assert note.read_text().count("\n") == hub.snapshot().server("bad").starts

    run(main())


@any_loop
def test_one_that_ends_when_it_is_probed_is_started_again_in_the_older_era(hub_of, ledger, run):
    async def main():
        async with hub_of(old=zoo("exits_on_discover", env=ledger.env)) as hub:
            await until(lambda: connected(hub, "old"))

            assert len(ledger.starts) == 2
            assert hub.snapshot().server("old").era == "handshake"

    run(main())


async def test_one_that_reads_and_ends_is_tried_in_both_eras_only_once(hub_of, ledger):
    async with hub_of(bad=zoo("exit_in_handshake", env=ledger.env)) as hub:
        await until(lambda: hub.snapshot().server("bad").starts >= 3)
        await until(lambda: hub.snapshot().server("bad").state is LinkState.ERROR)
        server = hub.snapshot().server("bad")

    assert server.failure.code is FailureCode.CRASH
    assert len(ledger.starts) <= server.starts + 1


async def test_lists_that_timed_out_are_fetched_again(hub_of):
    slow = zoo("prompts_every_other", connect_timeout=1)
    async with hub_of(zoo=slow) as hub:
        await until(lambda: connected(hub, "zoo"))
        first = hub.snapshot().server("zoo")
        assert (first.prompts, first.resources > 0) == (0, True)
        assert any("prompts could not be fetched" in warning for warning in first.warnings)
        await until(lambda: hub.snapshot().server("zoo").prompts > 0)

        assert hub.snapshot().server("zoo").warnings == ()


async def test_lists_that_cannot_be_fetched_again_stay_what_they_were(hub_of):
    slow = zoo("prompts_every_other", connect_timeout=1)
    async with hub_of(zoo=slow) as hub:
        await until(lambda: hub.links["zoo"].offers and hub.links["zoo"].offers.prompts)
        await hub.call("zoo_fault")
        await until(lambda: hub.snapshot().server("zoo").warnings)
        assert hub.snapshot().server("zoo").prompts > 0
        await until(lambda: not hub.snapshot().server("zoo").warnings)

        assert hub.snapshot().server("zoo").prompts > 0
