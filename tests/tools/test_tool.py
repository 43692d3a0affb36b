"""A Python function as a tool."""

from typing import Literal

import pytest

from multitap.tools import ToolDef
from multitap.tools.tool import parse_docstring


def weather(city: str, unit: Literal["C", "F"] = "C", *, days: int = 1) -> str:
    """The weather in a city.

    Looked up nowhere.

    Args:
        city (str): Which city,
            with its country.
        unit: Degrees: Celsius or Fahrenheit.
        days: For how long.

    Returns:
        A text.
    """
    return f"{city} {unit} {days}"


def test_the_schema_comes_from_the_signature_and_the_docstring():
    tool = ToolDef.of(weather)

    assert tool.name == "weather"
    assert tool.description == (
        "The weather in a city.\n\nLooked up nowhere.\n\nReturns:\n    A text."
    )
    properties = tool.parameters["properties"]
    assert properties["city"]["description"] == "Which city, with its country."
    assert properties["unit"]["description"] == "Degrees: Celsius or Fahrenheit."
    assert properties["unit"]["enum"] == ["C", "F"]
    assert tool.parameters["required"] == ["city"]


async def test_a_function_is_called_with_checked_arguments():
    tool = ToolDef.of(weather)

    assert (await tool.execute({"city": "Bern", "days": 3})).text == "Bern C 3"
    assert "/unit" in (await tool.execute({"city": "Bern", "unit": "K"})).text


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("", ("", {})),
        ("One line.", ("One line.", {})),
        ("A.\n\nArgs:\n    x: First.\n\n    y: Second.\n", ("A.", {"x": "First.", "y": "Second."})),
        ("A.\n\nArguments:\n  *rest: All.\nB.", ("A.\n\nB.", {"rest": "All."})),
        ("Args: are not a section here", ("Args: are not a section here", {})),
    ],
    ids=["none", "no arguments", "blank line between", "text after", "no section"],
)
def test_parameters_are_documented_by_name(docstring, expected):
    assert parse_docstring(docstring) == expected
