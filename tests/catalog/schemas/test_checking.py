"""Arguments and results are checked against their schemas."""

import http.server
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.catalog.schemas import (
    Checker,
    ResultChecker,
    Unchecked,
    bounds,
    compile_schema,
    defect,
)
from multitap.catalog.schemas.schema import dialect, is_plain
from multitap.errors import BadArguments

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def tool(schema, **fields):
    return {"name": "search", "inputSchema": schema, **fields}


def schema(**properties):
    return {"type": "object", "properties": properties}


def bomb(keyword, levels, last):
    """Every level holds the one below twice."""
    definitions = {"level0": last}
    for level in range(1, levels + 1):
        below = {"$ref": f"#/$defs/level{level - 1}"}
        definitions[f"level{level}"] = {keyword: [below, below]}
    return {"type": "object", "properties": {"x": below}, "$defs": definitions}


def nested(levels, inner, wrap=lambda below: {"properties": {"x": below}}):
    for _ in range(levels):
        inner = wrap(inner)
    return inner


def chain(length):
    definitions = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(length)}
    return {"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": definitions | {f"d{length}": {}}}


def deep(levels, leaf=1):
    value = leaf
    for _ in range(levels):
        value = {"x": value}
    return value


def refused(checker, arguments):
    with pytest.raises(BadArguments) as caught:
        checker.check(arguments)
    return caught.value


TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"}},
            "required": ["value"],
        }
    },
}

UNION = {
    "oneOf": [
        {"properties": {"kind": {"const": kind}, "x": {"$ref": "#"}}, "required": ["kind"]}
        for kind in "abcdef"
    ]
}


