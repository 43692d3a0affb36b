"""TOML with the position of every value.

`tomllib` parses the values. It takes quadratic time and memory for long dotted keys, so a first
pass enforces limits. A last pass finds the places, and can be lenient because the text is valid.
"""

import re
import tomllib
from collections import Counter
from typing import NamedTuple

from multitap.config.documents import (
    DEEPEST,
    LONGEST_KEY,
    DocumentTooLarge,
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
_LITERAL = re.compile(r"'[^'\n]*'")
# up to two quotes may be the end of the text itself, right before the closing three
_CLOSING = re.compile(r'\\.|"{3,5}', re.DOTALL)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}\n#]*")
_TOKEN = re.compile(r"[A-Za-z0-9_+:-]+|[][{}.,=\"'#]|\n+")
_ARRAY = 2
"""Brackets around the name of an array of tables."""
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def parse(text: str) -> Parsed:
    """Read one document.

    Raises:
        Malformed: Has the offset of the first error.
    """
    check_size(text, "toml")
    # Before `tomllib`, which has no limits: a few kilobytes of nested brackets or dotted keys can
    # keep it busy for minutes.
    _check_shape(text)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise _syntax_error(str(exc), text) from exc
    except ValueError as exc:  # Python refuses integers of thousands of digits
        raise Malformed("a number is too long", 0) from exc
    return Parsed(data, Locator(text).marks)


def _check_shape(text: str) -> None:
    """Check the number and nesting of values, in a text that may not be TOML."""
    meter = Meter("toml")
    depth = steps = at = 0
    while token := _TOKEN.search(text, at):
        start, at = token.span()
        match text[start]:
            case "#":
                line_end = text.find("\n", at)
                at = len(text) if line_end < 0 else line_end
            case '"' | "'":
                at = _string_end(text, start) or len(text)
            case "[" | "{":
                depth, steps = depth + 1, 0
                meter.value(depth, start)
            case "]" | "}":
                depth, steps = max(depth - 1, 0), 0
            case ".":
                steps += 1
                meter.value(steps, start)
            case "=" | ",":
                steps = 0
                meter.value(depth, start)
            case "\n":
                steps = 0
            case _ if at - start > LONGEST_KEY:
                message = f"has a key or number of more than {LONGEST_KEY:,} characters"
                raise DocumentTooLarge(message, start)
            case _:
                continue


def _string_end(text: str, at: int) -> int | None:
    """The end of the string at an offset; None if it is not closed, or none starts there."""
    if text.startswith('"""', at):
        closing = _CLOSING.finditer(text, at + 3)
        return next((match.end() for match in closing if text[match.start()] == '"'), None)
    if text.startswith("'''", at):
        end = text.find("'''", at + 3)
        more = text[end + 3 : end + 5]
        return end + 3 + len(more) - len(more.lstrip("'")) if end >= 0 else None
    if text.startswith('"', at):
        return quoted_end(text, at)
    match = _LITERAL.match(text, at)
    return match.end() if match else None


def _syntax_error(message: str, text: str) -> Malformed:
    # before Python 3.14, the position is only in the message
    match = _POSITION.search(message)
    text_ = _POSITION.sub("", message)
    text_ = text_[:1].lower() + text_[1:]
    if match is None or match.group(1) is None:
        return Malformed(text_, len(text))
    before = text.split("\n")[: int(match.group(1)) - 1]
    return Malformed(text_, sum(len(line) + 1 for line in before) + int(match.group(2)) - 1)


class Statement(NamedTuple):
    """A header, or a key with its value, and its position in the text."""

    path: KeyPath
    """The table that a header opens, or the key from the top of the document."""
    steps: tuple[tuple[KeyPath, int], ...]
    """Each part of the written key: its path, and its offset."""
    start: int
    value: int
    """The offset of the value; for a header, of its end."""
    end: int

    @property
    def is_header(self) -> bool:
        return self.value == self.end


