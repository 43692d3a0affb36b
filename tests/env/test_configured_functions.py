import sys

import pytest

from multitap.env.configured_functions import load_function, load_tool
from multitap.errors import ConfigError


def test_a_function_of_a_module_is_found():
    assert load_function("os.path:join").__name__ == "join"


def test_a_function_of_a_file_is_found_with_annotations_that_are_texts(tmp_path):
    file = tmp_path / "tools.py"
    file.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Point:\n    x: int\n"
        "def move(point: Point) -> int:\n    return point.x + 1\n"
    )

    assert load_tool(f"{file}:move").call({"point": {"x": 1}}) == "2"


def test_a_changed_file_is_run_anew(tmp_path):
    file = tmp_path / "tools.py"
    file.write_text("def f() -> str:\n    return 'one'\n")
    before = load_function(f"{file}:f")
    file.write_text("def f() -> str:\n    return 'two'\n")

    assert (before(), load_function(f"{file}:f")()) == ("one", "two")


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("nothing", "does not name a function"),
        ("no_such_module:f", "ModuleNotFoundError"),
        ("os:no_such_function", "has no 'no_such_function'"),
        ("os:environ", "is not a function"),
        ("pathlib:Path", "is not a function"),
        ("{folder}/missing.py:f", "there is no file"),
        ("{folder}/syntax.py:f", "SyntaxError"),
        ("{folder}/failing.py:f", "RuntimeError: not today"),
        ("{folder}/exiting.py:f", "SystemExit"),
        ("{folder}/shapeless.py:f", "cannot be a tool"),
    ],
)
def test_what_can_not_be_loaded_says_why(tmp_path, reference, reason):
    (tmp_path / "syntax.py").write_text("def f(:\n")
    (tmp_path / "failing.py").write_text("raise RuntimeError('not today')\n")
    (tmp_path / "exiting.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "shapeless.py").write_text("class X: ...\ndef f(x: X): ...\n")

    with pytest.raises(ConfigError, match=reason):
        load_tool(reference.format(folder=tmp_path))


def test_a_file_that_fails_leaves_no_module_behind(tmp_path):
    (tmp_path / "failing.py").write_text("raise RuntimeError('not today')\n")
    modules = {*sys.modules}

    with pytest.raises(ConfigError):
        load_function(f"{tmp_path}/failing.py:f")
    assert {*sys.modules} == modules
