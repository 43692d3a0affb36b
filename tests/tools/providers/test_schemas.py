"""Schemas that each provider accepts."""

from copy import deepcopy

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multitap.tools import ToolDef, ToolRegistry
from multitap.tools.providers.dialects import Restoration, restore_value
from tests.tools import published
from tests.tools.published import fits

PROVIDERS = {
    "openai": (lambda registry: registry.for_openai(), published.openai_chat),
    "strict": (lambda registry: registry.for_openai(strict=True), published.openai_chat),
    "responses": (
        lambda registry: registry.for_openai(api="responses", strict=True),
        published.openai_responses,
    ),
    "anthropic": (lambda registry: registry.for_anthropic(), published.anthropic),
    "gemini": (lambda registry: registry.for_gemini(), published.gemini),
}


def registered(schema, name="tool", description="Does it."):
    return ToolRegistry([ToolDef(name, description, schema, print)])


def sent(offer):
    """The schema that the one tool of an offer is sent with."""
    (tool,) = offer.tools
    if "functionDeclarations" in tool:
        (tool,) = tool["functionDeclarations"]
    tool = tool.get("function", tool)
    return tool.get("parameters") or tool.get("input_schema")


def argument(schema, **definitions):
    """A schema with one argument, `x`."""
    return {"type": "object", "properties": {"x": schema}, "required": ["x"], **definitions}


def at_x(offer):
    return sent(offer)["properties"]["x"]


