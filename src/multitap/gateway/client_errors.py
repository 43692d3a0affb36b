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
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import UNPARSABLE, ClientMessage, RequestParams, RpcError, parse_params

logger = logging.getLogger(__name__)

PARSE_ERROR, INVALID_REQUEST = jsonrpc.PARSE_ERROR, jsonrpc.INVALID_REQUEST
NO_METHOD, INVALID_PARAMS = jsonrpc.METHOD_NOT_FOUND, jsonrpc.INVALID_PARAMS
INTERNAL, UNAVAILABLE = jsonrpc.INTERNAL_ERROR, jsonrpc.SERVER_ERROR
# within the range left to servers; -32800 is what the Language Server Protocol says
TIMEOUT, CANCELLED, OVERLOADED, BAD_ANSWER = -32001, -32800, -32003, -32004
NO_RESOURCE = -32002

# the first that fits counts, so a class comes before the one that it is derived from
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


class ScopeNeeded(RpcError):
    """A call for which the client needs a token with more scopes; over HTTP, a step-up challenge.

    Args:
        tool: The name of the tool.
        scopes: The scopes that its token lacks.
    """

    def __init__(self, tool: str, scopes: tuple[str, ...]) -> None:
        message = f"{tool} needs a token with the scope {' '.join(scopes)}"
        data = {"reason": "insufficient_scope", "scopes": scopes}
        super().__init__(INVALID_REQUEST, message, data)
        self.scopes = scopes


def unreadable(data: bytes, exc: Exception) -> RpcError:
    """The error for bytes that are not a single JSON-RPC message."""
    if data.lstrip()[:1] == b"[":
        return RpcError(INVALID_REQUEST, "batches are not supported: send one message")
    return RpcError(PARSE_ERROR, f"Parse error: {exc}")


def read_params(message: ClientMessage) -> RequestParams:
    """The parameters of a request, decoded as far as the gateway needs.

    Raises:
        RpcError: It cannot be read.
    """
    try:
        return parse_params(message.params) if len(message.params) else RequestParams()
    except UNPARSABLE as exc:
        raise RpcError(INVALID_PARAMS, f"the parameters cannot be read: {exc}") from None


def refusal_of(exc: MultitapError) -> RpcError:
    """The JSON-RPC error for an exception: code, message, reason and hint."""
    if isinstance(exc, ServerError):
        return RpcError(exc.code, exc.words, exc.data)
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
    # clients and models see little but the message, so the hint is part of it as well
    message = f"{exc}; {exc.hint}" if exc.hint else str(exc)
    return RpcError(code, message, data)


def to_refusal(exc: Exception, method: str) -> RpcError:
    """The JSON-RPC error for any exception that ended a request."""
    if isinstance(exc, RpcError):
        return exc
    if isinstance(exc, MultitapError):
        return refusal_of(exc)
    # the client chooses the method name, which may be as long as a message
    logger.error("%.80r failed", method, exc_info=exc)
    return RpcError(INTERNAL, "Internal error")


def failed_call(exc: BadArguments | Denied) -> bytes:
    """A failed tool result that tells the model why the call was not made."""
    message = f"{exc}; {exc.hint}" if exc.hint else str(exc)
    return jsonrpc.encode({"content": [{"type": "text", "text": message}], "isError": True})
