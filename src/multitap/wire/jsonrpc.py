"""JSON-RPC messages with undecoded params and results, and the protocol's names and numbers.

The names are repeated here, because importing the SDK is slow.
"""

import base64
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from multitap.errors import AnswerInvalid

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Revisions that begin with `initialize`, oldest first."""
STATELESS_VERSIONS: Final = ("2026-07-28",)
"""Revisions in which every request carries all that it needs, oldest first."""

PROTOCOL_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO_KEY: Final = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL_KEY: Final = "io.modelcontextprotocol/logLevel"
SERVER_INFO_KEY: Final = "io.modelcontextprotocol/serverInfo"
TASKS: Final = "io.modelcontextprotocol/tasks"
"""The extension for calls that outlive their request."""
RELATED_TASK_KEY: Final = "io.modelcontextprotocol/related-task"
"""Names the task that a message of the handshake era belongs to."""
SUBSCRIPTION_ID_KEY: Final = "io.modelcontextprotocol/subscriptionId"
"""Keys of `_meta`."""

VERSION_HEADER: Final = "mcp-protocol-version"
METHOD_HEADER: Final = "mcp-method"
NAME_HEADER: Final = "mcp-name"
ARGUMENT_HEADER_KEY: Final = "x-mcp-header"
"""Marks an argument in a tool's schema that is also sent as a header."""

NAMING_PARAMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tools/call": "name",
        "prompts/get": "name",
        "resources/read": "uri",
        "tasks/get": "taskId",
        "tasks/update": "taskId",
        "tasks/cancel": "taskId",
    }
)
"""By method: the parameter that is also sent as a header."""

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
SERVER_ERROR: Final = -32000
"""The first of the codes that each server defines."""
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022
URL_ELICITATION_REQUIRED: Final = -32042

HTTP_STATUS: Final[Mapping[int, int]] = MappingProxyType(
    {
        PARSE_ERROR: 400,
        INVALID_REQUEST: 400,
        INVALID_PARAMS: 400,
        HEADER_MISMATCH: 400,
        MISSING_CAPABILITY: 400,
        UNSUPPORTED_VERSION: 400,
        METHOD_NOT_FOUND: 404,
    }
)
"""The HTTP status of error codes; 200 for all others."""

_WRAPPED = re.compile(r"=\?base64\?(.*)\?=")
_PLAIN = re.compile(r"[\x20-\x7E]*")


def to_header(value: str) -> str:
    """A value encoded for a header: as base64 if it contains other characters than a header may."""
    # a plain value that looks wrapped would be unwrapped by the receiver
    if _PLAIN.fullmatch(value) and value == value.strip() and not _WRAPPED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


RequestId = int | str
Params = Mapping[str, Any]
"""Parameters of a message; any value may be a `Raw`, already encoded."""
NOTHING, EMPTY = Raw(b""), Raw(b"{}")
_SHORT = 8 * 1024
"""Bytes of a result that cost less to copy than to send as a piece."""
_BRACE = ord("{")
"""The first byte of every result object."""

RESERVED_KEYS = frozenset(
    {
        PROTOCOL_VERSION_KEY,
        CLIENT_INFO_KEY,
        CLIENT_CAPABILITIES_KEY,
        LOG_LEVEL_KEY,
        "progressToken",
    }
)
"""Keys of a client's `_meta` that are not passed on to servers."""

MessagePieces = tuple[Raw | bytes | memoryview, ...]
Result = Raw | bytes | MessagePieces
"""An encoded result; a long one that was rewritten is a sequence of pieces."""

# msgspec raises RecursionError for deep nesting, and checks UTF-8 only in decoded parts
UNPARSABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class RpcError(Exception):
    """The JSON-RPC error that answers a request."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class Envelope(msgspec.Struct, gc=False):
    """Any message of a server; the fields that are set show its kind."""

    id: RequestId | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw = NOTHING
    result: Raw = NOTHING
    error: Raw = NOTHING


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
        # by its bytes: decoding it would lose the difference between 1 and 1.0
        request_id = bytes(self.id)
        is_allowed = request_id[:1] == b'"' or request_id.removeprefix(b"-").isdigit()
        return (is_allowed or not request_id) and self.jsonrpc == "2.0"


class RequestParams(msgspec.Struct, gc=False):
    """The parameters of a client's request, decoded as far as the gateway needs."""

    name: str = ""
    uri: str = ""
    arguments: Raw = EMPTY
    # not `dict[str, Raw]`: calling the alias takes longer than parsing the other parameters
    meta: dict[str, Raw] = msgspec.field(default_factory=dict, name="_meta")  # pyright: ignore[reportUnknownVariableType]
    input_responses: Raw = msgspec.field(default=NOTHING, name="inputResponses")
    request_state: str | None = msgspec.field(default=None, name="requestState")
    task: Raw = NOTHING
    """Set if a client of the handshake era wants a task instead of the result."""
    task_id: str = msgspec.field(default="", name="taskId")


class CallMessage(msgspec.Struct, gc=False):
    """A client's `tools/call`, the most frequent message, parsed in one step."""

    jsonrpc: Literal["2.0"]
    id: Raw
    method: Literal["tools/call"]
    params: RequestParams


