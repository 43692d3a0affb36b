"""Makes text safe to show on a terminal."""

import re

_PLAIN = re.compile(r"[\n\t\x20-\x7e]*")


def printable(text: str) -> str:
    """`text` without what would steer a terminal; line ends and tabs stay."""
    if _PLAIN.fullmatch(text):  # most is, and may be long
        return text
    return "".join(
        char if char in "\n\t" or char.isprintable() else "" if char == "\r" else "�"
        for char in text
    )
