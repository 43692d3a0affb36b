"""A parsed file with the line and column of every value."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard

from multitap.config.problems import Place
from multitap.records import dataclass

Format = Literal["json", "toml", "yaml"]
KeyPath = tuple[str | int, ...]


class Mark(NamedTuple):
    """Offsets into the text."""

    key: int
    value: int


class Malformed(ValueError):
    """The text is not a valid document."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset

    def words(self, kind: Format) -> str:
        """The problem to report."""
        return f"not valid {kind.upper()}: {self}"


@dataclass(frozen=True, slots=True)
class Parsed:
    """The result of a format's parser."""

    data: Any
    marks: Mapping[KeyPath, Mark]
    duplicates: tuple[KeyPath, ...] = ()
    """Duplicate keys in one table; the last one counts."""


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One file, or data that was never in a file (then without places)."""

    path: Path
    data: Any = field(repr=False)
    format: Format = "json"
    text: str = field(default="", repr=False)
    marks: Mapping[KeyPath, Mark] = field(default_factory=dict[KeyPath, Mark], repr=False)
    _line_ends: list[int] = field(default_factory=list[int], init=False, repr=False)
    """Filled on the first use; counting lines for each place would take minutes."""

    @property
    def root(self) -> "Node":
        return Node(self.data, (), self)

    def at(self, offset: int) -> Place:
        if not self._line_ends:
            self._line_ends.extend(match.start() for match in re.finditer(r"\n", self.text))
            self._line_ends.append(len(self.text))
        line = bisect_left(self._line_ends, offset, hi=len(self._line_ends) - 1)
        before = self._line_ends[line - 1] if line else -1
        return Place(self.path, line + 1, offset - before)

    def mark(self, key: KeyPath) -> Mark | None:
        """The mark of the value, or of the nearest one around it."""
        while key and key not in self.marks:
            key = key[:-1]
        return self.marks.get(key)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A value in a document; keeps its place when the value is converted."""

    value: Any = field(repr=False)
    key: KeyPath
    document: Document = field(repr=False)

    @property
    def place(self) -> Place:
        mark = self.document.mark(self.key)
        return self.document.at(mark.value) if mark else Place(self.document.path)

    @property
    def key_place(self) -> Place:
        mark = self.document.mark(self.key)
        return self.document.at(mark.key) if mark else Place(self.document.path)

    @property
    def dotted(self) -> str:
        return ".".join(map(str, self.key))

    @property
    def name(self) -> str:
        """The last step of the key."""
        return str(self.key[-1]) if self.key else self.document.path.stem

    def of(self, value: Any) -> "Node":
        """A node at the same place with another value."""
        return replace(self, value=value)

    def child(self, step: str | int) -> "Node":
        return Node(self.value[step], (*self.key, step), self.document)

    def find(self, *steps: str) -> "Node | None":
        """The node at this path within the value, if there is one."""
        node = self
        for step in steps:
            if not is_table(node.value) or step not in node.value:
                return None
            node = node.child(step)
        return node

    def members(self) -> Iterator[tuple[str, "Node"]]:
        """Names and nodes of a table; nothing for any other value."""
        if is_table(self.value):
            for name in self.value:
                yield name, self.child(name)

    def elements(self) -> Iterator["Node"]:
        """Nodes of a list; nothing for any other value."""
        if is_list(self.value):
            for index in range(len(self.value)):
                yield self.child(index)


def is_table(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def kind_in_words(value: Any) -> str:
    """The kind of a value in words, never the value itself."""
    return next((words for kind, words in _KINDS if isinstance(value, kind)), "a date or time")


_KINDS: tuple[tuple[type, str], ...] = (
    (type(None), "nothing"),
    (bool, "a boolean"),
    (int, "a number"),
    (float, "a number"),
    (str, "a string"),
    (list, "a list"),
    (Mapping, "a table"),
)