NODE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "child": {"$ref": "#/$defs/Node"}},
    "required": ["name"],
}
DIAMONDS = {
    f"D{level}": {
        "type": "object",
        "properties": {side: {"$ref": f"#/$defs/D{level + 1}"} for side in "lr"},
    }
    for level in range(30)
} | {"D30": {"type": "string"}}
ODD = {
    "nothing at all": {},
    "no properties": {"type": "object"},
    "recursion": argument({"$ref": "#/$defs/Node"}, **{"$defs": {"Node": NODE}}),
    "the whole within itself": argument({"$ref": "#"}),
    "a reference to itself": argument({"$ref": "#/properties/x"}),
    "two that refer to each other": argument(
        {"$ref": "#/$defs/A"}, **{"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}}
    ),
    "a reference elsewhere": argument({"$ref": "https://example.com/x.json"}),
    "2 to the 30 nodes": argument({"$ref": "#/$defs/D0"}, **{"$defs": DIAMONDS}),
    "an array of anything": argument({"type": "array"}),
    "an array or null": argument({"type": ["array", "null"]}),
    "a tuple": argument({"type": "array", "items": [{"type": "string"}, {"type": "number"}]}),
    "a closed tuple": argument(
        {"type": "array", "prefixItems": [{"type": "string"}, {}], "items": False}
    ),
    "true": argument(True),
    "false": argument(False),
    "any value": argument({}),
    "a constant": argument({"const": 3}),
    "values of all kinds": argument({"enum": ["a", 1, None, True, {"b": 2}]}),
    "an empty value": argument({"type": "string", "enum": ["", "a"]}),
    "values of another type": argument({"type": "string", "enum": [1, 2]}),
    "null": argument({"type": "null"}),
    "null twice": argument({"anyOf": [{"type": "null", "title": "a"}, {"type": "null"}]}),
    "draft 4": argument({"type": "number", "minimum": 1, "exclusiveMinimum": True}),
    "a pattern not of Python": argument({"type": "string", "pattern": r"^\p{L}(?=x)"}),
    "OpenAPI": argument({"type": "string", "nullable": True}),
    "a map": argument({"type": "object", "additionalProperties": {"type": "integer"}}),
    "not": argument({"not": {"type": "string"}}),
    "required by alternatives": argument(
        {"type": "object", "properties": {"a": {}}, "oneOf": [{"required": ["a"]}, {}]}
    ),
    "odd names": {
        "type": "object",
        "properties": {"@id": {"type": "string"}, "a b": {}, "a_b": {}, "": {}},
    },
    "anyOf": {"anyOf": [{"type": "object", "properties": {"a": {}}}, {"type": "string"}]},
    "allOf": {"type": "object", "allOf": [{"$ref": "#/$defs/Node"}], "$defs": {"Node": NODE}},
    "if": {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "if": {"properties": {"a": {"const": "b"}}},
        "then": {"properties": {"c": {"type": "string"}}, "required": ["c"]},
        "else": {"not": {"required": ["c"]}},
    },
    "required but not there": {"type": "object", "properties": {}, "required": ["gone"]},
}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("schema", ODD.values(), ids=ODD)
def test_every_schema_comes_out_acceptable_and_stays_as_it_was(provider, schema):
    before = deepcopy(schema)
    convert, objections = PROVIDERS[provider]
    offer = convert(registered(schema))

    assert not [*objections(offer.tools)]
    assert not offer.skipped
    assert schema == before


def test_definitions_are_written_out_where_they_are_used():
    offer = registered(
        argument(
            {"$ref": "#/$defs/Unit", "description": "How to say it."},
            **{"$defs": {"Unit": {"type": "string", "enum": ["C", "F"], "description": "A unit."}}},
        )
    ).for_openai()

    assert at_x(offer) == {"type": "string", "enum": ["C", "F"], "description": "How to say it."}
    assert str(offer.changes[0]) == (
        "tool/properties/x: `#/$defs/Unit` is written out, "
        "because not every model follows references"
    )
    assert len(offer.changes) == 1


def test_a_definition_within_itself_ends_with_its_type():
    offer = registered(argument({"$ref": "#/$defs/Node"}, **{"$defs": {"Node": NODE}})).for_openai()

    assert at_x(offer)["properties"]["child"] == {"type": "object", "properties": {}}
    assert "it contains itself" in {change.why for change in offer.changes}


def test_alternatives_at_the_top_become_one_object_and_a_sentence():
    offer = registered(
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": "file"}, "path": {"type": "string"}},
                    "required": ["kind", "path"],
                },
                {
                    "type": "object",
                    "properties": {"kind": {"const": "url"}, "url": {"type": "string"}},
                    "required": ["kind", "url"],
                },
            ]
        }
    ).for_anthropic()

    assert sent(offer) == {
        "type": "object",
        "properties": {
            "kind": {"enum": ["file", "url"]},
            "path": {"type": "string"},
            "url": {"type": "string"},
        },
        "required": ["kind"],
    }
    assert offer.tools[0]["description"] == (
        'Does it. Needed together: kind="file", path; or kind="url", url.'
    )


def test_what_alternatives_demand_is_said():
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string"}, "body": {"type": "string"}},
        "anyOf": [{"required": ["title"]}, {"required": ["body"]}],
    }
    offer = registered(schema).for_openai()

    assert offer.tools[0]["function"]["description"].endswith(
        "At least one of these is needed: title, body."
    )


def test_gemini_hears_in_words_what_its_schemas_cannot_say():
    schema = {"type": "string", "format": "uri", "default": "a:b", "description": "Where."}
    offer = registered(argument({"anyOf": [schema, {"type": "null"}]})).for_gemini()

    assert at_x(offer) == {
        "type": "STRING",
        "nullable": True,
        "description": "Where. (default: a:b; format: uri)",
    }


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({"type": ["string", "integer"]}, {"anyOf": [{"type": "STRING"}, {"type": "INTEGER"}]}),
        ({"type": ["string", "null"]}, {"type": "STRING", "nullable": True}),
        ({"enum": [1, 2]}, {"type": "INTEGER", "description": "(enum: [1,2])"}),
        ({"enum": ["a", "b"]}, {"type": "STRING", "format": "enum", "enum": ["a", "b"]}),
        ({"const": "a"}, {"type": "STRING", "format": "enum", "enum": ["a"]}),
        ({"type": "integer", "format": "int64"}, {"type": "INTEGER", "format": "int64"}),
        (
            {"allOf": [{"type": "string"}, {"minLength": 2}, {"minLength": 3}]},
            {"type": "STRING", "minLength": 3},
        ),
        (
            {"type": "array", "items": [{"type": "string"}, {"type": "string"}]},
            {"type": "ARRAY", "items": {"type": "STRING"}},
        ),
    ],
)
def test_gemini_gets_its_own_dialect(schema, made):
    assert at_x(registered(argument(schema)).for_gemini()) == made


