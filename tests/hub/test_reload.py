"""A hub that follows its files: real files, real processes, real edits."""

import json
import logging

import anyio
import pytest

from multitap import Settings, open_hub
from multitap.config import Search, Source, Surroundings, load, native
from multitap.errors import MultitapError, UnknownName
from multitap.events import FailureCode, LinkState, Reloaded, ReloadFailed
from multitap.hub.reload import Reloader, auto_reload
from tests.trusting import Gullible
from tests.waiting import PATIENCE
from tests.zoo.modes import command


@pytest.fixture
def file(tmp_path):
    return tmp_path / "multitap.toml"


@pytest.fixture
def reloader(file, tmp_path):
    def make():
        return Reloader(lambda: load(Search((Source(path=file, dialect="multitap"),), tmp_path)))

    return make


def entry(name, mode="good", **more):
    program, *args = command(mode)
    lines = [f"{key} = {json.dumps(value)}" for key, value in more.items()]
    parts = (f"[servers.{name}]", f"command = {json.dumps(program)}", f"args = {json.dumps(args)}")
    return "\n".join((*parts, *lines))


def write(path, *parts):
    """As editors do: a new file takes the old one's place."""
    fresh = path.with_name(path.name + "~")
    fresh.write_text("\n".join((f'state_dir = "{path.parent}/state"', *parts, "")))
    fresh.replace(path)


async def report(events):
    """The outcome of the next reload."""
    with anyio.fail_after(PATIENCE):
        while not isinstance(event := await anext(events), Reloaded | ReloadFailed):
            continue
    return event


async def pid(hub, name):
    return (await hub.call(f"{name}_pid")).text


async def test_a_saved_file_starts_stops_and_replaces_just_what_it_changes(file, reloader):
    write(file, entry("kept"), entry("changed"), entry("gone"))
    async with open_hub(reloader()) as hub:
        await hub.settled()
        before = await pid(hub, "kept"), await pid(hub, "changed")
        with hub.events.subscribe() as events:
            write(file, entry("kept"), entry("changed", timeout="20s"), entry("new"))
            told = await report(events)
        await hub.settled()
        after = await pid(hub, "kept"), await pid(hub, "changed")

        assert told.plan == "start new; stop gone; replace changed; keep kept"
        assert told.changes == (
            f"new: added ({file}:9:10)",
            f"changed: replaced ({file}:5:10)",
            f"gone: removed ({file}:8:10)",
        )
        assert before[0] == after[0]
        assert before[1] != after[1]
        assert hub.links.keys() == {"kept", "changed", "new"}


async def test_a_broken_edit_keeps_the_running_servers_and_says_so_until_it_is_fixed(
    file, reloader
):
    write(file, entry("a"))
    files = reloader()
    async with open_hub(files) as hub:
        await hub.settled()
        before = await pid(hub, "a")
        with hub.events.subscribe() as events:
            write(file, entry("a"), "[servers.b")
            broken = await report(events)
            during = await pid(hub, "a")
            problems = files.problems
            write(file, entry("a"), entry("b"))
            fixed = await report(events)
        await hub.settled()

        assert isinstance(broken, ReloadFailed)
        assert f"{file}:" in broken.problems[0]
        assert "not valid TOML" in broken.problems[0]
        assert [str(problem) for problem in problems] == [*broken.problems]
        assert fixed.plan == "start b; keep a"
        assert not files.problems
        assert before == during == await pid(hub, "a")


async def test_a_broken_entry_leaves_its_server_as_it_was(file, reloader):
    write(file, entry("a"), entry("b"))
    async with open_hub(reloader()) as hub:
        await hub.settled()
        before = await pid(hub, "a")
        with hub.events.subscribe() as events:
            write(file, entry("a", timeout="soon"), entry("c"))
            told = await report(events)
        await hub.settled()

        assert told.plan == "start c; stop b; keep a"
        assert told.kept == ("a",)
        assert "`servers.a.timeout`" in told.problems[0]
        assert await pid(hub, "a") == before
        assert hub.links.keys() == {"a", "c"}


async def test_a_file_that_goes_away_takes_its_servers_along(file, reloader):
    write(file, entry("a"))
    async with open_hub(reloader()) as hub:
        await hub.settled()
        with hub.events.subscribe() as events:
            file.unlink()
            told = await report(events)

        assert told == Reloaded("stop a", changes=(f"a: removed ({file}:2:10)",))
        assert not hub.links


