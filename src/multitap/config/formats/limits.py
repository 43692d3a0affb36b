"""Limits on configuration files, checked before or during parsing.

The input decides what parsing costs: without limits, a few kilobytes of nested brackets,
dotted keys or aliases take minutes or gigabytes.
"""

import re
from collections.abc import Mapping

from multitap.config.documents import Format, Malformed

KIB = 1024
LARGEST: Mapping[Format, int] = {"json": 16 * KIB * KIB, "toml": KIB * KIB, "yaml": 256 * KIB}
"""Bytes; hosts keep their history in the same JSON, and YAML is a hundred times slower."""
MOST_VALUES: Mapping[Format, int] = {"json": 100_000, "toml": 50_000, "yaml": 10_000}
"""Values, tables and lists included; for YAML, with every alias expanded."""
# Parsers recurse, and Python allows about a thousand frames; real files stay far below.
DEEPEST = 32
"""Levels of tables and lists; every step of a dotted key is one."""
# Each may become a process; a file with more is refused as a whole.
MOST_SERVERS = 1000
"""Servers in one file."""
LONGEST_KEY = 4096
"""Characters of a key; hosts use the paths of folders as keys."""

_STOP = re.compile(r'\\.|["\n]')


class DocumentTooLarge(Malformed):
    """The text exceeds a limit of configuration files."""

    def words(self, kind: Format) -> str:  # noqa: ARG002 - nothing is wrong with its format
        return str(self)


class Meter:
    """Counts the values of a document while it is read."""

    def __init__(self, kind: Format) -> None:
        self._most = MOST_VALUES[kind]
        self._values = 0

    def value(self, depth: int, at: int) -> None:
        """Count one value.

        Raises:
            DocumentTooLarge: There are too many, or it is nested too deeply.
        """
        self._values += 1
        if self._values > self._most:
            raise DocumentTooLarge(f"has more than {self._most:,} values", at)
        if depth > DEEPEST:
            raise DocumentTooLarge(f"is nested more than {DEEPEST} levels deep", at)


def check_size(text: str, kind: Format) -> None:
    """Check that a text is not too large for its format.

    Raises:
        DocumentTooLarge: It is.
    """
    if len(text) > LARGEST[kind]:
        raise DocumentTooLarge(f"is larger than {LARGEST[kind] // KIB:,} KiB", 0)


def check_key(name: str, at: int) -> None:
    """Check that a key is not too long.

    Raises:
        DocumentTooLarge: It is.
    """
    if len(name) > LONGEST_KEY:
        raise DocumentTooLarge(f"has a key of more than {LONGEST_KEY:,} characters", at)


def quoted_end(text: str, at: int) -> int | None:
    """The end of the double-quoted string at an offset; None if it is not closed on its line.

    A regular expression for the whole string would keep a backtracking point for every escape.
    """
    for match in _STOP.finditer(text, at + 1):
        match text[match.start()]:
            case '"':
                return match.end()
            case "\n":
                return None
            case _:
                continue
    return None
