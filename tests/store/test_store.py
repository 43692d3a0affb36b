import asyncio
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import anyio
import anyio.lowlevel
import platformdirs
import pytest

from multitap.events import Outcome
from multitap.store import CallRecord, StoredCatalog, open_store, tables
from multitap.store import store as store_of_all
from multitap.store.audit_log import AuditBatch, AuditFile
from multitap.store.database import FILE_NAME, RECENT
from multitap.store.store import FLUSH_COUNT, MAX_BUFFERED
from multitap.store.tables import MAX_CATALOGS, MAX_OUTCOMES
from tests.waiting import until

TOOLS = [{"name": "log", "inputSchema": {"type": "object"}, "x-extra": [1, None, "é"]}]


def call(at=1.0, **fields):
    return CallRecord(
        **{"at": at, "server": "git", "tool": "log", "seconds": 0.1, "outcome": Outcome.OK} | fields
    )


def catalog(**fields):
    return StoredCatalog(**{"era": "handshake", "tools": TOOLS, "saved_at": 5.0} | fields)


def rows(directory, table="calls"):
    """How many rows another process would see."""
    with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


async def test_everything_logged_is_written_when_the_store_is_closed(tmp_path):
    async with open_store(tmp_path) as store:
        for number in range(1000):
            store.log_call(call(number))

    async with open_store(tmp_path) as store:
        assert len((await store.calls(limit=1000)).records) == 1000
        assert (store.warnings, store.dropped) == ((), 0)


async def test_a_few_calls_are_written_without_being_asked_for(tmp_path):
    async with open_store(tmp_path) as store:
        store.log_call(call())

        await until(lambda: rows(tmp_path) == 1)


async def test_many_calls_are_written_at_once(tmp_path):
    async with open_store(tmp_path) as store:
        for _ in range(FLUSH_COUNT):
            store.log_call(call())

        await until(lambda: rows(tmp_path) == FLUSH_COUNT)


async def test_what_was_logged_before_an_error_is_written_and_the_error_leaves_as_itself(tmp_path):
    async def fail():
        async with open_store(tmp_path) as store:
            store.log_call(call())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()

    assert rows(tmp_path) == 1


async def test_all_that_was_logged_before_a_cancellation_is_written(tmp_path):
    with anyio.CancelScope() as scope:
        async with open_store(tmp_path) as store:
            store.log_call(call())
            store.audit(call())
            store.servers.save_outcome("calc", "mark", is_up=True)
            scope.cancel()
            await anyio.sleep_forever()

    assert rows(tmp_path) == 1
    assert len([*AuditFile(tmp_path).entries()]) == 1
    async with open_store(tmp_path) as store:
        assert store.servers.load_outcomes() == {("calc", "mark"): True}


@pytest.mark.parametrize("kind", ["scope", "task"])
async def test_a_store_whose_opening_is_cancelled_leaves_nothing_open(tmp_path, kind):
    async def wait():
        async with open_store(tmp_path):
            await anyio.sleep_forever()

    if kind == "scope":
        with anyio.CancelScope() as scope:
            scope.cancel()
            await wait()
    else:
        # as `asyncio.run` does on Ctrl-C: no shield keeps that out
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(wait())
            await anyio.lowlevel.checkpoint()
            task.cancel()

    assert not _open_files(tmp_path)
    assert not [thread for thread in threading.enumerate() if "multitap" in thread.name]


def _open_files(folder):
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    return [path for path in links if os.path.realpath(path).startswith(str(folder))]


async def test_the_oldest_calls_are_dropped_and_counted_when_too_many_wait(tmp_path):
    async with open_store(tmp_path) as store:
        for number in range(MAX_BUFFERED + 5):
            store.log_call(call(number))

        assert store.dropped == 5
        page = await store.calls(until=6.0)
    assert [record.at for record in page.records] == [5.0]


