import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import multitap
from multitap.events import Outcome
from multitap.store import tables
from multitap.store.database import FILE_NAME, VERSION, open_database
from multitap.store.tables import MAX_CALLS, UPGRADES, CallRecord
from tests.waiting import PATIENCE


def opened(directory):
    """What opening says, with the database closed again."""
    database = open_database(directory)
    database.connection.close()
    return database


def insert(connection, count):
    row = CallRecord(1.0, "s", "t", 0.1, Outcome.OK).row()
    tables.insert(connection, tables.INSERT_CALLS, [row] * count)


def count(connection):
    return connection.execute("SELECT count(*) FROM calls").fetchone()[0]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_many_rows_take_few_statements(tmp_path):
    connection = open_database(tmp_path).connection
    statements = []
    connection.set_trace_callback(statements.append)
    insert(connection, 2048)
    connection.set_trace_callback(None)

    assert len(statements) <= 5
    assert connection.execute("SELECT count(*) FROM calls").fetchone() == (2048,)
    connection.close()


def test_the_file_is_private_in_a_private_directory(tmp_path):
    directory = tmp_path / "a" / "state"
    umask = os.umask(0)
    try:
        database = open_database(directory)
        insert(database.connection, 1)
        modes = {mode(path) for path in directory.iterdir()}
        database.connection.close()
    finally:
        os.umask(umask)

    assert database.path == directory / FILE_NAME
    assert mode(directory) == 0o700
    assert modes == {0o600}


def test_a_file_that_was_readable_for_others_is_made_private(tmp_path):
    opened(tmp_path)
    (tmp_path / FILE_NAME).chmod(0o644)

    opened(tmp_path)

    assert mode(tmp_path / FILE_NAME) == 0o600


def test_a_directory_that_was_there_keeps_its_mode(tmp_path):
    tmp_path.chmod(0o755)

    opened(tmp_path)

    assert mode(tmp_path) == 0o755


def test_what_was_written_is_there_at_the_next_opening(tmp_path):
    with closing(open_database(tmp_path).connection) as connection:
        insert(connection, 3)

    with closing(open_database(tmp_path).connection) as connection:
        assert count(connection) == 3


def test_old_calls_make_room_at_opening(tmp_path):
    with closing(open_database(tmp_path).connection) as connection:
        connection.execute("BEGIN")
        insert(connection, MAX_CALLS + 100)
        connection.execute("COMMIT")

    with closing(open_database(tmp_path).connection) as connection:
        assert count(connection) == MAX_CALLS


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(b"this was never a database, " * 200, id="something else"),
        pytest.param(b"SQLite format 3\0" + b"\xff" * 5000, id="damaged"),
    ],
)
def test_a_file_that_cannot_be_read_is_moved_aside_and_kept(tmp_path, damage):
    (tmp_path / FILE_NAME).write_bytes(damage)

    database = opened(tmp_path)

    (aside,) = [path for path in tmp_path.iterdir() if "unusable" in path.name]
    assert aside.read_bytes() == damage
    assert database.path == tmp_path / FILE_NAME
    assert str(aside) in database.warnings[0]
    assert opened(tmp_path).warnings == ()


def test_the_database_of_another_program_is_moved_aside_unchanged(tmp_path):
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("CREATE TABLE notes (text)")
        connection.execute("INSERT INTO notes VALUES ('keep me')")
        connection.commit()

    database = opened(tmp_path)

    (aside,) = tmp_path.glob("*unusable*")
    with closing(sqlite3.connect(aside)) as connection:
        assert connection.execute("SELECT text FROM notes").fetchall() == [("keep me",)]
    assert "another program" in database.warnings[0]


def test_an_empty_file_is_taken_for_a_new_one(tmp_path):
    (tmp_path / FILE_NAME).touch()

    database = opened(tmp_path)

    assert (database.path, database.warnings) == (tmp_path / FILE_NAME, ())


def test_the_file_of_an_older_version_is_moved_aside_unchanged(tmp_path):
    with closing(open_database(tmp_path).connection) as connection:
        insert(connection, 1)
        connection.execute(f"PRAGMA user_version = {min(UPGRADES) - 1}")

    database = opened(tmp_path)

    (aside,) = (path for path in tmp_path.glob("*.unusable-*") if path.suffix != ".sqlite3")
    assert "older version" in database.warnings[0]
    assert database.path == tmp_path / FILE_NAME
    with closing(sqlite3.connect(aside)) as connection:
        assert count(connection) == 1


def test_the_file_of_an_older_version_is_upgraded_with_its_calls(tmp_path):
    with closing(open_database(tmp_path).connection) as connection:
        insert(connection, 1)
        connection.execute("ALTER TABLE calls DROP COLUMN trace")
        connection.execute("PRAGMA user_version = 3")

    with closing(open_database(tmp_path).connection) as connection:
        insert(connection, 1)
        assert count(connection) == 2


def test_the_file_of_a_newer_version_is_left_alone(tmp_path):
    with closing(open_database(tmp_path).connection) as connection:
        insert(connection, 1)
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")

    database = opened(tmp_path)

    assert database.path is None
    assert "newer version" in database.trouble
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_without_a_usable_directory_it_works_in_memory_and_says_so(tmp_path):
    (tmp_path / "file").touch()

    database = open_database(tmp_path / "file" / "state")

    with closing(database.connection) as connection:
        insert(connection, 2)
        assert count(connection) == 2
    assert database.path is None
    assert "nothing will be remembered" in database.trouble


def test_where_the_file_cannot_be_written_it_works_in_memory_and_says_so(tmp_path):
    (tmp_path / FILE_NAME).mkdir()

    database = opened(tmp_path)

    assert database.path is None
    assert "nothing will be remembered" in database.trouble


WRITER = """\
import sys
from contextlib import closing
from pathlib import Path

from multitap.store import tables
from multitap.store.database import open_database

print("ready", flush=True)
sys.stdin.readline()
database = open_database(Path(sys.argv[1]))
with closing(database.connection) as connection:
    row = tables.CallRecord(1.0, "s", "t", 0.1, tables.Outcome.OK).row()
    for _ in range(50):
        tables.insert(connection, tables.INSERT_CALLS, [row])
print(database.warnings, flush=True)
"""


def test_several_processes_may_open_and_write_at_once(tmp_path):
    sources = str(Path(multitap.__file__).parent.parent)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": sources},
        )
        for _ in range(3)
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"

    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    said = [writer.communicate(timeout=PATIENCE)[0] for writer in writers]

    assert said == ["()\n"] * 3
    with closing(open_database(tmp_path).connection) as connection:
        assert count(connection) == 150
