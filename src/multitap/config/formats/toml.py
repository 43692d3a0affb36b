"""TOML with the place of every value.

`tomllib` gives the values; a second pass finds the places, lenient because the text is known to be
valid by then.
"""

import re
import tomllib
from collections import Counter

from multitap.config.documents import KeyPath, Malformed, Mark, Parsed

_SPACE = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""{1,3}|'
    r"'''.*?'''{1,3}|"
    r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"|'
    r"'[^'\n]*+'",
    re.DOTALL,
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]++")
_SCALAR = re.compile(r"[^,\]}\n#]*+")
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def parse(text: str) -> Parsed:
    """Read one document.

    Raises:
        Malformed: with the offset of the first thing that does not fit.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise _malformed(str(exc), text) from exc
    return Parsed(data, _Locator(text).marks)


def _malformed(message: str, text: str) -> Malformed:
    found = _POSITION.search(message)
    words = _POSITION.sub("", message)
    words = words[:1].lower() + words[1:]
    if found is None or found.group(1) is None:
        return Malformed(words, len(text))
    before = text.split("\n")[: int(found.group(1)) - 1]
    return Malformed(words, sum(len(line) + 1 for line in before) + int(found.group(2)) - 1)


class _Locator:
    def __init__(self, text: str) -> None:
        self.text = text
        self.marks: dict[KeyPath, Mark] = {(): Mark(0, 0)}
        self.lengths: Counter[KeyPath] = Counter()
        """How many tables each array of tables has so far."""
        table: KeyPath = ()
        at = self.space(0)
        while at < len(text):
            if text.startswith("[[", at):
                table, at = self.header(self.space(at + 2), array=True)
                at = self.space(self.space(at) + 2)
            elif text[at] == "[":
                table, at = self.header(self.space(at + 1), array=False)
                at = self.space(self.space(at) + 1)
            else:
                at = self.space(self.pair(table, at))

    def space(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        return match.end() if match else at

    def header(self, at: int, *, array: bool) -> tuple[KeyPath, int]:
        steps, end = self.dotted(at)
        path: KeyPath = ()
        last = len(steps) - 1
        for index, (step, offset) in enumerate(steps):
            path = (*path, step)
            self.marks.setdefault(path, Mark(offset, offset))
            if array and index == last:
                self.lengths[path] += 1
            if path in self.lengths:
                path = (*path, self.lengths[path] - 1)
                self.marks.setdefault(path, Mark(offset, offset))
        return path, end

    def dotted(self, at: int) -> tuple[list[tuple[str, int]], int]:
        steps: list[tuple[str, int]] = []
        while True:
            if match := _STRING.match(self.text, at):
                name: str = tomllib.loads(f"k = {match.group()}")["k"]
            elif match := _BARE_KEY.match(self.text, at):
                name = match.group()
            else:  # pragma: no cover - tomllib has accepted the text
                raise Malformed("expected a key", at)
            steps.append((name, at))
            end = self.space(match.end())
            if self.text[end : end + 1] != ".":
                return steps, end
            at = self.space(end + 1)

    def pair(self, table: KeyPath, at: int) -> int:
        steps, equals = self.dotted(at)
        for step, offset in steps:
            table = (*table, step)
            self.marks.setdefault(table, Mark(offset, offset))
        value = self.space(equals + 1)
        self.marks[table] = Mark(steps[-1][1], value)
        return self.value(table, value)

    def value(self, key: KeyPath, at: int) -> int:
        if self.text[at] == "[":
            return self.list(key, at)
        if self.text[at] == "{":
            return self.inline(key, at)
        match = _STRING.match(self.text, at) or _SCALAR.match(self.text, at)
        return match.end() if match else at

    def list(self, key: KeyPath, at: int) -> int:
        at = self.space(at + 1)
        index = 0
        while self.text[at] != "]":
            self.marks[*key, index] = Mark(at, at)
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
