"""The tools of the environment protocol, and their schemas."""

from datetime import UTC, datetime
from pathlib import Path

import jsonschema_rs
import msgspec
import pytest
from scripts import env_schema

from multitap.env.protocol import (
    ENV_TOOLS,
    EnvCapabilities,
    EnvDescription,
    LogQuery,
    ToolDescription,
    ToolOutcome,
    find_tool,
    to_json,
)
from multitap.errors import BadArguments
from multitap.results import ToolResult
from tests.env.env_world import IMAGE, SHOUT

FILE = Path(__file__).parents[2] / "schema" / "env-protocol.json"
NAMES = [
    "get_description",
    "list_profiles",
    "get_profile",
    "list_agents",
    "get_agent",
    "query_logs",
    "list_tools",
    "execute_tool",
    "get_prompt",
    "invoke_llm",
]


def result(*content, **more):
    return ToolResult(msgspec.json.encode({"content": content, **more}))


def test_the_protocol_has_ten_tools():
    assert list(ENV_TOOLS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_tool_is_found_by_either_spelling(name):
    assert find_tool(f"env_{name}") is find_tool(f"env/{name}") is ENV_TOOLS[name]
    assert find_tool(name) is None


def test_the_schema_file_is_what_the_code_says():
    assert FILE.read_text(encoding="utf-8") == env_schema.json_schema_text(), "run `make schema`"


@pytest.mark.parametrize("tool", ENV_TOOLS.values(), ids=NAMES)
def test_schemas_are_json_schemas_of_objects(tool):
    for schema in (tool.input_schema, tool.output_schema):
        jsonschema_rs.meta.validate(schema)
        assert schema["type"] == "object"


def test_every_reference_in_the_schema_file_leads_somewhere():
    whole = env_schema.json_schema()

    for tool in whole["tools"].values():
        for part in (tool["input"], tool["output"]):
            jsonschema_rs.validator_for({**part, "$defs": whole["$defs"]})


def test_names_are_camel_case_on_the_wire():
    description = EnvDescription(
        id="a", display_name="A", version="1", capabilities=EnvCapabilities(mcp_server=True)
    )

    wire = to_json(description)

    assert wire["displayName"] == "A"
    assert wire["capabilities"]["mcpServer"] is True
    assert msgspec.convert(wire, EnvDescription) == description


def test_what_is_not_there_is_not_sent_but_null_inside_a_schema_is():
    wire = to_json(SHOUT)

    assert "server" not in wire
    assert wire["inputSchema"]["properties"]["text"]["default"] is None


def test_an_answer_of_a_newer_version_is_read():
    wire = {**to_json(SHOUT), "inventedLater": 1}

    assert msgspec.convert(wire, ToolDescription) == SHOUT


@pytest.mark.parametrize(
    ("arguments", "path", "words"),
    [
        ({"limit": 0}, "/limit", "less than the minimum of 1"),
        ({"limt": 5}, "", "'limt' was unexpected"),
        ({"level": "loud"}, "/level", "is not one of"),
        ({"since": "2026-11-16T12:00:00"}, "/since", "timezone"),
        ({"until": "soon"}, "/until", "Invalid RFC3339"),
    ],
)
def test_a_wrong_question_is_refused_with_its_path(arguments, path, words):
    with pytest.raises(BadArguments, match=words) as caught:
        ENV_TOOLS["query_logs"].read(arguments)

    assert caught.value.path == path


def test_a_refusal_names_a_few_faults_and_counts_the_rest_without_their_values():
    names = ("level", "limit", "since", "until", "server", "text")
    arguments = {name: ["hunter2"] for name in names}
    with pytest.raises(BadArguments, match="and 3 more") as caught:
        ENV_TOOLS["query_logs"].read(arguments)

    assert "hunter2" not in str(caught.value)


def test_a_wrong_part_of_a_list_is_found():
    with pytest.raises(BadArguments) as caught:
        ENV_TOOLS["invoke_llm"].read(
            {"messages": [{"content": "hi"}, {"content": "ho", "role": "king"}]}
        )

    assert caught.value.path == "/messages/1/role"


def test_a_model_is_asked_something():
    with pytest.raises(BadArguments) as caught:
        ENV_TOOLS["invoke_llm"].read({"messages": []})

    assert caught.value.path == "/messages"


def test_null_means_not_given():
    assert ENV_TOOLS["query_logs"].read({"limit": None, "server": None}) == LogQuery()


def test_a_time_may_be_in_any_zone():
    asked = ENV_TOOLS["query_logs"].read({"since": "2026-11-16T14:00:00+02:00"})

    assert asked == LogQuery(since=datetime(2026, 11, 16, 12, tzinfo=UTC))


def test_the_outcome_of_a_tool_has_its_text_once_and_its_image():
    outcome = ToolOutcome.of(
        result({"type": "text", "text": "seen"}, IMAGE, structuredContent={"size": 1})
    )

    assert outcome.success
    assert outcome.output.startswith("seen\n[image: image/png")
    assert outcome.content == (IMAGE,)
    assert outcome.structured_content == {"size": 1}


def test_the_outcome_of_a_tool_that_failed_says_why():
    outcome = ToolOutcome.of(result({"type": "text", "text": "no such file"}, isError=True))

    assert (outcome.success, outcome.output, outcome.error) == (False, "", "no such file")


def test_odd_content_is_no_media():
    assert ToolOutcome.of(result("text", 5)).content == ()
    assert ToolOutcome.of(ToolResult(b'{"content": {"type": "image"}}')).content == ()