def test_strict_mode_has_optional_arguments_as_null():
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 1},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "days": {"type": "integer", "default": 1},
            "note": {"type": ["string", "null"]},
        },
        "required": ["city"],
    }
    offer = registered(schema).for_openai(strict=True)
    call = offer.call("1", "tool", '{"city":"Bern","unit":null,"days":null,"note":null}')

    assert sent(offer) == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "(minLength: 1)"},
            "unit": {"anyOf": [{"type": "string", "enum": ["C", "F"]}, {"type": "null"}]},
            "days": {"type": ["integer", "null"], "description": "(default: 1)"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["city", "unit", "days", "note"],
        "additionalProperties": False,
    }
    assert offer.tools[0]["function"]["strict"] is True
    assert call.arguments == {"city": "Bern", "note": None}


def test_what_cannot_be_strict_is_offered_without_and_said_so():
    schema = argument({"type": "object", "additionalProperties": {"type": "string"}})
    offer = registered(schema).for_openai(strict=True)

    assert "strict" not in offer.tools[0]["function"]
    assert [(change.what, change.why) for change in offer.changes] == [
        ("it is offered without strict mode", "`x` takes properties of any name")
    ]


def test_a_property_is_renamed_and_comes_back_under_its_name():
    schema = {
        "type": "object",
        "properties": {
            "$filter": {"type": "object", "properties": {"user id": {"type": "string"}}},
            "_filter": {"type": "string"},
        },
        "required": ["$filter"],
    }
    offer = registered(schema).for_anthropic()
    call = offer.call("1", "tool", {"_filter_2": {"user_id": "7"}, "_filter": "a"})

    assert list(sent(offer)["properties"]) == ["_filter_2", "_filter"]
    assert sent(offer)["required"] == ["_filter_2"]
    assert call.arguments == {"$filter": {"user id": "7"}, "_filter": "a"}


def test_a_property_within_a_map_comes_back_under_its_name():
    entry = {"type": "object", "properties": {"a b": {"type": "string"}}}
    schema = argument({"type": "object", "additionalProperties": {"anyOf": [entry]}})
    offer = registered(schema).for_anthropic()

    assert offer.call("1", "tool", {"x": {"any": {"a_b": "c"}}}).arguments == {
        "x": {"any": {"a b": "c"}}
    }


def test_gemini_writes_a_free_object_as_text_and_the_tool_gets_the_object():
    schema = {
        "type": "object",
        "properties": {
            "data": {"type": "object"},
            "any": {},
            "either": {"anyOf": [{"type": "string"}, {"type": "object"}]},
        },
    }
    offer = registered(schema).for_gemini()
    given = {"data": '{"a": 1}', "any": "7", "either": "7"}

    assert sent(offer)["properties"]["data"]["type"] == "STRING"
    assert offer.call("1", "tool", given).arguments == {"data": {"a": 1}, "any": 7, "either": "7"}


