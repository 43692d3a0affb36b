"""Regular expressions that mean the same to every Python we run on."""

import ast
from pathlib import Path
from re import _parser as parser

import pytest

SOURCES = Path(__file__).parent.parent / "src"
REFUSED = {"POSSESSIVE_REPEAT", "ATOMIC_GROUP"}
"""Python 3.11.2, which Debian 12 has, gets them wrong."""


def patterns():
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name("re")),
                    args=[ast.Constant(str(text)), *_],
                ):
                    yield pytest.param(text, id=f"{path.relative_to(SOURCES)}:{node.lineno}")


def operations(parsed):
    for item in parsed:
        if isinstance(item, parser.SubPattern | tuple | list):
            yield from operations(item)
        else:
            yield str(item)


def test_every_pattern_is_one_that_all_supported_pythons_understand_alike():
    found = [*patterns()]
    wrong = [
        pattern.id for pattern in found if REFUSED & {*operations(parser.parse(pattern.values[0]))}
    ]

    assert len(found) > 50
    assert not wrong


@pytest.mark.parametrize("pattern", ["a++", "(?>a)", "(a?+b)|c", "[0-9]{2,3}+"])
def test_such_a_pattern_would_be_found(pattern):
    assert REFUSED & {*operations(parser.parse(pattern))}