@pytest.mark.parametrize(
    ("arguments", "path", "words"),
    [
        ({"limit": "ten"}, "/limit", '/limit is not of type "integer"'),
        ({"labels": ["a", 1]}, "/labels/1", '/labels/1 is not of type "string"'),
        ({"state": "gone"}, "/state", '/state is not one of "open" or "closed"'),
        ({"a/b~c": 1}, "/a~1b~0c", '/a~1b~0c is not of type "string"'),
        ({"where": {}}, "/where", '/where: "path" is a required property'),
        (
            {"since": 1},
            "/since",
            'it is not of type "string" and is not of type "null"',
        ),
        ({"other": 1}, "", "Additional properties are not allowed ('other' was unexpected)"),
        ({"limit": b"10"}, "", "not JSON: Unsupported type: 'bytes'"),
        ({"limit": {1: 2}}, "", "not JSON: Dict key must be str"),
    ],
)
def test_e18_the_error_names_the_path_and_what_was_expected(arguments, path, words):
    checker = compile_schema(
        {
            "type": "object",
            "properties": {
                "limit": {"type": "integer"},
                "labels": {"type": "array", "items": {"type": "string"}},
                "state": {"enum": ["open", "closed"]},
                "a/b~c": {"type": "string"},
                "where": {"type": "object", "required": ["path"]},
                "since": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            "additionalProperties": False,
        }
    )

    error = refused(checker, arguments)

    assert error.path == path
    assert words in str(error)


def test_arguments_that_fit_pass():
    checker = compile_schema(schema(a={"type": "integer"}))

    checker.check({"a": 1, "b": {"c": [1, (2, 3)]}})


def test_whether_null_stands_for_an_optional_member_is_for_the_server_to_decide():
    inner = {"type": "object", "properties": {"b": {"type": "string"}}}
    checker = compile_schema(
        {
            "type": "object",
            "properties": {"flag": {"type": "boolean"}, "name": {"type": "string"}, "in": inner},
            "required": ["name"],
            "additionalProperties": False,
        }
    )

    checker.check({"flag": None, "name": "x", "in": {"b": None}})
    for wrong in ({"name": None}, {"flag": None}, {"flag": None, "name": 1}):
        with pytest.raises(BadArguments, match="name"):
            checker.check(wrong)


def test_the_first_errors_are_named_and_the_rest_counted():
    checker = compile_schema(schema(a={"items": {"type": "string"}}))

    error = refused(checker, {"a": [1] * 5})

    assert str(error) == (
        '/a/0 is not of type "string"; /a/1 is not of type "string"; '
        '/a/2 is not of type "string"; and 2 more'
    )


def test_an_error_does_not_repeat_the_value():
    checker = compile_schema(schema(password={"type": "integer"}, key={"const": 1}))

    assert "hunter2" not in str(refused(checker, {"password": "hunter2", "key": "hunter2"}))


def test_the_words_of_an_error_have_an_end():
    checker = compile_schema(schema(a={"enum": ["x" * 100] * 100}))

    assert len(str(refused(checker, {"a": 1}))) < 400


def test_formats_are_not_asserted():
    compile_schema(schema(a={"type": "string", "format": "email"})).check({"a": "no address"})


def test_a_regular_expression_that_freezes_others_is_checked_at_once():
    checker = compile_schema(schema(a={"pattern": "^(a+)+$"}))

    checker.check({"a": "a" * 100_000})
    assert refused(checker, {"a": "a" * 100_000 + "!"}).path == "/a"


def test_a_pattern_too_hard_to_try_lets_the_value_pass():
    checker = compile_schema(schema(a={"pattern": r"^(?=.*x)(a|a|aa)+\1$"}, b={"type": "null"}))

    checker.check({"a": "a" * 5000 + "x!"})
    assert refused(checker, {"a": "a" * 5000 + "x!", "b": 1}).path == "/b"


def test_a_pattern_with_look_around_is_understood():
    checker = compile_schema(schema(a={"pattern": r"^(?!\.)[a-z.]+$"}))

    checker.check({"a": "a.b"})
    assert refused(checker, {"a": ".b"}).path == "/a"


def test_unique_items_of_a_long_list_are_checked():
    checker = compile_schema(schema(a={"uniqueItems": True}))
    items = [{"id": number} for number in range(20_000)]

    checker.check({"a": items})
    assert "do not match" in str(refused(checker, {"a": [*items, items[0]]}))


def test_a_long_list_with_many_errors_is_refused_without_details():
    checker = compile_schema(schema(a={"items": {"anyOf": [{"type": "null"}, {"const": 1}]}}))

    error = refused(checker, {"a": ["x"] * 200_000})

    assert "too many mismatches to list" in str(error)
    assert error.path == ""


@pytest.mark.parametrize(
    ("hostile", "reason"),
    [
        pytest.param(bomb("anyOf", 24, {"type": "string"}), "50,000 checks", id="anyOf"),
        pytest.param(bomb("allOf", 200, {"type": "string"}), "50,000 checks", id="allOf"),
        pytest.param(bomb("oneOf", 600, True), "50,000 checks", id="oneOf, long"),
        pytest.param(
            nested(24, {}, lambda below: {"not": {"if": below, "then": below}}),
            "50,000 checks",
            id="if and then, inline and shared",
        ),
        pytest.param(
            nested(
                20, schema(a={}), lambda below: {"allOf": [below], "unevaluatedProperties": False}
            ),
            "50,000 checks",
            id="unevaluatedProperties",
        ),
        pytest.param(nested(65, {}), "64 levels", id="deep"),
        pytest.param(nested(5000, {}), "64 levels", id="very deep"),
        pytest.param(schema(**{f"p{n}": {} for n in range(2000)}), "2,000 subschemas", id="wide"),
        pytest.param(
            schema(**{f"p{n}": {"pattern": r"\p{L}{50}"} for n in range(101)}),
            "100 patterns",
            id="patterns",
        ),
        pytest.param(
            {"patternProperties": {f"p{n}": {} for n in range(101)}},
            "100 patterns",
            id="pattern properties",
        ),
        pytest.param(chain(65), "more than 64 times", id="chain of references"),
        pytest.param(schema(a={"$ref": "#/$defs/none"}), "no such part", id="dangling"),
        pytest.param(schema(a={"$ref": "#none"}), "not part of it", id="unknown anchor"),
        pytest.param(schema(a={"$ref": "https://x.example/s"}), "not part of it", id="remote"),
        pytest.param(schema(a={"$ref": "file:///etc/passwd"}), "not part of it", id="file"),
        pytest.param(schema(a={"$ref": 5}), "not part of it", id="no reference at all"),
        pytest.param(
            {"$defs": {"a": {"$id": "https://x.example/a"}}, "$ref": "#/$defs/a"}, "`$id`", id="id"
        ),
    ],
)
def test_a_schema_that_could_cost_too_much_goes_unchecked_with_a_reason(hostile, reason):
    checker = compile_schema(hostile)

    assert isinstance(checker, Unchecked)
    assert reason in checker.reason
    assert checker.reason == bounds(hostile)
    checker.check({"anything": object()})


@pytest.mark.parametrize(
    "harmless",
    [
        pytest.param({}, id="empty"),
        pytest.param(TREE, id="tree"),
        pytest.param(UNION, id="recursive union"),
        pytest.param({"$ref": "#"}, id="itself"),
        pytest.param({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, id="itself twice"),
        pytest.param(nested(60, {}), id="rather deep"),
        pytest.param(chain(60), id="rather long chain"),
        pytest.param(bomb("anyOf", 12, {"type": "string"}), id="small bomb"),
        pytest.param(
            {
                "$defs": {"a/b c": {"type": "null"}},
                "properties": {"x": {"$ref": "#/$defs/a~1b%20c"}},
            },
            id="escaped pointer",
        ),
        pytest.param(
            {"$defs": {"a": {"$anchor": "here"}}, "properties": {"x": {"$ref": "#here"}}},
            id="anchor",
        ),
        pytest.param(
            schema(a={"$ref": "#/prefixItems/1"}) | {"prefixItems": [{}, True]}, id="true"
        ),
        pytest.param(schema(id={"type": "string"}, **{"$ref": {}}), id="odd property names"),
    ],
)
def test_a_harmless_schema_is_checked(harmless):
    assert bounds(harmless) is None
    assert isinstance(compile_schema(harmless), Checker)


def test_no_reference_is_ever_fetched():
    asked = []

    class Trap(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Trap) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/schema"
        for suspicious in (
            schema(a={"$ref": url}),
            {"type": "object", "$schema": url},
            {"type": "object", "$id": url, "properties": {"a": {"$ref": "other"}}},
            schema(a={"$schema": url}),
        ):
            compile_schema(suspicious)
            defect(tool(suspicious))
        server.shutdown()
        thread.join()

    assert asked == []


def test_recursive_arguments_are_checked_to_the_bottom():
    checker = compile_schema(TREE)

    checker.check({"value": 1, "left": {"value": 2, "right": {"value": 3}}})
    error = refused(checker, {"value": 1, "left": {"value": 2, "right": {}}})

    assert error.path == "/left/right"


@pytest.mark.parametrize("levels", [5, 30, 126])
def test_a_recursive_union_costs_no_more_for_deep_arguments(levels):
    checker = compile_schema(UNION)

    assert isinstance(refused(checker, deep(levels)), BadArguments)


@pytest.mark.parametrize("levels", [129, 1000, 100_000])
def test_arguments_nested_too_deep_are_refused_before_they_overflow_the_stack(levels):
    checker = compile_schema({"properties": {"x": {"$ref": "#"}}, "required": ["x"]})

    error = refused(checker, deep(levels))

    assert str(error) == "nested more than 128 levels deep"


@pytest.mark.parametrize(
    "old",
    [
        pytest.param(schema(a={"minimum": 0, "exclusiveMinimum": True}), id="draft 4"),
        pytest.param(schema(a={"items": [{"minimum": 1}]}), id="draft 7"),
        pytest.param(schema(a={"minimum": 1}) | {"$schema": DRAFT_7}, id="declared"),
        pytest.param(schema(a={"minimum": 1}) | {"$schema": "urn:unheard-of"}, id="unknown"),
        pytest.param(schema(a={"minimum": 1}) | {"$schema": DRAFT_7[:-1]}, id="without the #"),
    ],
)
def test_every_dialect_of_json_schema_is_understood(old):
    checker = compile_schema(old)

    assert defect(tool(old)) is None
    assert refused(checker, {"a": [0] if "items" in old["properties"]["a"] else 0})


def test_a_schema_that_does_not_compile_goes_unchecked_with_a_reason():
    checker = compile_schema(schema(a={"pattern": "["}))

    assert isinstance(checker, Unchecked)
    assert "regex" in checker.reason


def test_a_schema_no_validator_accepts_goes_unchecked():
    assert isinstance(compile_schema(schema(a={"type": "objct"})), Unchecked)


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ({"inputSchema": {}}, "no name"),
        ({"name": 5, "inputSchema": {}}, "no name"),
        ({"name": "", "inputSchema": {}}, "no name"),
        ({"name": "x" * 1025, "inputSchema": {}}, "longer than 1,024"),
        ({"name": "a"}, "no inputSchema"),
        (tool(None), "no inputSchema"),
        (tool("object"), "not an object"),
        (tool([]), "not an object"),
        (tool({"type": "string"}), "of type 'string'"),
        (tool({"type": None}), "of type None"),
        (tool({"type": ["object"]}), "not 'object'"),
        (tool(schema(a={"type": "objct"})), "not a JSON Schema: .* at /properties/a/type"),
        (tool({"properties": []}), "not a JSON Schema: .* at /properties"),
    ],
)
def test_d20_a_definition_that_cannot_be_used_is_named_with_its_reason(definition, reason):
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(defect(definition))