def test_a_huge_definition_says_less_until_it_fits():
    schema = {
        "type": "object",
        "properties": {
            f"field{number}": {
                "type": "object",
                "description": "Words and words. " * 40,
                "properties": {"deep": argument({"enum": [*"abcdef"]})},
            }
            for number in range(60)
        },
        "required": ["field1"],
    }  # fmt: skip
    whole = registered(schema).for_openai(tool_budget=100_000)
    offer = registered(schema).for_openai(tool_budget=2_000)
    tiny = registered(schema).for_openai(tool_budget=50)

    assert not whole.changes
    assert whole.tokens > 5 * offer.tokens
    assert offer.tokens < 2_100
    assert sent(offer)["properties"].keys() == schema["properties"].keys()
    assert sent(offer)["required"] == ["field1"]
    assert [change.why for change in offer.changes][:1] == ["it is too long"]
    assert [skipped.tool for skipped in tiny.skipped] == ["tool"]


def test_a_definition_is_converted_once():
    registry = registered(argument({"type": "string"}))
    first, second = registry.for_openai(), registry.for_openai()
    first.tools[0]["function"]["parameters"]["properties"].clear()

    assert at_x(second) == {"type": "string"}
    assert at_x(registry.for_openai()) == {"type": "string"}


def test_arguments_that_are_no_object_cannot_be_offered():
    offer = registered({"type": "string"}).for_openai()

    assert not offer.tools
    assert [str(one) for one in offer.skipped] == [
        "tool: its arguments are of type 'string', not an object"
    ]


def test_what_is_no_json_is_skipped_alone():
    registry = registered({"type": "object", "properties": {"a": {"default": print}}})
    registry.register(ToolDef("good", "Good.", {"type": "object"}, print))
    offer = registry.for_anthropic()

    assert [tool["name"] for tool in offer.tools] == ["good"]
    assert "cannot be written as JSON" in offer.skipped[0].why


NAMES = st.sampled_from(["a", "b", "c d", "$e", "1", "é", "x" * 70])
ABOUT = st.fixed_dictionaries(
    {}, optional={"description": st.just("Words."), "title": st.just("T"), "x-y": st.just(1)}
)


def leaves():
    return st.one_of(
        st.sampled_from(
            [
                {},
                True,
                False,
                {"type": "string"},
                {"type": "string", "format": "uri"},
                {"type": "string", "pattern": "^(?!a)"},
                {"type": ["string", "null"], "enum": ["a", None, ""]},
                {"type": "integer", "minimum": 1, "exclusiveMaximum": 9},
                {"type": "number", "multipleOf": 0.5},
                {"type": "boolean"},
                {"type": "null"},
                {"type": "array"},
                {"type": "object"},
                {"const": {"a": 1}},
                {"enum": [1, "a", True, None]},
            ]
        ),
        st.sampled_from(["#", "#/$defs/A", "#/$defs/B", "#/nowhere", "x.json"]).map(
            lambda reference: {"$ref": reference}
        ),
    )


def composed(inner):
    several = st.lists(inner, min_size=1, max_size=3)
    objects = st.fixed_dictionaries(
        {"properties": st.dictionaries(NAMES, inner, max_size=3)},
        optional={
            "type": st.just("object"),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": inner,
            "patternProperties": st.dictionaries(st.just("^a"), inner, max_size=1),
        },
    )
    return st.one_of(
        objects,
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(lambda items: {"type": "array", "prefixItems": items, "items": False}, several),
        st.builds(
            lambda word, parts, about: {word: parts, **about},
            st.sampled_from(["anyOf", "oneOf", "allOf"]),
            several,
            ABOUT,
        ),
        st.builds(lambda one, other: {"if": one, "then": other, "not": one}, inner, inner),
    )


SCHEMAS = st.recursive(leaves(), composed, max_leaves=12)
ROOTS = st.builds(
    lambda root, a, b: {**root, "$defs": {"A": a, "B": b}},
    composed(SCHEMAS).filter(lambda schema: schema.get("type") != "array"),
    SCHEMAS,
    SCHEMAS,
)


@settings(max_examples=100, deadline=None)
@given(ROOTS)
def test_nothing_a_provider_refuses_is_ever_offered(schema):
    before = msgspec.json.encode(schema)
    registry = registered(schema)

    for convert, objections in PROVIDERS.values():
        assert not [*objections(convert(registry).tools)]
    assert msgspec.json.encode(schema) == before


