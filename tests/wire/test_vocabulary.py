"""Our words of the protocol against the SDK's: these fail first when it moves."""

import mcp_types as types
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound, subscriptions
from mcp_types import version

from multitap.wire.jsonrpc import vocabulary


def test_the_versions_are_those_of_the_sdk():
    assert vocabulary.HANDSHAKE_VERSIONS == version.HANDSHAKE_PROTOCOL_VERSIONS
    assert vocabulary.STATELESS_VERSIONS == version.MODERN_PROTOCOL_VERSIONS


def test_the_keys_and_headers_are_those_of_the_sdk():
    ours = (
        vocabulary.PROTOCOL_VERSION_KEY,
        vocabulary.CLIENT_INFO_KEY,
        vocabulary.CLIENT_CAPABILITIES_KEY,
        vocabulary.LOG_LEVEL_KEY,
        vocabulary.SERVER_INFO_KEY,
        vocabulary.SUBSCRIPTION_ID_KEY,
        vocabulary.VERSION_HEADER,
        vocabulary.METHOD_HEADER,
        vocabulary.NAME_HEADER,
        vocabulary.ARGUMENT_HEADER_KEY,
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
    assert vocabulary.NAMING_PARAMS == inbound.NAME_BEARING_METHODS


def test_the_errors_are_those_of_the_sdk():
    ours = (
        vocabulary.PARSE_ERROR,
        vocabulary.INVALID_REQUEST,
        vocabulary.METHOD_NOT_FOUND,
        vocabulary.INVALID_PARAMS,
        vocabulary.INTERNAL_ERROR,
        vocabulary.HEADER_MISMATCH,
        vocabulary.MISSING_CAPABILITY,
        vocabulary.UNSUPPORTED_VERSION,
        vocabulary.URL_ELICITATION_REQUIRED,
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
    assert vocabulary.HTTP_STATUS == inbound.ERROR_CODE_HTTP_STATUS


@given(st.text() | st.from_regex(r"=\?base64\?[A-Za-z]*\?=", fullmatch=True))
def test_a_value_travels_in_a_header_as_with_the_sdk(value):
    assert vocabulary.to_header(value) == inbound.encode_header_value(value)
