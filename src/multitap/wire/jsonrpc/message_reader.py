"""Parses a message from a body or an event, or says what is wrong with it."""

from msgspec import UNSET

from multitap.faults import AnswerInvalid
from multitap.wire.jsonrpc import envelope
from multitap.wire.jsonrpc.envelope import Envelope
from multitap.wire.jsonrpc.pending_requests import PendingRequest


def read_message(data: bytes) -> Envelope:
    """The one message in `data`.

    Raises:
        AnswerInvalid: There is none, or more than one; the message quotes `data`.
    """
    try:
        message = envelope.parse(data)
        if not data.isascii():
            data.decode()  # undecoded parts must be valid UTF-8, too
    except envelope.UNPARSABLE as exc:
        raise AnswerInvalid(f"{_flaw(data, exc)}{quote_data(data)}", sent=True) from None
    return message


def no_message(data: bytes) -> AnswerInvalid:
    """The error for `data` that does not begin like a message."""
    flaw = _flaw(data, None)
    return AnswerInvalid(f"{flaw}{quote_data(data)}", sent=True)


def answers(message: Envelope, pending: PendingRequest) -> bool:
    """Whether a message on a request's own stream is its answer.

    An error without an id is one: the server could not read the request.
    """
    if message.method is not UNSET:
        return False
    return message.id == pending.id or (message.id is None and len(message.error) > 0)


def quote_data(data: bytes) -> str:
    """`data` shortened to one line, as the end of an error message."""
    line = envelope.excerpt(b" ".join(data[:1024].split()))
    return f": {line}" if line else ""


def _flaw(data: bytes, exc: Exception | None) -> str:
    start = data.lstrip()[:1]
    if not start:
        return "the answer is empty"
    if start == b"[":
        return "the answer is a batch instead of one message"
    if isinstance(exc, RecursionError):
        return "the answer is nested too deeply"
    if isinstance(exc, UnicodeDecodeError):
        return "the answer is not valid UTF-8"
    return f"the answer is not a JSON-RPC message{f' ({exc})' if exc else ''}"
