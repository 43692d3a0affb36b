"""JSON with comments and trailing commas, with the position of every value."""

import json
import re
from typing import Any

from multitap.config.documents import (
    KeyPath,
    Malformed,
    Mark,
    Meter,
    Parsed,
    check_key,
    check_size,
    quoted_end,
)

_BLANK = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[A-Za-z_$][\w$]*")
_CONSTANTS = {"true": True, "false": False, "null": None}


def parse(text: str) -> Parsed:
    """Read one document.

    Raises:
        Malformed: Has the offset of the first error.
    """
    check_size(text, "json")
    reader = _JsoncReader(text)
    data = reader.value((), reader.space(0))
    if reader.end < len(text):
        raise reader.unexpected_token("the end of the file", reader.end)
    return Parsed(data, reader.marks, tuple(reader.duplicates))


class _JsoncReader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.end = 0
        """The end of the last value, with the space after it."""
        self.marks: dict[KeyPath, Mark] = {}
        self.duplicates: list[KeyPath] = []
        self._meter = Meter("json")

    def space(self, at: int) -> int:
        """The end of blanks and comments; an unclosed comment does not count."""
        while True:
            blank = _BLANK.match(self.text, at)
            at = blank.end() if blank else at
            if self.text.startswith("//", at):
                end = self.text.find("\n", at)
                at = len(self.text) if end < 0 else end
            elif self.text.startswith("/*", at) and (end := self.text.find("*/", at + 2)) >= 0:
                at = end + 2
            else:
                return at

    def unexpected_token(self, expected: str, at: int) -> Malformed:
        if at >= len(self.text):
            return Malformed(f"the file ends where {expected} was expected", at)
        if self.text.startswith("/*", at):
            return Malformed("this comment is never closed", at)
        if self.text[at] == '"':
            return Malformed(f"expected {expected}, got a string", at)
        return Malformed(f"expected {expected}, got {self.text[at]!r}", at)

    def value(self, key: KeyPath, at: int, key_at: int | None = None) -> Any:
        self._meter.value(len(key), at)
        self.marks[key] = Mark(at if key_at is None else key_at, at)
        # a slice, here and below: it is empty at the end, where an index would raise
        match self.text[at : at + 1]:
            case "{":
                return self.table(key, at)
            case "[":
                return self.list(key, at)
            case '"':
                value, end = self.string(at)
            case _:
                value, end = self.scalar(at)
        self.end = self.space(end)
        return value

    def table(self, key: KeyPath, at: int) -> dict[str, Any]:
        table: dict[str, Any] = {}
        at = self.space(at + 1)
        while self.text[at : at + 1] != "}":
            if self.text[at : at + 1] != '"':
                raise self.unexpected_token("a name in double quotes or `}`", at)
            name, end = self.string(at)
            check_key(name, at)
            colon = self.space(end)
            if self.text[colon : colon + 1] != ":":
                raise self.unexpected_token("`:`", colon)
            member = (*key, name)
            if name in table:
                self.duplicates.append(member)
                del table[name]  # so that the last one also comes last
            table[name] = self.value(member, self.space(colon + 1), at)
            at = self.next_member("}")
        self.end = self.space(at + 1)
        return table

    def list(self, key: KeyPath, at: int) -> list[Any]:
        items: list[Any] = []
        at = self.space(at + 1)
        while self.text[at : at + 1] != "]":
            items.append(self.value((*key, len(items)), at))
            at = self.next_member("]")
        self.end = self.space(at + 1)
        return items

    def next_member(self, closing: str) -> int:
        """The offset of the next member, or of the closing bracket."""
        character = self.text[self.end : self.end + 1]
        if character == ",":
            return self.space(self.end + 1)
        if character != closing:
            raise self.unexpected_token(f"`,` or `{closing}`", self.end)
        return self.end

    def string(self, at: int) -> tuple[str, int]:
        end = quoted_end(self.text, at)
        if end is None:
            raise Malformed("this string is not closed on its line", at)
        try:
            value: str = json.loads(self.text[at:end])
        except ValueError as exc:
            reason = exc.msg if isinstance(exc, json.JSONDecodeError) else str(exc)
            raise Malformed(f"this string is not valid: {reason.lower()}", at) from exc
        return value, end

    def scalar(self, at: int) -> tuple[Any, int]:
        if match := _NUMBER.match(self.text, at):
            try:
                whole = match.lastindex is None
                return (int if whole else float)(match.group()), match.end()
            except ValueError as exc:  # Python refuses integers of thousands of digits
                raise Malformed("this number is too long", at) from exc
        if (match := _WORD.match(self.text, at)) and match.group() in _CONSTANTS:
            return _CONSTANTS[match.group()], match.end()
        if match:
            raise Malformed(f"expected a value, got {match.group()[:20]!r}", at)
        if self.text.startswith("'", at):
            raise Malformed("strings need double quotes", at)
        raise self.unexpected_token("a value", at)