class Locator:
    """Finds all positions in a text that is known to be valid."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.statements: list[Statement] = []
        self.marks: dict[KeyPath, Mark] = {(): Mark(0, 0)}
        self.lengths: Counter[KeyPath] = Counter()
        """How many tables each array of tables has so far."""
        table: KeyPath = ()
        at = self.space(0)
        while at < len(text):
            if text[at] == "[":
                brackets = 2 if text.startswith("[[", at) else 1
                table, at = self.header(at, brackets)
                at = self.space(at)
            else:
                at = self.space(self.statement(table, at))

    def space(self, at: int) -> int:
        while True:
            blank = _BLANK.match(self.text, at)
            at = blank.end() if blank else at
            if self.text[at : at + 1] != "#":
                return at
            end = self.text.find("\n", at)
            at = len(self.text) if end < 0 else end

    def mark(self, key: KeyPath, mark: Mark) -> None:
        # here as well: the first pass does not add the steps of a header to those of its keys
        if len(key) > DEEPEST:
            raise DocumentTooLarge(f"is nested more than {DEEPEST} levels deep", mark.key)
        self.marks[key] = mark

    def mark_once(self, key: KeyPath, offset: int) -> None:
        if key not in self.marks:
            self.mark(key, Mark(offset, offset))

    def header(self, start: int, brackets: int) -> tuple[KeyPath, int]:
        steps, end = self.dotted_key(self.space(start + brackets))
        path: KeyPath = ()
        offsets: list[tuple[KeyPath, int]] = []
        last = len(steps) - 1
        for index, (step, offset) in enumerate(steps):
            path = (*path, step)
            offsets.append((path, offset))
            self.mark_once(path, offset)
            if brackets == _ARRAY and index == last:
                self.lengths[path] += 1
            if path in self.lengths:
                path = (*path, self.lengths[path] - 1)
                self.mark_once(path, offset)
        end = self.space(end) + brackets
        self.statements.append(Statement(path, tuple(offsets), start, end, end))
        return path, end

    def statement(self, table: KeyPath, start: int) -> int:
        steps, _ = self.dotted_key(start)
        offsets = [
            ((*table, *(name for name, _ in steps[: index + 1])), steps[index][1])
            for index in range(len(steps))
        ]
        end = self.pair(table, start)
        path = offsets[-1][0]
        self.statements.append(Statement(path, tuple(offsets), start, self.marks[path].value, end))
        return end

    def dotted_key(self, at: int) -> tuple[list[tuple[str, int]], int]:
        steps: list[tuple[str, int]] = []
        while True:
            if end := _string_end(self.text, at):
                name: str = tomllib.loads(f"k = {self.text[at:end]}")["k"]
            elif match := _BARE_KEY.match(self.text, at):
                name, end = match.group(), match.end()
            else:  # pragma: no cover - tomllib has accepted the text
                raise Malformed("expected a key", at)
            check_key(name, at)
            steps.append((name, at))
            end = self.space(end)
            if self.text[end : end + 1] != ".":
                return steps, end
            at = self.space(end + 1)

    def pair(self, table: KeyPath, at: int) -> int:
        steps, equals = self.dotted_key(at)
        for step, offset in steps:
            table = (*table, step)
            self.mark_once(table, offset)
        value = self.space(equals + 1)
        self.mark(table, Mark(steps[-1][1], value))
        return self.value(table, value)

    def value(self, key: KeyPath, at: int) -> int:
        if self.text[at] == "[":
            return self.list(key, at)
        if self.text[at] == "{":
            return self.inline(key, at)
        if end := _string_end(self.text, at):
            return end
        match = _SCALAR.match(self.text, at)
        return match.end() if match else at

    def list(self, key: KeyPath, at: int) -> int:
        at = self.space(at + 1)
        index = 0
        while self.text[at] != "]":
            self.mark((*key, index), Mark(at, at))
            at = self.space(self.value((*key, index), at))
            at = self.space(at + 1) if self.text[at] == "," else at
            index += 1
        return at + 1

    def inline(self, key: KeyPath, at: int) -> int:
        at = self.space(at + 1)
        while self.text[at] != "}":
            at = self.space(self.pair(key, at))
            at = self.space(at + 1) if self.text[at] == "," else at
        return at + 1
