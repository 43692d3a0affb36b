import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.config import jsonc, toml, yaml
from multitap.config.documents import Document, Malformed

from .reading import FIXTURES


def places(parsed, text):
    document = Document(path=FIXTURES, data=parsed.data, text=text, marks=parsed.marks)
    return {
        key: (document.at(mark.key), document.at(mark.value)) for key, mark in parsed.marks.items()
    }


def short(parsed, text):
    return {
        key: (name.line, name.column, value.line, value.column)
        for key, (name, value) in places(parsed, text).items()
    }


def test_jsonc_values_know_their_line_and_column():
    text = '{ // first\n  "a": {"b": [1, "é", /* x */ true]},\n\t"c": null,\n}'

    parsed = jsonc.parse(text)

    assert parsed.data == {"a": {"b": [1, "é", True]}, "c": None}
    assert short(parsed, text) == {
        (): (1, 1, 1, 1),
        ("a",): (2, 3, 2, 8),
        ("a", "b"): (2, 9, 2, 14),
        ("a", "b", 0): (2, 15, 2, 15),
        ("a", "b", 1): (2, 18, 2, 18),
        ("a", "b", 2): (2, 31, 2, 31),
        ("c",): (3, 2, 3, 7),
    }


def test_toml_values_know_their_line_and_column():
    text = 'a.b = 1\r\n[[s]]\r\nn = "x"\r\n[s.env]\r\n"K k" = """1\r\n2"""\r\n'
    text += "[[s]]\r\nl = [1, { z = 2 }] # end\r\n"

    parsed = toml.parse(text)

    assert parsed.data == {
        "a": {"b": 1},
        "s": [{"n": "x", "env": {"K k": "1\n2"}}, {"l": [1, {"z": 2}]}],
    }
    assert short(parsed, text) == {
        (): (1, 1, 1, 1),
        ("a",): (1, 1, 1, 1),
        ("a", "b"): (1, 3, 1, 7),
        ("s",): (2, 3, 2, 3),
        ("s", 0): (2, 3, 2, 3),
        ("s", 0, "n"): (3, 1, 3, 5),
        ("s", 0, "env"): (4, 4, 4, 4),
        ("s", 0, "env", "K k"): (5, 1, 5, 9),
        ("s", 1): (7, 3, 7, 3),
        ("s", 1, "l"): (8, 1, 8, 5),
        ("s", 1, "l", 0): (8, 6, 8, 6),
        ("s", 1, "l", 1): (8, 9, 8, 9),
        ("s", 1, "l", 1, "z"): (8, 11, 8, 15),
    }


def test_yaml_values_know_their_line_and_column():
    text = "a:\n  - 1\n  - k: yes\nb: {c: 0o17, d: ~}\n"

    parsed = yaml.parse(text)

    assert parsed.data == {"a": [1, {"k": "yes"}], "b": {"c": 15, "d": None}}
    assert short(parsed, text) == {
        (): (1, 1, 1, 1),
        ("a",): (1, 1, 2, 3),
        ("a", 0): (2, 5, 2, 5),
        ("a", 1): (3, 5, 3, 5),
        ("a", 1, "k"): (3, 5, 3, 8),
        ("b",): (4, 1, 4, 4),
        ("b", "c"): (4, 5, 4, 8),
        ("b", "d"): (4, 14, 4, 17),
    }


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ('{"a": 1 "b": 2}', 1, 9, "expected `,` or `}`, got a string"),
        ('{\n  "a" 1}', 2, 7, "expected `:`, got '1'"),
        ("{'a': 1}", 1, 2, 'expected a name in double quotes or `}`, got "\'"'),
        ("{\"a\": 'x'}", 1, 7, "strings need double quotes"),
        ('{"a": True}', 1, 7, "expected a value, got 'True'"),
        ('{"a": [1, 2}', 1, 12, "expected `,` or `]`, got '}'"),
        ('{"a": 1', 1, 8, "the file ends where `,` or `}` was expected"),
        ('{"a": 1} x', 1, 10, "expected the end of the file, got 'x'"),
        ('{"a": "x\n"}', 1, 7, "this string is not closed on its line"),
        ('{"a": "\\q"}', 1, 7, "this string is not valid: invalid \\escape"),
        ('{"a": 1 /* x}', 1, 9, "this comment is never closed"),
        ('{"a": 1} /* never closed', 1, 10, "this comment is never closed"),
        ('{"a": ' + "9" * 5000 + "}", 1, 7, "this number is too long"),
        ('{"a": ,}', 1, 7, "expected a value, got ','"),
    ],
)
def test_a_slip_in_jsonc_is_found_where_it_is(text, line, column, message):
    with pytest.raises(Malformed) as caught:
        jsonc.parse(text)

    place = Document(path=FIXTURES, data=None, text=text).at(caught.value.offset)
    assert (place.line, place.column, str(caught.value)) == (line, column, message)


