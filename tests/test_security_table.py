"""Every promise, and every threat, names a test that attacks it, and that test exists."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROMISES, THREATS = (
    (ROOT / page).read_text().partition(f"\n## {last}\n")[0]
    for page, last in (
        ("SECURITY.md", "What is not promised"),
        ("docs/security.md", "Out of scope"),
    )
)
LONGEST = 120
"""Lines of the page that everybody should read."""
LEAST = {"promises": 25, "threats": 60}
"""Rows that there have been since the tables were first written."""


def rows_of(text):
    """The rows of all tables of a page: their cells."""
    return [
        tuple(cell.strip() for cell in line.strip("|").split(" | "))
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith(("| threat |", "| promise |"))
    ]


ROWS = {"promises": rows_of(PROMISES), "threats": rows_of(THREATS)}


@cache
def names_in(path):
    return set(re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", ROWS)
def test_the_table_is_there(page):
    rows = ROWS[page]

    assert len(rows) >= LEAST[page]
    assert len({row[0] for row in rows}) == len(rows)
    assert {len(row) for row in rows} == {2 if page == "promises" else 3}


@pytest.mark.parametrize("row", [*ROWS["promises"], *ROWS["threats"]], ids=lambda row: row[0][:40])
def test_every_row_names_tests_that_exist(row):
    *words, tests = row
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)

    assert all(words)
    assert named
    assert len(named) == tests.count("`") // 2
    for path, name in named:
        assert name in names_in(ROOT / path), f"{path}::{name}"


def test_nothing_is_promised_outside_the_tables():
    promised = PROMISES.partition("\n## What is promised\n")[2]
    prose = [line for line in promised.splitlines() if line and not line.startswith(("|", "#"))]

    assert len(prose) == 1  # how to read the tables
    assert "tests/test_security_table.py" in prose[0]


def test_it_is_one_page_that_says_what_a_reader_looks_for():
    text = (ROOT / "SECURITY.md").read_text()

    assert len(text.splitlines()) <= LONGEST
    for heading in ("Reporting a vulnerability", "What is promised", "What is not promised"):
        section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        assert len(section.split()) > 40