async def test_the_oldest_calls_of_the_file_make_room(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_CALLS", 25)
    async with open_store(tmp_path) as store:
        for batch in range(10):
            for number in range(10):
                store.log_call(call(10.0 * batch + number))
            await store.flush()
        found = [record.at for record in (await store.calls()).records]

        assert found == [99.0 - number for number in range(25)]
        assert rows(tmp_path) == 25


async def test_a_call_that_cannot_be_stored_does_not_stop_the_others(tmp_path):
    async with open_store(tmp_path) as store:
        store.log_call(call(bytes_in=10**30))
        await store.flush()
        store.log_call(call(2.0))

        assert [record.at for record in (await store.calls()).records] == [2.0]
        assert "not written" in store.warnings[0]


async def test_calls_wait_while_another_process_holds_the_file(tmp_path):
    async with open_store(tmp_path) as store:
        with closing(sqlite3.connect(tmp_path / FILE_NAME)) as other:
            other.execute("BEGIN IMMEDIATE")
            store.log_call(call())
            store.servers.save_catalog("git", "f", catalog())
            await store.flush()
            assert "delayed" in store.warnings[0]

        await until(lambda: rows(tmp_path) == rows(tmp_path, "catalogs") == 1)
        await until(lambda: store.warnings == ())


async def test_what_went_wrong_is_reported_for_a_while_and_what_stays_wrong_for_good(tmp_path):
    now = 0.0
    (tmp_path / FILE_NAME).write_bytes(b"not a database" * 100)
    (tmp_path / "file").touch()

    async with (
        open_store(tmp_path, clock=lambda: now) as moved,
        open_store(tmp_path / "file", clock=lambda: now) as lost,
    ):
        before = [len(store.warnings) for store in (moved, lost)]
        for number in range(MAX_BUFFERED + 2):
            moved.log_call(call(number))
        moved.log_call(call(bytes_in=10**30))
        await moved.flush()
        during = moved.warnings
        now = RECENT + 1
        after = [store.warnings for store in (moved, lost)]

    assert before == [1, 1]
    assert [words.split()[0] for words in during[1:]] == ["3", "some"]
    assert [len(warnings) for warnings in after] == [0, 1]
    assert "nothing will be remembered" in after[1][0]


async def test_a_catalog_is_there_at_the_next_start(tmp_path):
    stored = catalog(
        protocol_version="2025-11-25",
        resources=[{"uri": "a:"}],
        templates=[{"uriTemplate": "a:{b}"}],
        prompts=[{"name": "p"}],
        instructions="use it well",
        title="Git 2.0",
    )
    async with open_store(tmp_path) as store:
        store.servers.save_catalog("git", "fingerprint", stored)

    async with open_store(tmp_path) as store:
        assert store.servers.load_catalog("git", "fingerprint") == stored
        assert store.servers.load_catalog("git", "another") is None


async def test_a_newer_catalog_replaces_the_older_of_the_same_server(tmp_path):
    async with open_store(tmp_path) as store:
        store.servers.save_catalog("git", "a", catalog())
        await store.flush()
        store.servers.save_catalog("git", "a", catalog(tools=[]))
        store.servers.save_catalog("git", "b", catalog(saved_at=6.0))

    async with open_store(tmp_path) as store:
        assert store.servers.load_catalog("git", "a").tools == []
        assert store.servers.load_catalog("git", "b").tools == TOOLS
        assert store.servers.load_catalog("git").tools == TOOLS


async def test_the_same_catalog_is_not_written_twice(tmp_path):
    async with open_store(tmp_path) as store:
        store.servers.save_catalog("git", "a", catalog(saved_at=1.0))
        await store.flush()
        store.servers.save_catalog("git", "a", catalog(saved_at=2.0))

    async with open_store(tmp_path) as store:
        assert store.servers.load_catalog("git", "a").saved_at == 1.0


async def test_how_the_last_start_of_a_server_ended_is_remembered(tmp_path):
    async with open_store(tmp_path) as store:
        assert store.servers.load_outcomes() == {}
        store.servers.save_outcome("git", "a", is_up=True)
        store.servers.save_outcome("web", "a", is_up=True)
        await store.flush()
        store.servers.save_outcome("web", "a", is_up=False)

    async with open_store(tmp_path) as store:
        assert store.servers.load_outcomes() == {("git", "a"): True, ("web", "a"): False}


async def test_that_a_server_asks_is_remembered(tmp_path):
    async with open_store(tmp_path) as store:
        assert store.servers.load_asking() == set()
        store.servers.save_asking("git", "a")
        await store.flush()
        store.servers.save_asking("web", "b")
        store.servers.save_asking("git", "a")

    async with open_store(tmp_path) as store:
        assert store.servers.load_asking() == {("git", "a"), ("web", "b")}


async def test_only_the_newest_outcomes_are_kept(tmp_path):
    async with open_store(tmp_path) as store:
        for number in range(MAX_OUTCOMES + 10):
            store.servers.save_outcome("git", str(number), is_up=True)

    async with open_store(tmp_path) as store:
        assert len(store.servers.load_outcomes()) == MAX_OUTCOMES


async def test_a_catalog_that_cannot_be_read_is_skipped_with_a_warning(tmp_path):
    async with open_store(tmp_path) as store:
        store.servers.save_catalog("git", "a", catalog())
        store.servers.save_catalog("web", "a", catalog())
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("UPDATE catalogs SET body = '{\"tools\": 5}' WHERE server = 'git'")
        connection.commit()

    async with open_store(tmp_path) as store:
        assert store.servers.load_catalog("git", "a") is None
        assert store.servers.load_catalog("web", "a") is not None
        assert "'git'" in store.warnings[0]


async def test_a_catalog_that_cannot_be_written_is_reported(tmp_path):
    async with open_store(tmp_path) as store:
        store.servers.save_catalog("git", "a", catalog(instructions="\ud800"))
        await store.flush()

        assert "not written" in store.warnings[0]


async def test_catalogs_not_seen_for_long_make_room(tmp_path):
    async with open_store(tmp_path) as store:
        for number in range(MAX_CATALOGS + 5):
            store.servers.save_catalog(
                f"server {number}", "a", catalog(tools=[], saved_at=float(number))
            )

    async with open_store(tmp_path) as store:
        found = [
            store.servers.load_catalog(f"server {number}") for number in range(MAX_CATALOGS + 5)
        ]
    assert [*map(bool, found)] == [False] * 5 + [True] * MAX_CATALOGS


async def test_a_file_found_to_be_damaged_while_in_use_is_replaced(tmp_path):
    path = tmp_path / FILE_NAME
    async with open_store(tmp_path) as store:
        for number in range(1000):
            store.log_call(call(number))
        await store.calls()
    with closing(sqlite3.connect(path)) as connection:
        find = "SELECT rootpage FROM sqlite_master WHERE name = 'calls_by_time'"
        (page,) = connection.execute(find).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)

    async with open_store(tmp_path) as store:
        assert store.warnings == ()
        store.log_call(call(5.0))

        assert [record.at for record in (await store.calls()).records] == [5.0]
        assert "moved to" in store.warnings[0]
    assert list(tmp_path.glob("*unusable*"))


