"""`multitap.store.tables`."""

import sqlite3
from contextlib import closing

import pytest

from multitap.store.tables import insert


@pytest.mark.parametrize("count", [0, 1, 9, 300])
@pytest.mark.parametrize(
    "cycle",
    [
        pytest.param([(1, "a", None)], id="a column is always empty"),
        pytest.param([(1, None, None), (2, "b", None), (3, None, "c")], id="some are, at times"),
        pytest.param([(1, "a", "b"), (2, None, "c")], id="the first row is full"),
        pytest.param([(None, None, None)], id="all are empty"),
    ],
)
def test_rows_come_back_as_they_were_in_their_order(cycle, count):
    rows = [cycle[at % len(cycle)] for at in range(count)]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE things (number, first, second)")

        insert(connection, "INSERT INTO things (number, first, second)", rows)

        found = connection.execute("SELECT * FROM things ORDER BY rowid").fetchall()
    assert found == rows
