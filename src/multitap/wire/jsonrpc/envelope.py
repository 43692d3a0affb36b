"""JSON-RPC messages with undecoded params and results."""

import re
from collections.abc import Container
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from multitap.faults import AnswerInvalid
from multitap.wire.wire import Params, RpcError

RequestId = int | str
NOTHING = Raw(b"")

_encoder = msgspec.json.Encoder()
encode = _encoder.encode
decode = msgspec.json.decode


class Envelope(msgspec.Struct, gc=False):
    """Any message; the fields that are set show its kind."""

    id: RequestId | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw = NOTHING
    result: Raw = NOTHING
    error: Raw = NOTHING


class _Error(msgspec.Struct):
    code: int
    message: str = ""
    data: Any = None


parse = msgspec.json.Decoder(Envelope).decode
"""Decode one message; raises `msgspec.DecodeError` or `RecursionError`."""

_parse_error = msgspec.json.Decoder(_Error).decode

# msgspec raises RecursionError for deep nesting, and checks UTF-8 only in decoded parts
UNPARSABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


def request(request_id: RequestId, method: str, params: Params | None) -> bytes:
    if params is None:
        return encode({"jsonrpc": "2.0", "id": request_id, "method": method})
    return encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def notification(method: str, params: Params | None) -> bytes:
    if params is None:
        return encode({"jsonrpc": "2.0", "method": method})
    return encode({"jsonrpc": "2.0", "method": method, "params": params})


def calling_off(request_id: RequestId, reason: str) -> bytes:
    """The notification that cancels a request."""
    return notification("notifications/cancelled", {"requestId": request_id, "reason": reason})


def answer(request_id: RequestId, result: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def refusal(request_id: RequestId, error: RpcError) -> bytes:
    body: dict[str, Any] = {"code": error.code, "message": str(error)}
    if error.data is not None:
        body["data"] = error.data
    return encode({"jsonrpc": "2.0", "id": request_id, "error": body})


def outcome(message: Envelope) -> Raw | RpcError | AnswerInvalid:
    """The result or error of an answer; AnswerInvalid if it has neither."""
    if len(message.error) and _starts(message.error, 4) != b"null":
        try:
            error = _parse_error(message.error)
        except UNPARSABLE:
            return AnswerInvalid(
                f"the error in the answer has the wrong shape: {excerpt(message.error)}", sent=True
            )
        return RpcError(error.code, error.message, error.data)
    if _starts(message.result, 1) != b"{":
        got = f"its result is {excerpt(message.result)}" if len(message.result) else "it has none"
        return AnswerInvalid(f"the answer should contain a result object; {got}", sent=True)
    return message.result


def _starts(value: Raw, size: int) -> bytes:
    return bytes(memoryview(value)[:size])


_ID = re.compile(rb'"id"\s*:\s*(?:"([^"\\]{1,64})"|(-?\d{1,18}))')
# bytes: room for the members before or after a long result, among them the id
_EDGE = 512


def recover_ids(damaged: bytes, pending: Container[RequestId]) -> set[RequestId]:
    """The pending ids in the first and last bytes of a damaged or oversized answer."""
    found: set[RequestId] = set()
    for part in (damaged[:_EDGE], damaged[-_EDGE:]):
        for text, number in _ID.findall(part):
            candidate: RequestId = int(number) if number else text.decode("utf-8", "replace")
            if candidate in pending:
                found.add(candidate)
    return found


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
