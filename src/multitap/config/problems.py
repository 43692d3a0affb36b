"""What is wrong with a configuration, where, and how to fix it."""

import re
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import msgspec

_LONGEST_WORD = 200
"""Characters of compared words; comparing takes quadratic time."""
_NEAR, _NEAR_REST = 0.7, 0.6
"""How alike two words have to be, and how alike without the beginning that they share."""
_COMPARED = 3
_SEPARATOR = re.compile(r"[\W_]+")


class Severity(StrEnum):
    ERROR = "error"
    """A server, a value or a whole file is lost."""
    WARNING = "warning"
    """It is valid, but probably not intended."""
    NOTE = "note"
    """Valid in its host, without effect here."""


class Place(msgspec.Struct, frozen=True, order=True):
    """Where something is written; lines and columns count from one."""

    file: Path
    line: int = 0
    """Zero for the whole file."""
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else str(self.file)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One problem; never contains a value that could be secret."""

    severity: Severity
    message: str
    place: Place
    key: str = ""
    """Dotted, as the file spells it."""
    server: str | None = None
    expected: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        key = f"`{self.key}`: " if self.key else ""
        return f"{self.place}: {self.severity}: {key}{self.message}"

    @property
    def reason(self) -> str:
        """The text for an error message, without the severity."""
        key = f"`{self.key}`: " if self.key else ""
        return f"{self.place}: {key}{self.message}"


def serious(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Errors and warnings, without notes."""
    return tuple(problem for problem in problems if problem.severity is not Severity.NOTE)


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that was probably meant; case and separators do not count."""
    if len(word) > _LONGEST_WORD:
        return None
    # reversed: of two that differ only in separators, the first one counts
    plain = {_plain(candidate): candidate for candidate in reversed([*candidates])}
    from difflib import get_close_matches  # noqa: PLC0415 - for mistakes only

    matches = get_close_matches(_plain(word), plain, n=_COMPARED, cutoff=_NEAR)
    return next((plain[match] for match in matches if _is_near(word, plain[match])), None)


def _is_near(word: str, candidate: str) -> bool:
    """Whether two words are alike even without the beginning that they share.

    Names of one server begin alike, whatever comes after that.
    """
    parts, others = _SEPARATOR.split(word.lower()), _SEPARATOR.split(candidate.lower())
    while len(parts) > 1 and len(others) > 1 and parts[0] == others[0]:
        del parts[0], others[0]
    from difflib import SequenceMatcher  # noqa: PLC0415 - see above

    return SequenceMatcher(None, "".join(parts), "".join(others)).ratio() >= _NEAR_REST


def did_you_mean(word: str, candidates: Iterable[str]) -> str | None:
    """A hint if `word` looks like a typing mistake, or None."""
    return f"did you mean `{match}`?" if (match := nearest(word, candidates)) else None


def _plain(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")