async def test_without_a_usable_directory_everything_works_until_the_end(tmp_path):
    (tmp_path / "file").touch()

    async with open_store(tmp_path / "file") as store:
        store.log_call(call())
        store.servers.save_catalog("git", "a", catalog())
        await store.flush()

        assert len((await store.calls()).records) == 1
        assert store.path is None
        assert "nothing will be remembered" in store.warnings[0]


async def test_the_users_state_directory_is_used_unless_told_otherwise(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async with open_store() as store:
        assert store.path.parent == tmp_path / "multitap"
        assert str(store.path.parent) == platformdirs.user_state_dir("multitap")


async def test_two_stores_may_share_a_directory(tmp_path):
    async with open_store(tmp_path) as one, open_store(tmp_path) as other:
        one.log_call(call(1.0))
        other.log_call(call(2.0))
        await other.flush()

        assert [record.at for record in (await one.calls()).records] == [2.0, 1.0]


async def test_choices_are_there_the_next_time_in_their_order(tmp_path):
    chosen = {("b", "x"): "b_x", ("a", "y"): "a_y"}
    async with open_store(tmp_path) as store:
        store.servers.save_choices({"tools": chosen}, {"a", "b"})

    async with open_store(tmp_path) as store:
        assert [*store.servers.load_choices()["tools"].items()] == [*chosen.items()]


async def test_a_choice_that_another_process_made_first_counts(tmp_path):
    heard = []
    async with open_store(tmp_path) as one, open_store(tmp_path) as other:
        other.servers.on_disagreement = lambda: heard.append(other.servers.load_choices())
        one.servers.save_choices({"tools": {("a", "b_c"): "a_b_c"}}, {"a", "a_b"})
        await one.flush()
        other.servers.save_choices({"tools": {("a_b", "c"): "a_b_c"}}, {"a", "a_b"})
        await other.flush()

    assert heard == [{"tools": {("a", "b_c"): "a_b_c"}}]


async def test_a_flush_waits_for_what_another_one_is_writing(tmp_path):
    heard = []
    async with open_store(tmp_path) as one, open_store(tmp_path) as other:
        other.servers.on_disagreement = lambda: heard.append("other")
        one.servers.save_choices({"tools": {("a", "b_c"): "a_b_c"}}, {"a", "a_b"})
        await one.flush()
        other.servers.save_choices({"tools": {("a_b", "c"): "a_b_c"}}, {"a", "a_b"})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other.flush)
            await anyio.lowlevel.checkpoint()
            await other.flush()

            assert heard == ["other"]


async def test_entries_of_other_replicas_that_a_disk_does_not_take_are_not_said_to_be_written(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(store_of_all, "PATIENCE", 0.1)
    hangs = threading.Event()
    batches = [AuditBatch("one", ['{"kind":"call","at":1}'])]
    async with open_store(tmp_path) as store:
        try:
            with pytest.raises(TimeoutError):
                await store._thread.run(hangs.wait)
            assert not await store.write_audit_batches(batches)
        finally:
            hangs.set()
            monkeypatch.undo()

        assert await store.write_audit_batches(batches)  # again, as they are written once
    assert len([*AuditFile(tmp_path).entries()]) == 1


async def test_a_name_of_a_server_that_is_not_configured_is_taken_over(tmp_path):
    async with open_store(tmp_path) as store:
        store.servers.save_choices({"tools": {("git", "log"): "log"}}, {"git"})
        await store.flush()
        store.servers.save_choices({"tools": {("github", "log"): "log"}}, {"github"})
        await store.flush()

        assert store.servers.load_choices() == {"tools": {("github", "log"): "log"}}
