"""What `docs/internals.md` and the packages say about themselves, against the code."""

import ast
import re
from pathlib import Path

import pytest
from scripts.package_map import PAGE, PICTURE, picture

SOURCE = Path(__file__).parent.parent / "src" / "multitap"
PACKAGES = sorted(SOURCE.rglob("__init__.py"))
TEXT = PAGE.read_text(encoding="utf-8")
FILE = re.compile(r"`([\w/]+\.py)`")
MOST_FILES = 14
"""That the path of a call may name."""


def section(title):
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_picture_of_the_packages_is_up_to_date():
    assert picture() == PICTURE.read_text(encoding="utf-8"), "`make map` renews it"


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: str(path.parent.relative_to(SOURCE)))
def test_every_package_has_a_map(path):
    lines = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()

    assert lines
    if path.parent.parent == SOURCE:  # a folder in a package needs no more than a sentence
        assert len(lines) >= 3
        assert "must not" in " ".join(lines)


def test_every_file_that_the_page_names_is_there():
    missing = {
        name
        for name in FILE.findall(TEXT)
        if not (SOURCE / name).is_file() and not (SOURCE.parent.parent / name).is_file()
    }

    assert not missing


def test_the_way_of_a_call_takes_few_files():
    files = {*FILE.findall(section("The path of a call"))}

    assert 0 < len(files) <= MOST_FILES


def test_every_class_of_the_glossary_is_where_it_says():
    rows = re.findall(r"^\| `(\w+)` \| `([\w/]+\.py)` \|", section("Glossary"), re.MULTILINE)
    wrong = [
        (name, file)
        for name, file in rows
        if not re.search(rf"^class {name}\b", (SOURCE / file).read_text(), re.MULTILINE)
    ]

    assert rows
    assert not wrong


def test_what_the_page_says_to_find_is_in_the_file():
    rows = re.findall(r"`([\w/]+\.py)` \(`([\w.]+)`", section("Where to find it"))
    wrong = [
        (file, name)
        for file, name in rows
        for part in name.split(".")
        if not re.search(rf"(?m)\b(?:class|def) {part}\b|^{part}\b", (SOURCE / file).read_text())
    ]

    assert len(rows) >= 8
    assert not wrong
