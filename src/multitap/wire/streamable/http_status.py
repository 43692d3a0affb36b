"""What an HTTP error status means for the request."""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from multitap.faults import AuthRequired, RequestFailed, SessionLost, WireFault, WrongProtocol
from multitap.wire.jsonrpc import envelope
from multitap.wire.jsonrpc.envelope import RequestId
from multitap.wire.jsonrpc.vocabulary import INVALID_REQUEST, METHOD_NOT_FOUND
from multitap.wire.wire import RpcError

_NOT_NOW = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer with an HTTP status of 400 or more."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def words(self) -> str:
        """The refusal in one line."""
        phrase = HTTPStatus(self.status).phrase if self.status in _KNOWN else ""
        words = f"HTTP {self.status} {phrase}".strip()
        if retry_after := self.headers.get("Retry-After", ""):
            words += f", retry after {envelope.excerpt(retry_after.encode(errors='replace'), 40)}"
        text = b" ".join(self.body[:1024].split())
        return f"{words}: {envelope.excerpt(text)}" if text else words

    def error(self) -> tuple[RequestId | None, RpcError] | None:
        """The JSON-RPC error in the body with its id, where there is one."""
        try:
            message = envelope.parse(self.body)
        except envelope.UNPARSABLE:
            return None
        error = envelope.outcome(message)
        if not isinstance(error, RpcError):
            return None
        return message.id if isinstance(message.id, int | str) else None, error


_KNOWN = frozenset(HTTPStatus)


def meaning(
    refusal: Refusal, request_id: RequestId | None, *, established: bool, in_session: bool
) -> WireFault | RpcError:
    """The exception for a request that was refused.

    Args:
        refusal: The server's response.
        request_id: The request's own id, if it has one.
        established: Whether the handshake is done, so that this must be an MCP server.
        in_session: Whether the request named a session.
    """
    status, words = refusal.status, refusal.words
    error = refusal.error()
    challenge = refusal.headers.get("WWW-Authenticate")
    # a 403 with a JSON-RPC error comes from the server itself, and is not about credentials
    if status == 401 or (status == 403 and (challenge is not None or error is None)):  # noqa: PLR2004
        return AuthRequired(words, challenge=challenge)
    # before the error itself: a new handshake restores a lost session, an error is final
    if in_session and _session_is_gone(status, error, request_id):
        return SessionLost(f"the server no longer knows our session ({words})", sent=False)
    if error is not None:
        return error[1]
    if status in (404, 405) and not established:
        return WrongProtocol(words, sent=True)
    if is_passing(status) or status in (404, 405):
        return RequestFailed(words, sent=True)
    return RpcError(INVALID_REQUEST, words)


def is_passing(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _NOT_NOW


def _session_is_gone(
    status: int, error: tuple[RequestId | None, RpcError] | None, request_id: RequestId | None
) -> bool:
    if status == HTTPStatus.NOT_FOUND:
        mine = error is not None and error[0] is not None and error[0] == request_id
        return not (mine and error is not None and error[1].code == METHOD_NOT_FOUND)
    # many servers send a 400 with a text instead of a 404
    if status == HTTPStatus.BAD_REQUEST and error is not None and error[0] != request_id:
        return "session" in str(error[1]).lower()
    return False
