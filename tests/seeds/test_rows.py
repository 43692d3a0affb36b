"""Every row of the five designs has a test that carries its number."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROWS = {"a": 7, "b": 22, "c": 26, "d": 27, "e": 19}
"""How many requirements each design has."""
LATER = {"d23", "d24", "d26", "d27"}
"""What otter itself puts off: templates, context, a screen, servers by one command."""
NAMED = re.compile(r"def test((?:_[a-e]\d+)+)_")


def numbers():
    for folder in ("seeds", "agent", "env", "real"):
        for path in (TESTS / folder).rglob("test_*.py"):
            for found in NAMED.findall(path.read_text()):
                yield from found.strip("_").split("_")


@pytest.mark.parametrize("design", ROWS)
def test_every_row_has_a_test(design):
    rows = {f"{design}{number}" for number in range(1, ROWS[design] + 1)}

    assert rows - LATER - {*numbers()} == set()


def test_no_test_carries_the_number_of_a_row_that_is_not_there():
    rows = {f"{design}{number}" for design, count in ROWS.items() for number in range(1, count + 1)}

    assert {*numbers()} - rows == set()