class _Error(msgspec.Struct):
    code: int
    message: str = ""
    data: Any = None


encode = msgspec.json.Encoder().encode
decode = msgspec.json.decode
parse = msgspec.json.Decoder(Envelope).decode
"""Decode a message of a server; raises one of `UNPARSABLE`, as do the following."""
parse_client_message = msgspec.json.Decoder(ClientMessage).decode
parse_call = msgspec.json.Decoder(CallMessage).decode
"""Raises `msgspec.DecodeError` for all other messages."""
parse_params = msgspec.json.Decoder(RequestParams).decode
parse_error = msgspec.json.Decoder(_Error).decode
parse_table = msgspec.json.Decoder(dict[str, Raw]).decode


def request(request_id: RequestId, method: str, params: Params | None) -> bytes:
    if params is None:
        return encode({"jsonrpc": "2.0", "id": request_id, "method": method})
    return encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def notification(method: str, params: Params | Raw | bytes | None = None) -> bytes:
    if isinstance(params, bytes):
        params = Raw(params)
    if params is None or (isinstance(params, Raw) and not len(params)):
        return encode({"jsonrpc": "2.0", "method": method})
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def cancellation(request_id: RequestId, reason: str) -> bytes:
    """The notification that cancels a request."""
    return notification("notifications/cancelled", {"requestId": request_id, "reason": reason})


def answer(request_id: RequestId, result: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def answer_pieces(request_id: Raw, result: Result) -> MessagePieces:
    """An answer in pieces, so that a long result is not copied."""
    # the id as the client wrote it
    if not isinstance(result, tuple) and len(result) <= _SHORT:
        return (b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (request_id, result),)
    head = b'{"jsonrpc":"2.0","id":%b,"result":' % request_id
    return (head, *result, b"}") if isinstance(result, tuple) else (head, result, b"}")


def refusal(request_id: RequestId | Raw, error: RpcError) -> bytes:
    """The answer with an error; an empty id is one that could not be read."""
    body: dict[str, Any] = {"code": error.code, "message": str(error)}
    if error.data is not None:
        body["data"] = error.data
    is_known = not isinstance(request_id, Raw) or len(request_id)
    return encode({"jsonrpc": "2.0", "id": request_id if is_known else None, "error": body})


def usual_result(message: Envelope) -> Raw | None:
    """The result of an answer that is as it should be; None for all others."""
    result = message.result
    if len(result) and memoryview(result)[0] == _BRACE and not len(message.error):
        return result
    return None


def result_of(message: Envelope) -> Raw:
    """The result of an answer: whether an answer is a good one is decided here alone.

    Raises:
        RpcError: The answer is an error.
        AnswerInvalid: It is neither.
    """
    if (usual := usual_result(message)) is not None:
        return usual
    result, error = message.result, message.error
    # some servers send both members, and null for the one that does not apply
    if len(error) and bytes(memoryview(error)[:4]) != b"null":
        try:
            details = parse_error(error)
        except UNPARSABLE:
            reason = f"the error in the answer has the wrong shape: {excerpt(error)}"
            raise AnswerInvalid(reason, sent=True) from None
        raise RpcError(details.code, details.message, details.data)
    if not len(result) or memoryview(result)[0] != _BRACE:
        flaw = f"its result is {excerpt(result)}" if len(result) else "it has none"
        raise AnswerInvalid(f"the answer should contain a result object; {flaw}", sent=True)
    return result


def text_of(value: Raw | None) -> str | None:
    """A JSON string; None for anything else."""
    if value is None:
        return None
    try:
        return msgspec.json.decode(value, type=str)
    except UNPARSABLE:
        return None


def number_of(value: Raw | None) -> float | None:
    """A JSON number; None for anything else."""
    if value is None:
        return None
    try:
        return msgspec.json.decode(value, type=float)
    except UNPARSABLE:
        return None


def is_stateless(meta: Mapping[str, Raw]) -> bool:
    """Whether `_meta` has everything that a stateless request must carry."""
    return text_of(meta.get(PROTOCOL_VERSION_KEY)) in STATELESS_VERSIONS


_ID = re.compile(rb'"id"\s*:\s*(\d{1,18})')
# bytes: room for the members before or after a long result, among them the id
_EDGE = 512


def recover_ids(damaged: bytes) -> set[int]:
    """What may be ids of ours in the first and last bytes of a damaged or oversized answer."""
    ends = (damaged[:_EDGE], damaged[-_EDGE:])
    return {int(number) for end in ends for number in _ID.findall(end)}


def looks_like_an_answer(damaged: bytes) -> bool:
    """Whether a damaged message may be an answer, judged by its first and last bytes."""
    ends = damaged[:_EDGE] + damaged[-_EDGE:]
    named = b'"result"' in ends or b'"error"' in ends
    return named and b'"method"' not in ends and b'"id"' not in ends


def excerpt(data: bytes | Raw | memoryview, limit: int = 120) -> str:
    """The beginning of `data` as one printable line."""
    text = bytes(memoryview(data)[: limit * 4]).decode("utf-8", "replace")
    line = "".join(char if char.isprintable() else "�" for char in text)
    return line if len(line) <= limit else f"{line[:limit]}…"
