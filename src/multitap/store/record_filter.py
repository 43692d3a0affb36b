"""The filter language of all listings: `server:github status:error >500ms text`."""

import operator
import re
import shlex
import time
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import get_args

from multitap.config.durations import EXAMPLES, seconds
from multitap.config.models import LogLevel
from multitap.config.problems import did_you_mean
from multitap.errors import BadArguments, quoted
from multitap.records import dataclass

LONGEST = 1000
"""Characters of a filter."""
KEYS = ("server", "tool", "status", "client", "agent", "kind", "level", "since", "text")
HELP = (
    "words to find, `key:value` with `*` as a wildcard, `>500ms` and `<2s` for the duration, "
    "`since:10m`, and `-` before a term to exclude what it matches; "
    f"keys: {', '.join(KEYS)}"
)

_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
_ALIKE: Mapping[str, frozenset[str]] = {
    # `error` means every call without a good answer
    "error": frozenset({"error", "failed", "timeout"}),
    "up": frozenset({"connected"}),
    "down": frozenset({"disconnected", "connecting", "error", "needs_auth"}),
}
_COMPARISON = re.compile(r"(>=|<=|>|<)(.+)")
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}

Fields = Mapping[str, object]
"""The fields of a record: texts by the keys above, `seconds` and `at` as numbers."""
_Test = Callable[[Fields], bool]


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """A parsed filter; a row passes if every term does."""

    text: str
    """The text as typed."""
    _tests: tuple[_Test, ...]

    @classmethod
    def parse(cls, text: str) -> "RecordFilter":
        """Parse a filter.

        Raises:
            BadArguments: A term is invalid; the error names it, and the valid forms.
        """
        if len(text) > LONGEST:
            raise BadArguments(f"a filter has at most {LONGEST} characters", path="", hint=HELP)
        try:
            words = shlex.split(text)
        except ValueError:
            raise BadArguments(
                f"a quotation mark in {quoted(text)} is not closed", path="", hint=HELP
            ) from None
        return cls(text, tuple(map(_term, words)))

    def matches(self, fields: Fields) -> bool:
        return all(test(fields) for test in self._tests)


EVERYTHING = RecordFilter("", ())
"""The filter that matches everything."""


def _term(word: str) -> _Test:
    if word.startswith("-") and len(word) > 1:
        excluded = _term(word[1:])
        return lambda fields: not excluded(fields)
    if found := _COMPARISON.fullmatch(word):
        compare, limit = _COMPARE[found[1]], _seconds(found[2])
        return lambda fields: _compared(fields.get("seconds"), compare, limit)
    key, colon, value = word.partition(":")
    if not colon or not key.isalpha():
        return lambda fields: _contains(fields, word.lower())
    if key not in KEYS:
        hint = did_you_mean(key, KEYS) or HELP
        raise BadArguments(f"a filter has no key {quoted(key)}", path="", hint=hint)
    return _key_test(key, value.lower())


def _key_test(key: str, value: str) -> _Test:
    match key:
        case "since":
            start = time.time() - _seconds(value)
            return lambda fields: _compared(fields.get("at"), operator.ge, start)
        case "level":
            if value not in _LEVELS:
                raise BadArguments(
                    f"{quoted(value)} is not a level", path="", hint=f"one of {', '.join(_LEVELS)}"
                )
            wanted = frozenset(_LEVELS[_LEVELS.index(value) :])
            return lambda fields: fields.get("level") in wanted
        case "status" if value in _ALIKE:
            alike = _ALIKE[value]
            return lambda fields: str(fields.get("status") or "").lower() in alike
        case "text":
            return lambda fields: _contains(fields, value)
        case _:
            return lambda fields: fnmatchcase(str(fields.get(key) or "").lower(), value)


def _contains(fields: Fields, text: str) -> bool:
    return any(text in value.lower() for value in fields.values() if isinstance(value, str))


def _compared(value: object, compare: Callable[[float, float], bool], limit: float) -> bool:
    return isinstance(value, int | float) and compare(value, limit)


def _seconds(text: str) -> float:
    try:
        return seconds(text)
    except ValueError:
        raise BadArguments(
            f"{quoted(text)} is not a duration", path="", hint=f"write {EXAMPLES}"
        ) from None