@st.composite
def fitting(draw, depth=2):
    """A schema whose meaning every provider keeps, and a value that fits it."""
    kinds = ["string", "integer", "enum", "nullable", "map"]
    kinds += ["array", "object", "union", "referred"] if depth else []
    match draw(st.sampled_from(kinds)):
        case "string":
            return {"type": "string"}, draw(st.text("ab1", max_size=3))
        case "integer":
            return {"type": "integer", "minimum": 0}, draw(st.integers(0, 9))
        case "enum":
            return {"enum": ["a", "b"]}, draw(st.sampled_from("ab"))
        case "nullable":
            return {"type": ["boolean", "null"]}, draw(st.sampled_from([True, None]))
        case "map":
            return {"type": "object"}, draw(st.dictionaries(st.just("k"), st.integers()))
        case "array":
            schema, value = draw(fitting(depth=depth - 1))
            return {"type": "array", "items": schema}, [value] * draw(st.integers(0, 2))
        case "union":
            schema, value = draw(fitting(depth=depth - 1))
            return {"oneOf": [schema, {"type": "number", "maximum": -1}]}, value
        case "referred":
            schema, value = draw(fitting(depth=0))
            return {"allOf": [schema], "description": "Words."}, value
        case _:
            return draw(fitting_objects(depth=depth))


@st.composite
def fitting_objects(draw, depth=2):
    parts = {name: draw(fitting(depth=depth - 1)) for name in draw(st.sets(NAMES, max_size=3))}
    required = [name for name in parts if draw(st.booleans())]
    given = {name: value for name, (_, value) in parts.items()
             if name in required or draw(st.booleans())}  # fmt: skip
    properties = {name: schema for name, (schema, _) in parts.items()}
    return {"type": "object", "properties": properties, "required": required}, given


def written(value, back: Restoration):
    """The value as a model would write it: the reverse of what the code under test does."""
    if back.text and isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    if isinstance(value, list):
        return [written(item, back.items or Restoration()) for item in value]
    if not isinstance(value, dict):
        return value
    names = {name: sent for sent, name in back.names.items()}
    given = {
        name: written(part, back.properties.get(name, Restoration()))
        for name, part in value.items()
    }
    return {names.get(name, name): part for name, part in given.items()} | {
        names.get(name, name): None for name in back.optional - given.keys()
    }


@settings(max_examples=100, deadline=None)
@given(fitting_objects())
def test_arguments_that_fit_the_tool_can_be_sent_and_come_back_the_same(pair):
    schema, value = pair
    registry = registered(schema)

    assert fits(schema, value)
    for provider, (convert, _) in PROVIDERS.items():
        offer = convert(registry)
        back = offer._backs.get("tool", Restoration())
        given = written(value, back)
        if provider in {"strict", "responses"}:
            given = complete(sent(offer), given)
        else:
            assert restore_value(given, back) == value
        assert provider == "gemini" or fits(sent(offer), given)
        assert fits(schema, offer.call("1", "tool", msgspec.json.encode(given)).arguments)


def complete(schema, value):
    """The value with null for whatever else strict mode wants to see."""
    schema = schema["anyOf"][0] if "anyOf" in schema else schema
    if isinstance(value, list):
        return [complete(schema["items"], item) for item in value]
    if not isinstance(value, dict):
        return value
    required = schema.get("required", []) if schema.get("additionalProperties") is False else []
    parts = schema.get("properties", {})
    given = {name: complete(parts.get(name, {}), part) for name, part in value.items()}
    return {**dict.fromkeys(required), **given}


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        st.none() | st.text(max_size=3),
        lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner),
    )
)
def test_arguments_of_any_shape_are_read_without_failing(value):
    schema = {"type": "object", "properties": {"a": {"type": "object"}}}

    for convert, _ in PROVIDERS.values():
        convert(registered(schema)).call("1", "tool", {"a": value})