@pytest.mark.parametrize(
    ("reader", "text", "line", "column"),
    [
        pytest.param(toml, "a = 1\r\nb = [1\r\nc = 2\r\n", 3, 1, id="toml"),
        pytest.param(toml, "a = ", 1, 5, id="toml-end"),
        pytest.param(yaml, "a: [1\nb: 2\n", 2, 2, id="yaml"),
        pytest.param(yaml, "a: 1\n? [1]\n: 2\n", 2, 3, id="yaml-key"),
        pytest.param(yaml, "a: !!int x\n", 1, 4, id="yaml-value"),
    ],
)
def test_a_slip_in_other_formats_is_found_where_it_is(reader, text, line, column):
    with pytest.raises(Malformed) as caught:
        reader.parse(text)

    place = Document(path=FIXTURES, data=None, text=text).at(caught.value.offset)
    assert (place.line, place.column) == (line, column)


def test_a_key_written_twice_is_reported_and_the_last_one_counts():
    assert jsonc.parse('{"a": {"b": 1, "c": 2, "b": 3}}').duplicates == (("a", "b"),)
    assert jsonc.parse('{"b": 1, "c": 2, "b": 3}').data == {"c": 2, "b": 3}
    assert yaml.parse("b: 1\nc: 2\nb: 3\n").duplicates == (("b",),)


def test_an_anchor_may_be_used_again():
    assert yaml.parse("a: &x 1\nb: *x\nc: &x 2\nd: *x\n").data == {"a": 1, "b": 1, "c": 2, "d": 2}


def test_aliases_cannot_blow_up_a_small_yaml_file():
    text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for name, previous in zip("bcdefgh", "abcdefg", strict=True):
        text += f"{name}: &{name} [{', '.join([f'*{previous}'] * 10)}]\n"

    with pytest.raises(Malformed, match="has more than 10,000 values"):
        yaml.parse(text)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON, st.sampled_from([None, 2]), st.booleans())
def test_jsonc_reads_all_json_as_json_does(data, indent, ascii_only):
    text = json.dumps(data, indent=indent, ensure_ascii=ascii_only)

    parsed = jsonc.parse(text)

    assert parsed.data == data
    assert_marks_cover(parsed)


NAME = st.text("abcü.-_ '\"\\", max_size=4)
SCALAR = st.sampled_from(
    [
        "1",
        "-2.5e3",
        "true",
        '"a#]}"',
        "'b\"'",
        "1979-05-27T07:32:00Z",
        "'''c\n'd'''",
        '"""e\\"\nf"""""',
    ]
)
VALUE = st.recursive(
    SCALAR,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[\n" + ", # x\n".join(items) + " ]")
        | st.dictionaries(NAME, inner, max_size=3).map(
            lambda table: (
                "{ "
                + ", ".join(f"{json.dumps(k, ensure_ascii=False)} = {v}" for k, v in table.items())
                + " }"
            )
        )
    ),
    max_leaves=8,
)
SECTION = st.tuples(
    st.sampled_from(["[{}]", "[[ {} ]]"]),
    st.lists(NAME, min_size=1, max_size=3),
    st.dictionaries(NAME, VALUE, max_size=3),
)


@given(st.lists(SECTION, max_size=5))
def test_every_value_of_any_toml_has_a_place(sections):
    text = ""
    for shape, path, table in sections:
        header = shape.format(" . ".join(json.dumps(step, ensure_ascii=False) for step in path))
        pairs = [
            f"{json.dumps(key, ensure_ascii=False)} = {value}\n" for key, value in table.items()
        ]
        candidate = text + header + " # c\n" + "".join(pairs)
        try:
            tomllib.loads(candidate)
        except tomllib.TOMLDecodeError:
            continue
        text = candidate

    parsed = toml.parse(text)

    assert parsed.data == tomllib.loads(text)
    assert_marks_cover(parsed)


def assert_marks_cover(parsed):
    """Exactly the values of the data have places, and in the order in which they stand."""

    def keys(value, key):
        yield key
        members = value.items() if isinstance(value, dict) else ()
        members = enumerate(value) if isinstance(value, list) else members
        for step, member in members:
            yield from keys(member, (*key, step))

    assert set(parsed.marks) == set(keys(parsed.data, ()))
    assert all(mark.key <= mark.value for mark in parsed.marks.values())
