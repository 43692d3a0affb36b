"""Parses the answers of a running gateway."""

from typing import TypeVar

import msgspec
from msgspec import Raw

from multitap.errors import (
    BadArguments,
    ConfigError,
    Denied,
    MultitapError,
    Unavailable,
    UnknownName,
)
from multitap.gateway.fronts.control_messages import ControlAnswer

_Said = TypeVar("_Said")


def content(answer: ControlAnswer, kind: type[_Said]) -> _Said:
    """The decoded value of an answer.

    Raises:
        MultitapError: The answer is an error, raised as the same class.
    """
    if answer.error is not None:
        raise _error(answer, answer.error)
    return decode_answer(answer.ok, kind)


def _error(answer: ControlAnswer, words: str) -> MultitapError:
    """The exception that a gateway reports."""
    server, hint = answer.server or "", answer.hint
    match answer.kind:
        case "unknown":
            return UnknownName(words, hint=hint)
        case "arguments":
            return BadArguments(words, path="", hint=hint)
        case "configuration":
            return ConfigError(words, hint=hint)
        case "denied":
            return Denied(words, hint=hint)
        case "unavailable" if server:
            return Unavailable(server, words.removeprefix(f"{server}: "), hint=hint)
        case _:
            return MultitapError(words, hint=hint)


def decode_answer(data: bytes | Raw, kind: type[_Said]) -> _Said:
    """Decode a line, or a part of it.

    Raises:
        MultitapError: It has another form.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as exc:
        raise MultitapError(
            f"cannot understand the gateway: {exc}",
            hint="it may be another version: restart it",
        ) from None
