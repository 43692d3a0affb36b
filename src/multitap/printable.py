"""What a person sees of a text: characters that hide, control a terminal, or look like others."""

import re
from collections.abc import Iterable

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


_CYRILLIC = (
    "\u0430a\u0435e\u043eo\u0440p\u0441c\u0443y\u0445x"
    "\u0456i\u0458j\u0455s\u04bbh\u0501d\u051bq\u051dw"
)
_GREEK = "\u03b1a\u03b9i\u03bak\u03bdv\u03bfo\u03c1p\u03c5u\u03c7x"
_OTHERS = (
    "\u0131i\u0261g\u0251a\u2113l\u217cl\u0585o\u057du\u0581g\u0570h\u0578n\ua4d0b\ua4d1p"
    "\ua4d4t\ua4d6g\ua4d7k\ua4d9j\ua4dac\ua4ddf\ua4dfm\ua4e0n\ua4e1l\ua4e2s\ua4e3r\ua4e6v"
    "\ua4e7h\ua4eaw\ua4ebx\ua4ecy\ua4eea\ua4f0e\ua4f2l\ua4f3o\ua4f4u\ua4dcz\ua4d2p"
)
_PAIRS = _CYRILLIC + _GREEK + _OTHERS
_TABLE = {ord(odd): plain for odd, plain in zip(_PAIRS[::2], _PAIRS[1::2], strict=True)}
_ASCII = str.maketrans("01|5$@-. ", "oilssa___")
_SEPARATORS = str.maketrans("-. ", "___")
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff9-\ufffb\U000e0000-\U000e01ef]"
)
_SCRIPTS = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "LISU", "CHEROKEE")


def remove_unseen(text: str) -> str:
    """`text` without characters that take no room."""
    return _UNSEEN.sub("", text)


def plain_letters(text: str) -> str:
    """`text` in lower case, with look-alikes replaced by plain letters."""
    if text.isascii() and text.isprintable():
        return text.lower()
    import unicodedata  # noqa: PLC0415 - half a megabyte that most names do not need

    composed = unicodedata.normalize("NFKC", text).casefold()
    return remove_unseen(composed).translate(_TABLE)


def skeleton(name: str) -> str:
    """A name with look-alike letters made equal."""
    plain = plain_letters(name).translate(_ASCII)
    if not plain.isascii():
        import unicodedata  # noqa: PLC0415 - see above

        parts = unicodedata.normalize("NFD", plain)
        plain = "".join(char for char in parts if not unicodedata.combining(char))
    return plain.replace("l", "i").replace("rn", "m").replace("vv", "w")


def mixes_scripts(word: str) -> bool:
    """Whether a word mixes Latin letters with those of a similar script."""
    if word.isascii():
        return False
    kinds = {_script(char) for char in word if char.isalpha()} - {""}
    return len(kinds) > 1


def is_deceptive(name: str) -> bool:
    """Whether a name looks like another one in plain letters."""
    if name.isascii():
        return False
    plain = plain_letters(name)
    return mixes_scripts(name) or (plain.isascii() and plain != name.casefold())


def twins(names: Iterable[str]) -> dict[str, str]:
    """Names that look like another one of these, ignoring case and separators."""
    alike = LookAlikes()
    alike.compare(names)
    return alike.twins


class LookAlikes:
    """Finds names that look like others; only those that are new cost time."""

    def __init__(self) -> None:
        self.twins: dict[str, str] = {}
        """Names that look like another one, and which."""
        self._names: set[str] = set()
        self._first: dict[str, str] = {}

    def compare(self, names: Iterable[str]) -> bool:
        """Use these names instead of earlier ones; returns whether other names look alike now."""
        names, before = dict.fromkeys(names), self.twins
        if names.keys() >= self._names:
            self.twins = dict(before)
        else:
            self.twins, self._names, self._first = {}, set(), {}
        for name in names:
            if name in self._names:
                continue
            other = self._first.setdefault(skeleton(name), name)
            if other != name and _spell(other) != _spell(name):
                self.twins[name], self.twins[other] = other, name
        self._names = set(names)
        return self.twins != before


def _spell(name: str) -> str:
    return name.casefold().translate(_SEPARATORS)


def _script(char: str) -> str:
    import unicodedata  # noqa: PLC0415 - see above

    word = unicodedata.name(char, "").partition(" ")[0]
    return word if word in _SCRIPTS else ""
