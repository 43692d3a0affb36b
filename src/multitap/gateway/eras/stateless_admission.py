"""Checks that a stateless request agrees with its own headers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from multitap.catalog.catalog import Tool
from multitap.gateway.client_message import UNPARSABLE, ClientMessage, Params, Refused, is_modern
from multitap.later import Later
from multitap.wire.jsonrpc import vocabulary
from multitap.wire.jsonrpc.vocabulary import CLIENT_CAPABILITIES_KEY, PROTOCOL_VERSION_KEY

if TYPE_CHECKING:
    from mcp.shared import inbound
else:
    inbound = Later("mcp.shared.inbound")

HeaderPairs = list[tuple[bytes, bytes]]
HeaderMap = Mapping[bytes, bytes]

_VERSION = vocabulary.VERSION_HEADER.encode()
_METHOD = vocabulary.METHOD_HEADER.encode()
_NAME = vocabulary.NAME_HEADER.encode()
_VERSION_KEY = PROTOCOL_VERSION_KEY.encode()
_HANDSHAKE = frozenset(version.encode() for version in vocabulary.HANDSHAKE_VERSIONS)
MODERN = frozenset(version.encode() for version in vocabulary.STATELESS_VERSIONS)
_SAID = {version: b'"%b"' % version for version in MODERN}
"""The versions as JSON strings, as they occur in a body."""


def claims_modern(headers: HeaderMap, body: bytes) -> bool:
    """Whether a request claims the stateless era, in its header or its body."""
    version = headers.get(_VERSION)
    if version is None:
        return _VERSION_KEY in body
    return version not in _HANDSHAKE


def admit(message: ClientMessage, params: Params, pairs: HeaderPairs, headers: HeaderMap) -> None:
    """Check that a request agrees with its headers.

    Raises:
        Refused: It does not, or required fields are missing.
    """
    if _agrees(message, params, pairs, headers):
        return
    text = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs]
    if (twice := inbound.find_duplicated_routing_header(text)) is not None:
        raise Refused(vocabulary.HEADER_MISMATCH, f"{twice} header appears more than once")
    _examine(message, dict(text))


def admit_unheaded(message: ClientMessage, params: Params) -> bool:
    """Whether a request on a transport without headers belongs to the stateless era.

    Raises:
        Refused: It claims to, and required fields are missing.
    """
    if PROTOCOL_VERSION_KEY not in params.meta:
        return False
    if not is_modern(params.meta) or CLIENT_CAPABILITIES_KEY not in params.meta:
        _examine(message, None)
    return True


def _agrees(message: ClientMessage, params: Params, pairs: HeaderPairs, headers: HeaderMap) -> bool:
    """Whether the usual headers all match; a fast check for the common case."""
    meta, version = params.meta, headers.get(_VERSION, b"")
    said = meta.get(PROTOCOL_VERSION_KEY)
    if said is None or CLIENT_CAPABILITIES_KEY not in meta or len(headers) != len(pairs):
        return False
    if bytes(said) != _SAID.get(version):
        return False
    if headers.get(_METHOD) != message.method.encode():
        return False
    key = vocabulary.NAMING_PARAMS.get(message.method)
    name = params.name if key == "name" else params.uri
    return key is None or headers.get(_NAME) == name.encode()


def _examine(message: ClientMessage, headers: Mapping[str, str] | None) -> None:
    try:
        params: Any = msgspec.json.decode(message.params) if len(message.params) else None
    except UNPARSABLE:
        params = None
    body = {"method": message.method, "params": params}
    # by the SDK, so that clients get the errors they know
    verdict = inbound.classify_inbound_request(body, headers=headers)
    if isinstance(verdict, inbound.InboundLadderRejection):
        raise Refused(verdict.code, verdict.message, verdict.data)


def admit_arguments(tool: Tool, params: Params, pairs: HeaderPairs) -> None:
    """Check that the arguments of a call agree with the headers that repeat them.

    Raises:
        Refused: They do not.
    """
    try:
        arguments = msgspec.json.decode(params.arguments, type=dict[str, Any])
    except UNPARSABLE:
        return  # malformed arguments are reported by the check that follows
    text = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
    verdict = inbound.validate_mcp_param_headers(tool.input_schema, arguments, text)
    if verdict is not None:
        raise Refused(verdict.code, verdict.message, verdict.data)
