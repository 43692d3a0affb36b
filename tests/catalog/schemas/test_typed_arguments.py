"""`key=value` becomes what the schema asks for, or is refused with the reason."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.catalog.schemas.typed_arguments import to_arguments, words
from multitap.errors import BadArguments

ADDRESS = {"type": "object", "properties": {"street": {"type": "string"}}}


def value(schema, *texts, **root):
    """What `x` becomes when it is typed with each of the texts."""
    whole = {"type": "object", "properties": {"x": schema}, **root}
    return to_arguments(words([f"x={text}" for text in texts]), whole)["x"]


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, "", ""),
        ({"type": "string"}, "null", "null"),
        ({"type": "integer"}, "-5", -5),
        ({"type": "number"}, "5", 5),
        ({"type": "number"}, "-.5e1", -5.0),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "null"}, "null", None),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "array", "items": {"type": "integer"}}, "7", [7]),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        (ADDRESS, '{"street": "x"}', {"street": "x"}),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": ["integer", "null"]}, "3", 3),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "text", "text"),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "5", 5),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "5x", "5x"),
        ({"enum": ["red", "green"]}, "red", "red"),
        ({"enum": [1, 2, None]}, "2", 2),
        ({"enum": [1, 2, None]}, "null", None),
        ({"const": "only"}, "only", "only"),
        ({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, "null", None),
        ({"allOf": [{"type": "integer"}, {"minimum": 0}]}, "5", 5),
        ({"items": {"type": "string"}}, "a", ["a"]),
        ({}, "5", 5),
        ({}, "true", True),
        ({}, "some text", "some text"),
        ({}, "[1]", [1]),
        (True, "x", "x"),
    ],
)
def test_a_text_becomes_what_the_schema_says(schema, text, expected):
    found = value(schema, text)

    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("schema", "text", "reason"),
    [
        ({"type": "integer"}, "1.5", "x: expected a whole number, got '1.5'"),
        ({"type": "number"}, "nan", "x: expected a number, got 'nan'"),
        ({"type": "number"}, "1e999", "x: expected a number, got '1e999'"),
        ({"type": "boolean"}, "yes", "x: expected true or false, got 'yes'"),
        ({"type": "object"}, "[1]", "x: expected an object as JSON, got '[1]'"),
        ({"type": "array"}, "[1", "x: expected a list as JSON, got '[1'"),
        ({"type": ["integer", "null"]}, "x", "x: expected null or a whole number, got 'x'"),
        ({"type": "array", "items": {"type": "integer"}}, "x", "x: expected a whole number"),
        ({"enum": ["red", "green"]}, "blue", "x: expected one of red, green, got 'blue'"),
        ({"type": "integer"}, "y" * 200, f"x: expected a whole number, got '{'y' * 100}…'"),
    ],
)
def test_what_cannot_be_is_refused_with_what_is_expected(schema, text, reason):
    with pytest.raises(BadArguments) as caught:
        value(schema, text)

    assert str(caught.value).startswith(reason)
    assert caught.value.path == "/x"


def test_a_misspelt_choice_gets_a_suggestion():
    with pytest.raises(BadArguments) as caught:
        value({"enum": ["ascending", "descending"]}, "ascendin")

    assert caught.value.hint == "did you mean 'ascending'?"


def test_a_key_given_several_times_makes_a_list_of_the_items_kind():
    numbers = {"type": "array", "items": {"type": "number"}}

    assert value(numbers, "1", "2.5") == [1, 2.5]
    assert value({"anyOf": [numbers, {"type": "null"}]}, "1", "2") == [1, 2]


def test_references_are_followed_but_not_in_circles():
    definitions = {
        "Colour": {"enum": ["red"]},
        "a/b": {"type": "integer"},
        "Loop": {"$ref": "#/$defs/Loop"},
    }

    assert value({"$ref": "#/$defs/Colour"}, "red", **{"$defs": definitions}) == "red"
    assert value({"$ref": "#/$defs/a~1b"}, "5", **{"$defs": definitions}) == 5
    assert value({"$ref": "#/$defs/Loop"}, "5", **{"$defs": definitions}) == 5
    assert value({"$ref": "https://example.com/x"}, "text") == "text"


def test_json_is_taken_as_it_is_whatever_the_schema_says():
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}

    assert to_arguments(words(["x:=[1, null]"]), schema) == {"x": [1, None]}


def test_a_tool_that_takes_anything_gets_anything():
    assert to_arguments(words(["a=1", "b=x"]), {"type": "object"}) == {"a": 1, "b": "x"}
    whole = {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}
    assert to_arguments(words(["b=1"]), whole) == {"b": 1}


def test_properties_of_all_alternatives_are_known():
    schema = {"anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {}}}]}

    assert to_arguments(words(["a=1", "b=1"]), schema) == {"a": "1", "b": 1}
    with pytest.raises(BadArguments, match="there is no argument 'c'"):
        to_arguments(words(["c=1"]), schema)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe")

    with pytest.raises(BadArguments, match="is not UTF-8 text"):
        words([f"x=@{tmp_path / 'binary'}"])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)  # fmt: skip


@given(values)
def test_every_value_can_be_given_as_json(data):
    assert to_arguments(words([f"x:={json.dumps(data)}"]), {"type": "object"}) == {"x": data}


@given(st.text().filter(lambda text: not text.startswith("@")))
def test_every_text_can_be_given_where_a_text_is_wanted(text):
    assert value({"type": "string"}, text) == text


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_can_be_given_where_a_number_is_wanted(number):
    assert value({"type": "number"}, repr(number)) == number


@given(values, st.text(min_size=1).filter(lambda text: not text.startswith("@")))
def test_no_schema_is_strange_enough_to_break_it(schema, text):
    with suppress(BadArguments):
        to_arguments(words([f"x={text}"]), {"type": "object", "properties": {"x": schema}})
