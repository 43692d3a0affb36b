"""Our words of the protocol against the SDK's: these fail first when it moves."""

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound, subscriptions
from mcp_types import version
from msgspec import Raw

from multitap.wire import jsonrpc


def test_the_versions_are_those_of_the_sdk():
    assert jsonrpc.HANDSHAKE_VERSIONS == version.HANDSHAKE_PROTOCOL_VERSIONS
    assert jsonrpc.STATELESS_VERSIONS == version.MODERN_PROTOCOL_VERSIONS


def test_the_keys_and_headers_are_those_of_the_sdk():
    ours = (
        jsonrpc.PROTOCOL_VERSION_KEY,
        jsonrpc.CLIENT_INFO_KEY,
        jsonrpc.CLIENT_CAPABILITIES_KEY,
        jsonrpc.LOG_LEVEL_KEY,
        jsonrpc.SERVER_INFO_KEY,
        jsonrpc.SUBSCRIPTION_ID_KEY,
        jsonrpc.VERSION_HEADER,
        jsonrpc.METHOD_HEADER,
        jsonrpc.NAME_HEADER,
        jsonrpc.ARGUMENT_HEADER_KEY,
    )

    assert ours == (
        types.PROTOCOL_VERSION_META_KEY,
        types.CLIENT_INFO_META_KEY,
        types.CLIENT_CAPABILITIES_META_KEY,
        types.LOG_LEVEL_META_KEY,
        types.SERVER_INFO_META_KEY,
        subscriptions.SUBSCRIPTION_ID_META_KEY,
        inbound.MCP_PROTOCOL_VERSION_HEADER,
        inbound.MCP_METHOD_HEADER,
        inbound.MCP_NAME_HEADER,
        inbound.X_MCP_HEADER_KEY,
    )
    tasks = dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")  # an extension
    assert {**inbound.NAME_BEARING_METHODS, **tasks} == jsonrpc.NAMING_PARAMS


def test_the_errors_are_those_of_the_sdk():
    ours = (
        jsonrpc.PARSE_ERROR,
        jsonrpc.INVALID_REQUEST,
        jsonrpc.METHOD_NOT_FOUND,
        jsonrpc.INVALID_PARAMS,
        jsonrpc.INTERNAL_ERROR,
        jsonrpc.HEADER_MISMATCH,
        jsonrpc.MISSING_CAPABILITY,
        jsonrpc.UNSUPPORTED_VERSION,
        jsonrpc.URL_ELICITATION_REQUIRED,
    )

    assert ours == (
        types.PARSE_ERROR,
        types.INVALID_REQUEST,
        types.METHOD_NOT_FOUND,
        types.INVALID_PARAMS,
        types.INTERNAL_ERROR,
        types.HEADER_MISMATCH,
        types.MISSING_REQUIRED_CLIENT_CAPABILITY,
        types.UNSUPPORTED_PROTOCOL_VERSION,
        types.URL_ELICITATION_REQUIRED,
    )
    assert jsonrpc.HTTP_STATUS == inbound.ERROR_CODE_HTTP_STATUS


@given(st.text() | st.from_regex(r"=\?base64\?[A-Za-z]*\?=", fullmatch=True))
def test_a_value_travels_in_a_header_as_with_the_sdk(value):
    assert jsonrpc.to_header(value) == inbound.encode_header_value(value)


@pytest.mark.parametrize(
    ("value", "number"),
    [(b"60000", 60_000.0), (b"0.5", 0.5), (b"null", None), (b'"60000"', None), (b"[]", None)],
)
def test_only_numbers_are_read_as_numbers(value, number):
    assert jsonrpc.number_of(Raw(value)) == number