@pytest.mark.parametrize(
    "definition",
    [
        tool({}),
        tool({"type": "object"}),
        tool(schema(a={"type": "string"}), description=5, title=None, outputSchema="?"),
        tool(nested(300, {})),
        tool(bomb("anyOf", 30, {})),
        tool(schema(a={"$ref": "https://x.example/s"})),
    ],
)
def test_a_definition_with_lesser_faults_can_be_used(definition):
    assert defect(definition) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab#/", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=8,
)
keywords = st.sampled_from(
    [
        *("type", "properties", "items", "anyOf", "allOf", "not", "$ref", "$defs", "required"),
        *("enum", "pattern", "patternProperties", "$anchor", "$id", "$schema", "dependencies"),
    ]
)
odd_schemas = st.recursive(
    json_values,
    lambda inner: st.dictionaries(keywords, inner | st.lists(inner, max_size=3), max_size=4),
    max_leaves=12,
).filter(lambda value: isinstance(value, dict))


@given(odd_schemas, st.dictionaries(st.text("ab", max_size=2), json_values, max_size=3))
def test_no_schema_makes_more_of_a_call_than_pass_or_refuse(odd, arguments):
    checker = compile_schema(odd)

    refusal = None
    try:
        checker.check(arguments)
    except BadArguments as error:
        refusal = error

    assert refusal is None or isinstance(checker, Checker)
    assert defect(tool(odd)) is None or "inputSchema" in defect(tool(odd))


