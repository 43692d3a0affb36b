"""Makes text safe to show on a terminal."""

import re

_PLAIN = re.compile(r"[\n\t\x20-\x7e]*")
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Invisible characters that Python counts as printable."""


def is_seen(text: str) -> bool:
    """Whether a person sees every character of a text."""
    return text.isprintable() and (text.isascii() or _BLANK.search(text) is None)


def printable(text: str) -> str:
    """`text` without terminal control characters; line ends and tabs stay."""
    if _PLAIN.fullmatch(text):  # most text is printable, and may be long
        return text
    return "".join(
        char if char in "\n\t" or char.isprintable() else "" if char == "\r" else "�"
        for char in text
    )
