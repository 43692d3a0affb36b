"""Characters that people do not see but models read."""

import re

from multitap.printable import is_seen

_TAGS = re.compile("(?<![\U000e0020-\U000e007f\U0001f3f4])[\U000e0000-\U000e007f]+")
"""Invisible letters; after a black flag, they form the flag of a region."""
_OVERRIDES = re.compile("[\u202a-\u202e\u2066-\u2069]")
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{2,}")
_BLANKS = re.compile("[\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800\u034f\u180b-\u180e]")
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_NOTHING = re.compile(
    "[\u200b\u2060-\u2064\ufeff\u206a-\u206f\ufff9-\ufffb]"
    # joiners belong between letters of scripts that need them, and in emoji
    "|[\u200c\u200d](?=[\x00-\x7f\u200b-\u200d])|(?<=[\x00-\x7f])[\u200c\u200d]"
)
FEW = 2
"""Zero-width characters that editors and web pages leave behind."""

_KINDS = (
    ("invisible letters (Unicode tags)", _TAGS, 1),
    ("text whose direction is overridden", _OVERRIDES, 1),
    ("a run of variation selectors", _SELECTORS, 1),
    ("blank letters", _BLANKS, 1),
    ("control characters", _CONTROLS, 1),
    ("zero-width characters", _NOTHING, FEW + 1),
)


def find_hidden(text: str, *, is_name: bool = False) -> tuple[str, int] | None:
    """What is hidden in a text, and where; None if nothing is.

    Args:
        text: The text.
        is_name: Whether it is a name, in which even one such character is suspicious.
    """
    if text.isascii() and not _CONTROLS.search(text):
        return None
    for words, pattern, least in _KINDS:
        found = pattern.finditer(text)
        first = next(found, None)
        if first and (is_name or least == 1 or sum(1 for _ in found) + 1 >= least):
            return words, first.start()
    return None


def visible(text: str) -> str:
    """`text` with invisible characters as escapes."""
    return "".join(char if is_seen(char) else _escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004 - two spellings