def misfit(schema, value):
    return ResultChecker(schema).misfit(msgspec.Raw(msgspec.json.encode(value)))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"n": 1}, None),
        ({"n": "secret"}, '/n is not of type "integer"'),
        ([1], 'the whole is not of type "object"'),
        ({"n": 1, "rest": list(range(1000))}, None),
    ],
)
def test_a_result_that_does_not_fit_is_described_by_its_first_mistake(value, words):
    assert misfit(schema(n={"type": "integer"}), value) == words


@pytest.mark.parametrize(
    ("hostile", "value"),
    [
        pytest.param(bomb("anyOf", 20, {"type": "null"}), {"x": 1}, id="schema out of bounds"),
        pytest.param(bomb("allOf", 12, {"type": "null"}), {"x": [1] * 5000}, id="too much work"),
        pytest.param(schema(x={"type": "null"}), deep(40), id="deep"),
        pytest.param(schema(x={"type": "null"}), {"x": "y" * 1_100_000}, id="large"),
        pytest.param(schema(x={"pattern": "(?=a)(a|a)*$"}), {"x": "b"}, id="costly pattern"),
    ],
)
def test_a_result_that_would_cost_too_much_to_check_passes(hostile, value):
    assert misfit(hostile, value) is None


TYPES = ("array", "boolean", "integer", "null", "number", "object", "string", "what")
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2**70), st.floats(-5, 5), st.sampled_from(TYPES)
)
KEYWORDS = st.sampled_from(
    [
        *("$ref", "$schema", "const", "default", "description", "enum", "examples", "format"),
        *("exclusiveMaximum", "maxItems", "maxLength", "minProperties", "minimum", "readOnly"),
        *("required", "title", "type", "uniqueItems", "items", "additionalProperties", "not"),
        *("properties", "$defs", "definitions", "anyOf", "allOf", "oneOf", "x-more", "pattern"),
        *("if", "dependentRequired", "patternProperties", "$id", "$anchor", "contains"),
    ]
)
VALUES = st.recursive(
    st.one_of(
        SCALARS,
        st.lists(st.sampled_from(TYPES), max_size=3),
        st.sampled_from([DRAFT_7, "#/$defs/a", "#/definitions/a b", "#/$defs/%", "^["]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(KEYWORDS, inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    ),
    max_leaves=12,
)


@given(st.dictionaries(KEYWORDS, VALUES, max_size=4))
def test_what_is_plainly_a_schema_is_accepted_by_its_version(value):
    if is_plain(value):
        assert dialect(value) is not None


def test_what_most_servers_send_is_plain():
    assert is_plain(
        {
            "$schema": DRAFT_7,
            "title": "Search",
            "type": "object",
            "properties": {
                "query": {"type": "string", "minLength": 1, "description": "What for"},
                "limit": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
                "kind": {"enum": ["a", "b"], "default": "a"},
                "filter": {"$ref": "#/$defs/Filter_1"},
            },
            "required": ["query"],
            "additionalProperties": False,
            "$defs": {"Filter_1": {"type": "array", "items": {"type": "string"}}},
        }
    )


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "what"},
        {"type": ["string", "string"]},
        {"required": "query"},
        {"minLength": -1},
        {"minimum": True},
        {"properties": {"x": 1}},
        {"anyOf": []},
        {"pattern": "^["},
        {"$schema": "http://json-schema.org/draft-04/schema#", "required": []},
    ],
    ids=str,
)
def test_what_may_be_no_schema_is_not_plain(odd):
    assert not is_plain(odd)
