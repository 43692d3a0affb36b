"""The bridge between the handshake era and the stateless era: results and headers."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from multitap.catalog.catalog import Tool
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import (
    CLIENT_CAPABILITIES_KEY,
    PROTOCOL_VERSION_KEY,
    UNPARSABLE,
    ClientMessage,
    RequestParams,
    Result,
    RpcError,
    is_stateless,
    parse_table,
)

_LONG = 64 * 1024
"""Bytes above which a member of a result is passed on without a copy."""
_STALE = ("resultType", "ttlMs", "cacheScope")
_COMPLETE = b'{"resultType":"complete"'
_NOT_KEPT = _COMPLETE + b',"ttlMs":0,"cacheScope":"private"'


def to_stateless(result: Raw | bytes, *, is_cached: bool = False) -> Result:
    """A result of the handshake era with the fields that the stateless era requires.

    Args:
        result: As the server sent it.
        is_cached: Whether clients may cache such results, and so need a lifetime.
    """
    body = memoryview(result)[1:]
    head = _NOT_KEPT if is_cached else _COMPLETE
    # an empty object needs no comma; more white space than this is not expected
    if bytes(body[:64]).lstrip()[:1] != b"}":
        head += b","
    return (head, body) if len(body) > _LONG else b"".join((head, body))


def to_handshake(result: Raw | bytes) -> Result:
    """A result of the stateless era without the fields that the handshake era does not know."""
    table = parse_table(result)
    for key in _STALE:
        table.pop(key, None)
    if (meta := table.get("_meta")) is not None:
        remaining = parse_table(meta)
        remaining.pop(jsonrpc.SERVER_INFO_KEY, None)
        if remaining:
            table["_meta"] = Raw(jsonrpc.encode(remaining))
        else:
            del table["_meta"]
    return _join(table)


def to_private(result: Result) -> Result:
    """A result that caches may not give to others, whatever its server says."""
    data = b"".join(result) if isinstance(result, tuple) else bytes(result)
    if b'"public"' not in data or parse_table(data).get("cacheScope") != Raw(b'"public"'):
        return result
    return _join({**parse_table(data), "cacheScope": Raw(b'"private"')})


def _join(table: Mapping[str, Raw]) -> Result:
    """A JSON object of these members; long ones are not copied."""
    parts: list[Raw | bytes] = []
    short: list[Raw | bytes] = [b"{"]
    for key, value in table.items():
        short += (jsonrpc.encode(key), b":")
        if len(value) > _LONG:
            parts += (b"".join(short), value)
            short = [b","]
        else:
            short += (value, b",")
    if table:
        short.pop()  # the last comma
    short.append(b"}")
    return (*parts, b"".join(short)) if parts else b"".join(short)


HeaderPairs = list[tuple[bytes, bytes]]
HeaderMap = Mapping[bytes, bytes]

_VERSION = jsonrpc.VERSION_HEADER.encode()
_METHOD = jsonrpc.METHOD_HEADER.encode()
_NAME = jsonrpc.NAME_HEADER.encode()
_VERSION_KEY = PROTOCOL_VERSION_KEY.encode()
_HANDSHAKE = frozenset(version.encode() for version in jsonrpc.HANDSHAKE_VERSIONS)
STATELESS = frozenset(version.encode() for version in jsonrpc.STATELESS_VERSIONS)
_SAID = {version: b'"%b"' % version for version in STATELESS}
"""The versions as JSON strings, as they occur in a body."""


def claims_stateless(headers: HeaderMap, body: bytes) -> bool:
    """Whether a request claims the stateless era, in its header or its body."""
    version = headers.get(_VERSION)
    if version is None:
        return _VERSION_KEY in body
    return version not in _HANDSHAKE


def admit(
    message: ClientMessage, params: RequestParams, pairs: HeaderPairs, headers: HeaderMap
) -> None:
    """Check that a request agrees with its headers.

    Raises:
        RpcError: It does not, or required fields are missing.
    """
    if _agrees(message, params, pairs, headers):
        return
    from mcp.shared import inbound  # noqa: PLC0415 - slow, and most requests pass without it

    text = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs]
    if (twice := inbound.find_duplicated_routing_header(text)) is not None:
        raise RpcError(jsonrpc.HEADER_MISMATCH, f"{twice} header appears more than once")
    _examine(message, dict(text))
    # the SDK does not know this one; its own clients, such as FastMCP's, do not send it
    name = dict(text).get(jsonrpc.NAME_HEADER)
    if jsonrpc.NAMING_PARAMS.get(message.method) == "taskId" and (
        name is not None and inbound.decode_header_value(name) != params.task_id
    ):
        raise RpcError(jsonrpc.HEADER_MISMATCH, "Mcp-Name does not match the body's taskId")


def admit_unheaded(message: ClientMessage, params: RequestParams) -> bool:
    """Whether a request on a transport without headers belongs to the stateless era.

    Raises:
        RpcError: It claims to, and required fields are missing.
    """
    if PROTOCOL_VERSION_KEY not in params.meta:
        return False
    if not is_stateless(params.meta) or CLIENT_CAPABILITIES_KEY not in params.meta:
        _examine(message, None)
    return True


def _agrees(
    message: ClientMessage, params: RequestParams, pairs: HeaderPairs, headers: HeaderMap
) -> bool:
    """Whether the usual headers all match; a fast check for the common case."""
    meta, version = params.meta, headers.get(_VERSION, b"")
    version_given = meta.get(PROTOCOL_VERSION_KEY)
    if version_given is None or CLIENT_CAPABILITIES_KEY not in meta or len(headers) != len(pairs):
        return False
    if bytes(version_given) != _SAID.get(version):
        return False
    if headers.get(_METHOD) != message.method.encode():
        return False
    key = jsonrpc.NAMING_PARAMS.get(message.method)
    return key is None or headers.get(_NAME) == _name(params, key).encode()


def _name(params: RequestParams, key: str) -> str:
    """The parameter that is also sent as a header."""
    match key:
        case "taskId":
            return params.task_id
        case "uri":
            return params.uri
        case _:
            return params.name


def _examine(message: ClientMessage, headers: Mapping[str, str] | None) -> None:
    from mcp.shared import inbound  # noqa: PLC0415 - slow, and most requests pass without it

    try:
        params: Any = msgspec.json.decode(message.params) if len(message.params) else None
    except UNPARSABLE:
        params = None
    body = {"method": message.method, "params": params}
    # by the SDK, so that clients get the errors they know
    verdict = inbound.classify_inbound_request(body, headers=headers)
    if isinstance(verdict, inbound.InboundLadderRejection):
        raise RpcError(verdict.code, verdict.message, verdict.data)


def admit_arguments(tool: Tool, params: RequestParams, pairs: HeaderPairs) -> None:
    """Check that the arguments of a call agree with the headers that repeat them.

    Raises:
        RpcError: They do not.
    """
    from mcp.shared import inbound  # noqa: PLC0415 - slow, and most requests pass without it

    try:
        arguments = msgspec.json.decode(params.arguments, type=dict[str, Any])
    except UNPARSABLE:
        return  # malformed arguments are reported by the check that follows
    text = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
    verdict = inbound.validate_mcp_param_headers(tool.input_schema, arguments, text)
    if verdict is not None:
        raise RpcError(verdict.code, verdict.message, verdict.data)
