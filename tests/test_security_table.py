"""Every promise of SECURITY.md names a test that attacks it, and that test exists."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "SECURITY.md").read_text()
THREATS = TEXT.partition("## Threats")[2].partition("\n## ")[0]
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split(" | "))
    for line in THREATS.splitlines()
    if line.startswith("| ") and not line.startswith("| threat |")
]
LEAST = 30
"""Rows that there have been since the table was first written."""


@cache
def names_in(path):
    return set(re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE))


def test_the_table_is_there():
    assert len(ROWS) >= LEAST
    assert len({row[0] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_every_threat_has_an_answer_and_tests_that_exist(row):
    threat, answer, tests = row
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", tests)

    assert threat
    assert answer
    assert named
    assert len(named) == tests.count("`") // 2
    for path, name in named:
        assert name in names_in(ROOT / path), f"{path}::{name}"


@pytest.mark.parametrize(
    "heading", ["Reporting a vulnerability", "What is promised", "Out of scope"]
)
def test_it_says_what_else_a_reader_looks_for(heading):
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]

    assert len(section.split()) > 50
