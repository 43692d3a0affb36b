import shutil
import threading
from contextlib import aclosing, asynccontextmanager

import anyio

from multitap.config import Search, Source, changes, load, watch
from multitap.config.watch import changed_files, stamps
from multitap.files import file_stamp
from tests.waiting import PATIENCE


@asynccontextmanager
async def watching(*sources, since=None):
    """A way to wait for the next change; the watch is set up when this is entered."""
    send, receive = anyio.create_memory_object_stream(100)

    async def run():
        async with aclosing(changes(sources, since=since)) as found, send:
            async for files in found:
                await send.send(files)

    async def next_change():
        with anyio.fail_after(PATIENCE):
            return {path.name for path in await receive.receive()}

    async with anyio.create_task_group() as group, receive:
        group.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        yield next_change
        group.cancel_scope.cancel()


def replace(path, text):
    """As editors do: a new file takes the old one's place."""
    fresh = path.with_name(path.name + "~")
    fresh.write_text(text)
    fresh.replace(path)


async def test_a_written_file_is_reported(tmp_path):
    path = tmp_path / "multitap.toml"
    path.write_text("a")

    async with watching(Source(path=path)) as next_change:
        path.write_text("bb")

        assert await next_change() == {"multitap.toml"}


async def test_a_file_is_followed_through_many_replacements(tmp_path):
    path = tmp_path / "multitap.toml"
    path.write_text("0")

    async with watching(Source(path=path)) as next_change:
        for number in range(3):
            replace(path, str(number) * (number + 2))
            assert await next_change() == {"multitap.toml"}


async def test_a_file_that_comes_and_goes_is_reported(tmp_path):
    path = tmp_path / "multitap.toml"

    async with watching(Source(path=path)) as next_change:
        path.write_text("a")
        assert await next_change() == {"multitap.toml"}

        path.unlink()
        assert await next_change() == {"multitap.toml"}


async def test_a_file_in_folders_that_are_not_there_yet_is_reported(tmp_path):
    path = tmp_path / "a" / "b" / "multitap.toml"

    async with watching(Source(path=path)) as next_change:
        path.parent.mkdir(parents=True)
        path.write_text("a")

        assert await next_change() == {"multitap.toml"}


async def test_a_folder_that_is_deleted_and_made_again_is_watched_again(tmp_path):
    path = tmp_path / "a" / "multitap.toml"
    path.parent.mkdir()
    path.write_text("1")

    async with watching(Source(path=path)) as next_change:
        shutil.rmtree(path.parent)
        assert await next_change() == {"multitap.toml"}

        path.parent.mkdir()
        path.write_text("22")
        assert await next_change() == {"multitap.toml"}

        replace(path, "333")
        assert await next_change() == {"multitap.toml"}


async def test_the_target_of_a_link_is_watched_too(tmp_path):
    target = tmp_path / "dotfiles" / "multitap.toml"
    target.parent.mkdir()
    target.write_text("1")
    link = tmp_path / "project" / "multitap.toml"
    link.parent.mkdir()
    link.symlink_to(target)

    async with watching(Source(path=link)) as next_change:
        replace(target, "22")

        assert await next_change() == {"multitap.toml"}


async def test_servers_that_appear_in_a_folder_are_reported(tmp_path):
    folder = tmp_path / "mcpservers"
    source = Source(path=folder, folder=True)

    async with watching(source) as next_change:
        (folder / "a").mkdir(parents=True)
        (folder / "a" / "server.py").write_text("")
        names = await next_change()
        while "server.py" not in names:
            names = await next_change()

        (folder / "a" / "config.jsonc").write_text("{}")
        assert await next_change() == {"config.jsonc"}


async def test_a_change_of_a_neighbour_is_not_reported(tmp_path):
    path = tmp_path / "multitap.toml"
    path.write_text("a")

    async with watching(Source(path=path)) as next_change:
        (tmp_path / "other.toml").write_text("x")
        (tmp_path / "sub").mkdir()
        path.write_text("bb")

        assert await next_change() == {"multitap.toml"}
        with anyio.move_on_after(1.5) as scope:
            await next_change()
        assert scope.cancelled_caught


async def test_a_change_between_loading_and_watching_is_not_missed(tmp_path):
    path = tmp_path / "multitap.toml"
    path.write_text("")
    loaded = load(Search((Source(path=path),)))
    path.write_text("auto_reload = false\n")

    async with watching(*loaded.search.sources, since=loaded.stamps) as next_change:
        assert await next_change() == {"multitap.toml"}


async def test_a_watch_is_left_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "PERIOD", 3600)
    with anyio.fail_after(PATIENCE):
        async with watching(Source(path=tmp_path / "multitap.toml")):
            pass


async def test_a_file_that_never_stops_changing_is_reported(tmp_path):
    path = tmp_path / "multitap.toml"

    async def write():
        with path.open("a") as file:
            while True:
                file.write("x")
                file.flush()
                await anyio.sleep(0.01)

    async with watching(Source(path=path)) as next_change, anyio.create_task_group() as group:
        group.start_soon(write)

        assert await next_change() == {"multitap.toml"}
        group.cancel_scope.cancel()


async def test_a_slow_file_system_does_not_hold_the_loop(tmp_path, monkeypatch):
    path = tmp_path / "multitap.toml"
    threads = set()

    def stamp(file):
        threads.add(threading.get_ident())
        return file_stamp(file)

    async with watching(Source(path=path), since=stamps([Source(path=path)])) as next_change:
        monkeypatch.setattr(watch, "file_stamp", stamp)
        path.write_text("a")
        await next_change()

    assert threads
    assert threading.get_ident() not in threads


def test_stamps_tell_files_that_came_went_or_were_written(tmp_path):
    kept, written, gone, come = (tmp_path / name for name in "abcd")
    for path in (kept, written, gone):
        path.write_text("x")
    sources = [Source(path=path) for path in (kept, written, gone, come)]

    before = stamps(sources)
    written.write_text("yy")
    gone.unlink()
    come.write_text("x")

    assert changed_files(before, stamps(sources)) == {written, gone, come}


def test_links_that_go_round_in_a_circle_do_no_harm(tmp_path):
    path = tmp_path / "multitap.toml"
    path.symlink_to(path)

    assert stamps([Source(path=path)]) == {path: None}
