"""Arguments of a call for people: redacted and shortened."""

from collections.abc import Mapping
from typing import Any

from multitap.config.secrets import in_text, is_telling
from multitap.printable import printable
from multitap.redaction import MARK, Redactor

# For a person who has to decide: as much as fits on a screen, of values that may have any size.
LONGEST_TEXT = 500
MOST_MEMBERS = 50
DEEPEST = 6


def show_arguments(arguments: Mapping[str, Any], redact: Redactor) -> dict[str, Any]:
    """Arguments without secrets, and shortened.

    Args:
        arguments: The arguments as sent.
        redact: Removes the secrets of the server that gets them.
    """
    return {
        _text(name, redact): _show(value, redact, name, DEEPEST)
        for name, value in [*arguments.items()][:MOST_MEMBERS]
    }


def _show(value: Any, redact: Redactor, name: str, depth: int) -> Any:
    match value:
        case str() | int() | float() if is_telling(name) and not isinstance(value, bool):
            return MARK
        case str():
            return _text(value, redact)
        case dict() | list() if not depth:
            return "…"
        case dict():
            members: list[tuple[str, Any]] = [*value.items()][:MOST_MEMBERS]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            return {_text(key, redact): _show(one, redact, key, depth - 1) for key, one in members}
        case list():
            return [_show(one, redact, name, depth - 1) for one in value[:MOST_MEMBERS]]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def _text(text: str, redact: Redactor) -> str:
    # cut first, as it may be very long; a secret that is cut in half is still found
    found = redact(text[: 2 * LONGEST_TEXT])
    for secret in {*in_text(found)}:
        found = found.replace(secret, MARK)
    more = f"… ({len(text):,} characters)" if len(text) > LONGEST_TEXT else ""
    return f"{printable(found[:LONGEST_TEXT])}{more}"
