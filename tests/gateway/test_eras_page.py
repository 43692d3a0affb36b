"""Every feature of the page about the eras names a test, and that test exists."""

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (HERE.parent.parent / "docs" / "eras.md").read_text()


def rows():
    """The cells of each feature."""
    table = PAGE.partition("## How each feature is carried")[2].partition("\n\nThe gateway")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def test_every_feature_names_a_test_that_exists():
    for row in rows():
        match = re.fullmatch(r"`(test_\w+\.py)::(test_\w+)`", row[-1])

        assert match, row
        assert f"def {match[2]}(" in (HERE / match[1]).read_text(), row


def test_no_feature_is_left_out_in_a_cell():
    assert len(rows()) >= 25
    for row in rows():
        assert len(row) == 6, row
        assert "not supported" not in " ".join(row)
