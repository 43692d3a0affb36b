import tomllib
from pathlib import Path

import jsonschema_rs
import pytest

from multitap.config import json_schema, json_schema_text
from multitap.config.dialects import native

from .reading import FIXTURES

FILE = Path(__file__).parents[2] / "schema" / "multitap.schema.json"


def complaints(text):
    return [
        error.message
        for error in jsonschema_rs.validator_for(json_schema()).iter_errors(tomllib.loads(text))
    ]


def test_the_file_in_the_repository_is_the_one_the_models_give():
    again = "write json_schema_text() to it again"

    assert FILE.read_text(encoding="utf-8") == json_schema_text(), again


def test_the_schema_is_a_valid_schema():
    jsonschema_rs.meta.validate(json_schema())


def test_the_sample_of_our_file_fits():
    text = (FIXTURES / "multitap.toml").read_text().replace("LEVEL = 3", "LEVEL = '3'")

    assert complaints(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[servers.a]\ncommand = 'x'\n",
        "[servers.a]\nenabled = false\n",
        "[servers.a]\nurl = '${BASE}/mcp'\noauth = false\n",
        "naming = 'claude'\nhealth_interval = 1.5\n",
    ],
)
def test_what_we_accept_is_accepted(text):
    assert complaints(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "[servers.a]\ncomand = 'x'\n",
        "[servers.a]\ncommand = 5\n",
        "[servers.a]\ncommand = 'x'\ntimeout = '30'\n",
        "[servers.a]\nurl = 'ftp://x'\n",
        "namign = 'claude'\n",
        "naming = 'klaude'\n",
        "[servers.a]\ncommand = 'x'\nurl = 'https://x'\n",
    ],
)
def test_what_we_refuse_is_refused(text):
    assert complaints(text)


def test_every_key_we_read_is_in_the_schema_and_the_other_way_round():
    schema = json_schema()
    servers = (
        schema["$defs"]["StdioServer"]["properties"] | schema["$defs"]["HttpServer"]["properties"]
    )

    assert servers.keys() == native.SERVER.keys()
    assert schema["properties"].keys() == native.GENERAL.keys()


def test_fields_are_described_for_editors():
    definitions = json_schema()["$defs"]

    assert definitions["StdioServer"]["properties"]["timeout"]["description"].startswith(
        "Seconds to wait"
    )
    assert definitions["Limits"]["properties"]["queue"]["description"].startswith(
        "Calls that may wait"
    )