@pytest.mark.parametrize("content", [b"", b" \n", b"\xef\xbb\xbf"])
async def test_an_emptied_file_takes_nothing_away(file, reloader, content):
    write(file, entry("a"))
    whole = file.read_bytes()
    files = reloader()
    async with open_hub(files) as hub:
        await hub.settled()
        before = await pid(hub, "a")
        with hub.events.subscribe() as events:
            file.write_bytes(content)  # in place, as tools do before they write
            told = await report(events)
            during = await pid(hub, "a")
            problems = files.problems
            file.write_bytes(whole)
            again = await report(events)

        assert told == ReloadFailed((f"{file}: error: is empty",))
        assert [str(problem) for problem in problems] == [*told.problems]
        assert again == Reloaded("keep a")
        assert before == during == await pid(hub, "a")


async def test_an_empty_file_is_a_problem_from_the_start_and_other_layers_count(tmp_path):
    empty, other = tmp_path / "empty.json", tmp_path / "multitap.toml"
    empty.touch()
    write(other, entry("a"))
    files = Reloader(lambda: load(Search((Source(path=empty), Source(path=other)), tmp_path)))
    async with open_hub(files) as hub:
        await hub.settled()

        assert [str(problem) for problem in files.problems] == [f"{empty}: error: is empty"]
        assert hub.links.keys() == {"a"}


@pytest.mark.parametrize("half", [False, True], ids=["gone", "half-written"])
async def test_a_file_that_is_incomplete_for_a_moment_takes_nothing_away(tmp_path, half):
    file = tmp_path / "multitap.toml"
    write(file, entry("a"), entry("b"))
    whole = file.read_text()
    started = []

    def loader():
        loaded = load(Search((Source(path=file, dialect="multitap"),), tmp_path))
        started.append(loaded.settings.servers.keys())
        file.write_text(whole)  # just after it was read
        return loaded

    files = Reloader(loader)
    async with open_hub(files.settings) as hub:
        if half:
            file.write_text(whole[: whole.index("[servers.b]")])
        else:
            file.unlink()
        told = await files.reload(hub)

        assert started == [{"a", "b"}, {"a"} if half else set(), {"a", "b"}]
        assert told == Reloaded("keep a, b")


async def test_every_server_that_a_reload_changes_is_logged(file, reloader, caplog):
    write(file, entry("a"), entry("b"))
    files = reloader()
    async with open_hub(files.settings) as hub:
        write(file, entry("b", timeout=20), entry("c"))
        with caplog.at_level(logging.INFO, "multitap.hub.reload"):
            told = await files.reload(hub)

        assert caplog.messages == [
            f"c: added ({file}:6:10)",
            f"b: replaced ({file}:2:10)",
            f"a: removed ({file}:2:10)",
        ]
        assert told.changes == tuple(caplog.messages)


async def test_a_change_that_does_not_come_up_leaves_the_server_and_says_why(file, reloader):
    write(file, entry("a"))
    async with open_hub(reloader()) as hub:
        await hub.settled()
        before = await pid(hub, "a")
        with hub.events.subscribe() as events:
            write(file, entry("a", "missing_command"))
            await report(events)
            await hub.settled()
            pending = hub.snapshot().server("a").pending
            during = await pid(hub, "a")
            write(file, entry("a"))
            assert (await report(events)).plan == "keep a"

        assert pending.code is FailureCode.MISSING_PROGRAM
        assert before == during == await pid(hub, "a")
        assert hub.snapshot().server("a").pending is None


async def test_a_change_before_the_watch_began_is_not_missed(file, reloader):
    write(file, entry("a"))
    files = reloader()
    async with open_hub(files.settings, expand=files.expand) as hub:
        await hub.settled()
        write(file, entry("b"))
        with hub.events.subscribe() as events:
            async with auto_reload(hub, files):
                told = await report(events)

        assert told.plan == "start b; stop a"


async def test_reload_now_needs_no_watch(file, reloader):
    write(file, entry("a"))
    files = reloader()
    async with open_hub(files.settings) as hub:
        write(file, entry("a"), entry("b"))
        told = await files.reload(hub)
        again = await files.reload(hub)

        assert told == Reloaded("start b; keep a", changes=(f"b: added ({file}:5:10)",))
        assert again == Reloaded("keep a, b")


async def test_reloads_at_the_same_time_wait_for_each_other(file, reloader):
    write(file, entry("a"))
    files = reloader()
    async with open_hub(files.settings) as hub:
        write(file, entry("b"))
        told = []

        async def reload():
            told.append((await files.reload(hub)).plan)

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(reload)

        assert told == ["start b; stop a", *["keep b"] * 4]


