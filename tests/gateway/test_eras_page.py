"""Every cell of the page about the eras names a test, and that test exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = (HERE.parent.parent / "docs" / "eras.md").read_text()
CELLS = (("old", "old"), ("old", "new"), ("new", "old"), ("new", "new"))
TEST = re.compile(r"<br>`(test_\w+\.py)::(test_\w+)\[(.+)\]`$")
BACKEND = re.compile(r"(?:asyncio|anyio)-|-(?:asyncio|anyio)")


def rows():
    """The feature and the four cells of each row."""
    table = PAGE.partition("## How each feature is carried")[2].partition("\n\nThe gateway")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def named():
    """The client's and the server's era of each cell, and its test."""
    for feature, *cells in rows():
        for (client, server), cell in zip(CELLS, cells, strict=True):
            if cell != "removed from the protocol":
                yield feature, client, server, TEST.search(cell)


def test_every_cell_names_a_test_of_its_eras():
    assert len(rows()) >= 36
    for feature, client, server, test in named():
        assert test, feature
        assert f"def {test[2]}(" in (HERE / test[1]).read_text(), feature
        eras = re.findall(r"old|new", test[3])
        assert eras in ([client, server], [server]), (feature, test[3])


def test_nothing_is_unsupported():
    assert "not supported" not in " ".join(cell for row in rows() for cell in row)


@pytest.mark.slow
def test_every_test_that_a_cell_names_is_run():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-o", "addopts="]
    files = sorted({str(HERE / test[1]) for *_, test in named()})
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=True)
    collected = {BACKEND.sub("", line.rpartition("/")[2]) for line in done.stdout.splitlines()}

    assert {f"{test[1]}::{test[2]}[{test[3]}]" for *_, test in named()} <= collected
