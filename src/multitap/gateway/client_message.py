"""Messages to and from clients, with pass-through values left undecoded."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Raw

from multitap.wire.jsonrpc import envelope, vocabulary

NOTHING = Raw(b"")
EMPTY = Raw(b"{}")
_NULL = b"null"

MessagePieces = tuple[Raw | bytes | memoryview, ...]
Result = Raw | bytes | MessagePieces
"""An encoded result; a long one that was rewritten is a sequence of pieces."""

RESERVED = frozenset(
    {
        vocabulary.PROTOCOL_VERSION_KEY,
        vocabulary.CLIENT_INFO_KEY,
        vocabulary.CLIENT_CAPABILITIES_KEY,
        vocabulary.LOG_LEVEL_KEY,
        "progressToken",
    }
)
"""Keys of `_meta` that are not passed on to servers."""


class ClientMessage(msgspec.Struct):
    """Any message of a client; the fields that are set show its kind."""

    jsonrpc: str = ""
    id: Raw = NOTHING
    method: str = ""
    params: Raw = NOTHING
    result: Raw = NOTHING
    error: Raw = NOTHING

    @property
    def is_request(self) -> bool:
        return bool(self.method) and len(self.id) > 0

    @property
    def is_sound(self) -> bool:
        """Whether it is JSON-RPC 2.0 with an id that MCP allows: a text or a whole number."""
        given = bytes(self.id)
        known = not given or given[:1] == b'"' or given.removeprefix(b"-").isdigit()
        return known and self.jsonrpc == "2.0"


class Params(msgspec.Struct, gc=False):
    """The parameters of a request, decoded as far as the gateway needs."""

    name: str = ""
    uri: str = ""
    arguments: Raw = EMPTY
    # not `dict[str, Raw]`: calling the alias takes longer than parsing the other parameters
    meta: dict[str, Raw] = msgspec.field(default_factory=dict, name="_meta")  # pyright: ignore[reportUnknownVariableType]
    input_responses: Raw = msgspec.field(default=NOTHING, name="inputResponses")
    request_state: str | None = msgspec.field(default=None, name="requestState")


class CallMessage(msgspec.Struct, gc=False):
    """A `tools/call` request, the most frequent message, parsed in one step."""

    jsonrpc: Literal["2.0"]
    id: Raw
    method: Literal["tools/call"]
    params: Params


class _ClientError(msgspec.Struct):
    code: int
    message: str = ""
    data: Any = None


parse = msgspec.json.Decoder(ClientMessage).decode
parse_call = msgspec.json.Decoder(CallMessage).decode
"""Raises `msgspec.DecodeError` for all other messages; `parse` tells them apart."""
parse_params = msgspec.json.Decoder(Params).decode
parse_error = msgspec.json.Decoder(_ClientError).decode
parse_table = msgspec.json.Decoder(dict[str, Raw]).decode
UNPARSABLE = envelope.UNPARSABLE


class Refused(Exception):
    """The JSON-RPC error that answers a request."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


def text_of(value: Raw | None) -> str | None:
    """A JSON string; None for anything else."""
    if value is None:
        return None
    try:
        return msgspec.json.decode(value, type=str)
    except UNPARSABLE:
        return None


def is_modern(meta: Mapping[str, Raw]) -> bool:
    """Whether `_meta` has everything that a stateless request must carry."""
    return text_of(meta.get(vocabulary.PROTOCOL_VERSION_KEY)) in vocabulary.STATELESS_VERSIONS


def answer(request_id: Raw, result: Result) -> MessagePieces:
    """A response in pieces, so that a long result is not copied."""
    head = b'{"jsonrpc":"2.0","id":%b,"result":' % request_id
    return (head, *result, b"}") if isinstance(result, tuple) else (head, result, b"}")


def refusal(request_id: Raw, error: Refused) -> bytes:
    body: dict[str, Any] = {"code": error.code, "message": str(error)}
    if error.data is not None:
        body["data"] = error.data
    head = b'{"jsonrpc":"2.0","id":%b,"error":' % (bytes(request_id) or _NULL)
    return head + envelope.encode(body) + b"}"


def notification(method: str, params: Raw | bytes | Mapping[str, Any] | None = None) -> bytes:
    if isinstance(params, bytes):
        params = Raw(params)
    if params is None or (isinstance(params, Raw) and not len(params)):
        return envelope.notification(method, None)
    return envelope.encode({"jsonrpc": "2.0", "method": method, "params": params})
