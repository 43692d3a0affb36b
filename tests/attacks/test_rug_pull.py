"""A server that is harmless when it is first looked at, and another one afterwards."""

import json

import anyio
import pytest

from multitap import Settings, open_hub
from multitap.config import StdioServer
from multitap.errors import NotAllowed
from multitap.events import ToolsChanged
from multitap.trust.pin_review import accept, reviews
from multitap.trust.pins import places_in
from tests.waiting import PATIENCE, until
from tests.zoo.modes import command


@pytest.fixture
def hostile(tmp_path):
    """Settings with one server of the zoo."""

    def make(mode, **more):
        program, *args = command(mode)
        ledger = tmp_path / "ledger"
        ledger.mkdir(exist_ok=True)
        env = {"ZOO_DIR": str(ledger)}
        server = StdioServer(command=program, args=args, env=env, **more)
        return Settings(state_dir=tmp_path / "state", servers={"zoo": server})

    return make


def warnings(hub):
    return " ".join(hub.snapshot().server("zoo").warnings)


async def pull(hub):
    await hub.call("zoo_fault")


async def test_a_changed_tool_is_withheld_at_once_from_a_registry_server(hostile):
    async with open_hub(hostile("rug_pull", provenance="registry")) as hub:
        await hub.settled()
        assert "zoo_echo" in hub.catalog.tools
        with hub.events.subscribe() as events, anyio.fail_after(PATIENCE):
            await pull(hub)
            async for event in events:
                if isinstance(event, ToolsChanged):
                    break

        assert (event.changed, event.withheld) == (("echo",), True)
        assert "zoo_echo" not in hub.catalog.tools
        assert "zoo_add" in hub.catalog.tools
        for name in ("zoo_echo", "echo"):
            with pytest.raises(NotAllowed, match="differs from the pinned one"):
                await hub.call(name, {"text": "hello"})
        assert "1 tool changed and withheld: 'echo'" in warnings(hub)


async def test_a_changed_tool_of_ones_own_server_is_reported_and_stays(hostile):
    async with open_hub(hostile("rug_pull")) as hub:
        await hub.settled()
        await pull(hub)
        await until(lambda: "1 tool changed: 'echo'" in warnings(hub))

        assert "zoo_echo" in hub.catalog.tools


async def test_a_silent_change_is_found_with_the_next_list(hostile):
    settings = hostile("rug_pull_silent", provenance="registry")
    async with open_hub(settings) as hub:
        await hub.settled()
        await pull(hub)
        assert "zoo_echo" in hub.catalog.tools  # nobody can know
        hub.restart("zoo")
        await until(lambda: "zoo_echo" not in hub.catalog.tools)


async def test_a_change_between_two_runs_is_found(hostile):
    settings = hostile("rug_pull_silent", provenance="registry")
    async with open_hub(settings) as hub:
        await hub.settled()
        await pull(hub)
    async with open_hub(settings) as hub:
        await hub.settled()

        assert "zoo_echo" not in hub.catalog.tools


async def test_what_a_person_accepts_is_there_without_a_restart(hostile, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    settings = hostile("rug_pull", provenance="registry")
    places = places_in(settings.state_dir)
    async with open_hub(settings) as hub:
        await hub.settled()
        await pull(hub)
        await until(lambda: any(one.is_due for one in reviews(places, settings.servers)))
        accept(places, reviews(places, settings.servers)[0])
        await until(lambda: "zoo_echo" in hub.catalog.tools)

        assert "pins" not in warnings(hub)


async def test_pins_that_are_off_are_not_looked_at(hostile):
    settings = hostile("rug_pull", pin="off", scan="off")
    async with open_hub(settings) as hub:
        await hub.settled()

    assert not (settings.state_dir / "multitap.lock").exists() or not json.loads(
        (settings.state_dir / "multitap.lock").read_text()
    ).get("servers")


async def test_a_damaged_lock_withholds_what_it_should_guard_and_stays_as_it_is(hostile):
    settings = hostile("good", provenance="registry")
    lock = settings.state_dir / "multitap.lock"
    lock.parent.mkdir()
    lock.write_text('{\n "servers": <<<<<<< HEAD\n}')
    async with open_hub(settings) as hub:
        await hub.settled()

        assert not hub.catalog.tools
        assert "multitap.lock:2" in warnings(hub)
        assert hub.warnings
    assert "<<<<<<<" in lock.read_text()


async def test_a_secret_of_the_server_is_not_written_into_the_lock(tmp_path):
    program, *args = command("good")
    server = StdioServer(command=program, args=args, env={"API_TOKEN": "Gives the text back."})
    settings = Settings(state_dir=tmp_path, servers={"zoo": server})
    async with open_hub(settings) as hub:
        await hub.settled()

    assert "Gives the text back." not in (tmp_path / "multitap.lock").read_text()
