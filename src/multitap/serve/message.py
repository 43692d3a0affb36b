"""What a client says and is told, with everything that only passes through left undecoded."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from multitap.wire import envelope, vocabulary

NOTHING = Raw(b"")
EMPTY = Raw(b"{}")
_NULL = b"null"

RESERVED = frozenset(
    {
        vocabulary.PROTOCOL_VERSION_KEY,
        vocabulary.CLIENT_INFO_KEY,
        vocabulary.CLIENT_CAPABILITIES_KEY,
        vocabulary.LOG_LEVEL_KEY,
        "progressToken",
    }
)
"""Keys of `_meta` that are between the client and us."""


class Message(msgspec.Struct):
    """Any message of a client; which kind it is shows in the fields that are there."""

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


class Params(msgspec.Struct):
    """The parameters of a request, as far as we have to look."""

    name: str = ""
    uri: str = ""
    arguments: Raw = EMPTY
    meta: dict[str, Raw] = msgspec.field(default_factory=dict[str, Raw], name="_meta")
    input_responses: Raw = msgspec.field(default=NOTHING, name="inputResponses")
    request_state: str | None = msgspec.field(default=None, name="requestState")


class _Error(msgspec.Struct):
    code: int
    message: str = ""
    data: Any = None


parse = msgspec.json.Decoder(Message).decode
parse_params = msgspec.json.Decoder(Params).decode
parse_error = msgspec.json.Decoder(_Error).decode
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
    """Whether a request carries all that a server of the stateless era needs to know."""
    return text_of(meta.get(vocabulary.PROTOCOL_VERSION_KEY)) in vocabulary.STATELESS_VERSIONS


def answer(request_id: Raw, result: Raw | bytes) -> tuple[bytes, Raw | bytes, bytes]:
    """An answer in pieces: a long result is not copied to be sent."""
    return b'{"jsonrpc":"2.0","id":%b,"result":' % bytes(request_id), result, b"}"


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


_STALE = ("resultType", "ttlMs", "cacheScope")


_COMPLETE = b'{"resultType":"complete"'
_NOT_KEPT = _COMPLETE + b',"ttlMs":0,"cacheScope":"private"'


def modern(result: Raw | bytes, *, kept: bool = False) -> Raw | bytes:
    """A result of the handshake era as the stateless one wants it.

    Args:
        result: As it came.
        kept: Whether clients may keep such results, and so have to be told for how long.
    """
    body = memoryview(result)[1:]
    comma = b"," if bytes(body[:64]).lstrip()[:1] != b"}" else b""
    return b"".join((_NOT_KEPT if kept else _COMPLETE, comma, body))


def legacy(result: Raw | bytes) -> Raw | bytes:
    """A result of the stateless era without what older clients do not know."""
    table = parse_table(result)
    for key in _STALE:
        table.pop(key, None)
    if (meta := table.get("_meta")) is not None:
        kept = parse_table(meta)
        kept.pop(vocabulary.SERVER_INFO_KEY, None)
        if kept:
            table["_meta"] = Raw(envelope.encode(kept))
        else:
            del table["_meta"]
    return _joined(table)


def _joined(table: Mapping[str, Raw]) -> bytes:
    """An object of its members, the long ones copied once."""
    parts: list[bytes | Raw] = []
    for key, value in table.items():
        parts += (b"," if parts else b"{", envelope.encode(key), b":", value)
    return b"".join((*parts, b"}")) if parts else b"{}"
