"""The audit log: what is appended stays, in order, from any number of processes."""

import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from itertools import pairwise

import pytest

from multitap.store.audit_log import HEAD_NAME, AuditFile, ChainHead, chain_hash
from tests.store.full_disk import full_disk

KEEP = 100_000
WRITER = """
import sys
from pathlib import Path
from multitap.store.audit_log import AuditFile
file = AuditFile(Path(sys.argv[1]))
for number in range(40):
    file.append([f'{{"kind":"{sys.argv[2]}","at":{number}}}'], keep=100000)
"""


@pytest.fixture
def file(tmp_path):
    file = AuditFile(tmp_path)
    yield file
    file.close()


def fill(file, count=5, keep=KEEP):
    for number in range(count):
        file.append([f'{{"kind":"call","at":{number}}}'], keep=keep)


def test_what_was_appended_is_there_newest_first_and_verifies(file):
    fill(file)

    assert [entry.seq for entry in file.entries()] == [5, 4, 3, 2, 1]
    problems, last = file.verify()
    assert not problems
    assert last == ChainHead(5, next(file.entries()).hash)


def test_each_hash_follows_from_the_one_before(file):
    fill(file)
    entries = [*file.entries()][::-1]

    for before, entry in pairwise(entries):
        assert entry.hash == chain_hash(before.hash, entry.seq, entry.body)


@pytest.mark.parametrize("count", [127, 128, 129, 300])
def test_many_at_once_are_entries_like_any_other(file, count):
    fill(file, 2)
    file.append([f'{{"kind":"call","at":{number}}}' for number in range(count)], keep=KEEP)
    fill(file, 1)

    entries = [*file.entries()]
    assert [entry.seq for entry in entries] == [*range(count + 3, 0, -1)]
    assert entries[1].body == f'{{"kind":"call","at":{count - 1}}}'
    assert file.verify() == ([], ChainHead(count + 3, entries[0].hash))


def test_of_many_at_once_the_oldest_are_dropped_block_by_block(file):
    for _ in range(10):
        file.append(['{"kind":"call","at":1}'] * 200, keep=300)

    assert 300 <= len([*file.entries()]) <= 300 + 128 + 200
    problems, last = file.verify()
    assert not problems
    assert last.seq > 2000


def test_the_files_are_private(file):
    fill(file)

    for path in (file.path, file.path.with_name(HEAD_NAME)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("statement", ["UPDATE audit SET body = ''", "DELETE FROM audit"])
def test_the_file_refuses_changes(file, statement):
    fill(file)
    with closing(sqlite3.connect(file.path)) as connection:
        refused = pytest.raises(sqlite3.IntegrityError, match="append-only")
        with refused:
            connection.execute(statement)


def test_several_processes_append_to_one_chain(file, tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, name]) for name in ("a", "b", "c")]
    fill(file, 40)

    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    problems, last = file.verify()
    assert not problems
    assert last.seq == 160


def test_old_entries_are_dropped_and_the_rest_still_verifies(file):
    fill(file, 40, keep=10)

    entries = [*file.entries()]
    assert len(entries) <= 12
    assert any("audit.rotated" in entry.body for entry in entries)
    problems, last = file.verify()
    assert not problems
    assert last.seq > 40


def test_a_log_that_does_not_exist_is_whole(file):
    assert file.verify() == ([], None)
    assert not [*file.entries()]


def test_a_damaged_file_is_set_aside_and_the_chain_goes_on(file, tmp_path):
    fill(file)
    file.close()
    file.path.write_bytes(b"not a database" * 1000)

    fill(file, 1)

    assert [*tmp_path.glob("audit.sqlite3.unusable-*")]
    problems, last = file.verify()
    assert last.seq == 7
    assert any("lost" in problem or "missing" in problem for problem in problems)


def _delete(path):
    path.unlink()


def _replace(path):
    path.rename(path.with_name("moved"))
    path.touch()


def _empty(path):
    for one in (path, path.with_name(f"{path.name}-wal")):
        os.truncate(one, 0)


def _drop(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE audit")


@pytest.mark.parametrize("harm", [_delete, _replace, _empty, _drop])
def test_a_log_that_somebody_changes_under_its_writer_goes_on_where_readers_look(file, harm):
    fill(file, 3)
    harm(file.path)

    fill(file, 1)

    problems, last = file.verify()
    assert last.seq == 5  # after one that says which are gone
    assert any("missing" in problem for problem in problems)


def test_a_log_whose_place_is_taken_by_a_folder_is_not_written_elsewhere(file):
    fill(file, 1)
    file.path.unlink()
    file.path.mkdir()

    with pytest.raises((OSError, sqlite3.Error)):
        fill(file, 1)

    file.path.rmdir()
    fill(file, 1)
    assert file.verify()[1].seq == 3


def test_a_log_that_was_begun_on_a_full_disk_is_completed_later(file):
    with full_disk(), pytest.raises(sqlite3.Error):
        fill(file, 1)

    fill(file, 2)
    assert [entry.seq for entry in file.entries()] == [2, 1]
    assert file.verify()[0] == []


def test_a_log_whose_disk_was_full_for_a_while_goes_on(file):
    fill(file, 1)
    with full_disk(), pytest.raises(sqlite3.Error):
        fill(file, 1)

    fill(file, 1)
    assert [entry.seq for entry in file.entries()] == [2, 1]
    assert file.verify()[0] == []
