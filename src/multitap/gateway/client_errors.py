"""Error codes and messages for clients, one for each kind of failure."""

import logging
from typing import Any

from multitap.errors import (
    BadAnswer,
    BadArguments,
    CallTimeout,
    Denied,
    HubClosed,
    MultitapError,
    NotAllowed,
    Overloaded,
    ServerError,
    Unavailable,
    UnknownName,
)
from multitap.gateway.client_message import UNPARSABLE, ClientMessage, Params, Refused, parse_params
from multitap.wire.jsonrpc import envelope, vocabulary

logger = logging.getLogger(__name__)

PARSE_ERROR, INVALID_REQUEST = vocabulary.PARSE_ERROR, vocabulary.INVALID_REQUEST
NO_METHOD, INVALID_PARAMS = vocabulary.METHOD_NOT_FOUND, vocabulary.INVALID_PARAMS
INTERNAL, UNAVAILABLE = vocabulary.INTERNAL_ERROR, vocabulary.SERVER_ERROR
# within the range left to servers; -32800 is what the Language Server Protocol says
TIMEOUT, CANCELLED, OVERLOADED, BAD_ANSWER = -32001, -32800, -32003, -32004
NO_RESOURCE = -32002

_KINDS: tuple[tuple[type[MultitapError], int, str], ...] = (
    (NotAllowed, INVALID_PARAMS, "hidden"),
    (UnknownName, INVALID_PARAMS, "unknown"),
    (BadArguments, INVALID_PARAMS, "bad_arguments"),
    (Denied, INVALID_PARAMS, "denied"),
    (CallTimeout, TIMEOUT, "timeout"),
    (Overloaded, OVERLOADED, "overloaded"),
    (BadAnswer, BAD_ANSWER, "bad_answer"),
    (Unavailable, UNAVAILABLE, "unavailable"),
    (HubClosed, UNAVAILABLE, "closing"),
)


def unreadable(data: bytes, exc: Exception) -> Refused:
    """The error for bytes that are not a single JSON-RPC message."""
    if data.lstrip()[:1] == b"[":
        return Refused(INVALID_REQUEST, "batches are not supported: send one message")
    return Refused(PARSE_ERROR, f"Parse error: {exc}")


def read_params(message: ClientMessage) -> Params:
    """The parameters of a request, decoded as far as the gateway needs.

    Raises:
        Refused: It cannot be read.
    """
    try:
        return parse_params(message.params) if len(message.params) else Params()
    except UNPARSABLE as exc:
        raise Refused(INVALID_PARAMS, f"the parameters cannot be read: {exc}") from None


def refusal_of(exc: MultitapError) -> Refused:
    """The JSON-RPC error for an exception: code, message, reason and hint."""
    if isinstance(exc, ServerError):
        return Refused(exc.code, exc.words, exc.data)
    code, reason = INTERNAL, "failed"
    for kind, its_code, its_reason in _KINDS:
        if isinstance(exc, kind):
            code, reason = its_code, its_reason
            break
    data: dict[str, Any] = {"reason": reason}
    if exc.hint:
        data["hint"] = exc.hint
    if isinstance(exc, BadArguments):
        data["path"] = exc.path
    if isinstance(exc, Unavailable):
        data["server"] = exc.server
    words = f"{exc}; {exc.hint}" if exc.hint else str(exc)
    return Refused(code, words, data)


def to_refusal(exc: Exception, method: str) -> Refused:
    """The JSON-RPC error for any exception that ended a request."""
    if isinstance(exc, Refused):
        return exc
    if isinstance(exc, MultitapError):
        return refusal_of(exc)
    # the client chooses the method name, which may be as long as a message
    logger.error("%.80r failed", method, exc_info=exc)
    return Refused(INTERNAL, "Internal error")


def failed_call(exc: BadArguments | Denied) -> bytes:
    """A failed tool result that tells the model why the call was not made."""
    words = f"{exc}; {exc.hint}" if exc.hint else str(exc)
    return envelope.encode({"content": [{"type": "text", "text": words}], "isError": True})