async def test_with_auto_reload_off_only_the_command_reloads(file, reloader):
    write(file, "auto_reload = false", entry("a"))
    files = reloader()
    async with open_hub(files) as hub:
        with hub.events.subscribe() as events:
            write(file, "auto_reload = true", entry("a"), entry("b"))
            with anyio.move_on_after(1):
                await report(events)
                pytest.fail("reloaded unasked")
            assert (await files.reload(hub)).plan == "start b; keep a"
            await report(events)
            write(file, entry("a"))

            assert (await report(events)).plan == "stop b; keep a"


async def test_a_reader_that_fails_changes_nothing(file, reloader):
    write(file, entry("a"))
    files = reloader()
    async with open_hub(files.settings) as hub:
        files._loader = lambda: 1 / 0
        told = await files.reload(hub)

        assert told == ReloadFailed(("the configuration cannot be read: division by zero",))
        assert hub.links.keys() == {"a"}


async def test_other_files_are_watched_when_the_search_finds_others(tmp_path):
    (tmp_path / ".git").mkdir()
    folder = tmp_path / "sub"
    folder.mkdir()
    where = Surroundings(folder, tmp_path / "home", tmp_path / "config", {})
    write(tmp_path / "multitap.toml", entry("above"))
    async with open_hub(Settings(state_dir=tmp_path / "state")) as hub:
        files = Reloader(lambda: load(native(where), approval=Gullible()))
        async with auto_reload(hub, files):
            with hub.events.subscribe() as events:
                assert (await files.reload(hub)).plan == "start above"
                await report(events)
                write(folder / "multitap.toml", entry("below"))
                await files.reload(hub)
                assert (await report(events)).plan == "start below; stop above"
                write(folder / "multitap.toml", entry("other"))

                assert (await report(events)).plan == "start other; stop below"


async def test_a_missing_variable_names_its_place_and_heals_by_a_restart(
    file, reloader, monkeypatch
):
    write(file, entry("a", env={}).replace("env = {}", 'env = { NAME = "${ZOO_NAME}" }'))
    monkeypatch.delenv("ZOO_NAME", raising=False)
    async with open_hub(reloader()) as hub:
        await hub.settled()
        down = hub.snapshot().server("a")
        monkeypatch.setenv("ZOO_NAME", "ada-lovelace")
        hub.restart("a")
        await hub.settled()
        name = await hub.call("a_env", {"name": "NAME"})

        assert down.state is LinkState.ERROR
        assert f"{file}:5:" in str(down.failure)
        assert "`ZOO_NAME` is not set" in str(down.failure)
        assert "ada-lovelace" in name.text


class Traffic:
    """A hundred calls a second to one server, whatever else happens."""

    def __init__(self, hub, server):
        self._hub = hub
        self._server = server
        self.done = 0
        self.failures = []
        self.pids = set()

    async def run(self):
        async with anyio.create_task_group() as tasks:
            while True:
                tasks.start_soon(self._call)
                await anyio.sleep(0.01)  # its pace

    async def _call(self):
        try:
            self.pids.add(await pid(self._hub, self._server))
        except MultitapError as exc:
            self.failures.append(exc)
        self.done += 1


async def test_p24_at_a_hundred_calls_a_second_a_reload_fails_none(file, reloader):
    slept = []
    write(file, entry("steady"), entry("other"))
    async with open_hub(reloader()) as hub, anyio.create_task_group() as tasks:
        await hub.settled()
        steady, other = Traffic(hub, "steady"), Traffic(hub, "other")

        async def sleep():
            slept.append((await hub.call("other_sleep", {"seconds": 0.5})).text)

        with hub.events.subscribe(10_000) as events:
            tasks.start_soon(steady.run)
            tasks.start_soon(other.run)
            for number in range(5):
                tasks.start_soon(sleep)
                write(file, entry("steady"), entry("other", timeout=20 + number), entry("new"))
                told = await report(events)
                await hub.settled()
                assert "replace other; keep" in told.plan
            write(file, "[nonsense")
            assert isinstance(await report(events), ReloadFailed)
            with anyio.fail_after(PATIENCE):
                while min(steady.done, other.done) < 100:
                    await anext(events)
            failures = (*steady.failures, *other.failures)
            write(file, entry("steady"))
            assert (await report(events)).plan == "stop new, other; keep steady"
        tasks.cancel_scope.cancel()

    assert failures == ()
    assert not steady.failures
    assert {type(exc) for exc in other.failures} <= {UnknownName}  # once it was taken away
    assert (len(steady.pids), len(other.pids)) == (1, 6)
    assert slept == ["slept 0.5 s"] * 5
