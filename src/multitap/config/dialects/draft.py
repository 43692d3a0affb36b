"""The content of one file in our terms, not yet validated."""

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from multitap.config.documents import Node, kind_in_words
from multitap.config.problems import Problem, Severity
from multitap.records import dataclass

FieldPath = tuple[str, ...]
"""A field of our models: `("command",)`, `("env", "TOKEN")`."""
Rewrite = Callable[[str], str]
"""Converts a dialect's variable syntax to ours."""

# Names become parts of tool names and messages; a longer one makes only its entry invalid.
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One server's entry in one file; without `command` and `url` it only amends another."""

    name: str
    node: Node
    fields: Mapping[FieldPath, Node]
    extra: Mapping[str, Node] = field(default_factory=dict[str, Node])
    """Keys without effect here, by their path; kept for writing the entry back."""
    broken: bool = False
    """Whether it has an error and must not be used."""
    words: Mapping[str, str] = field(default_factory=dict[str, str])
    """The dialect's names for our fields, if they differ."""

    @property
    def complete(self) -> bool:
        return ("command",) in self.fields or ("url",) in self.fields


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """The content of one file."""

    dialect: str
    entries: tuple[Entry, ...] = ()
    settings: Mapping[FieldPath, Node] = field(default_factory=dict[FieldPath, Node])
    problems: tuple[Problem, ...] = ()
    refused: bool = False
    """Whether it was not read because somebody else can change it."""


class Draft:
    """Collects fields and problems while one entry, or the settings of a file, are read."""

    def __init__(self, node: Node, *, server: str | None, base: Path, rewrite: Rewrite) -> None:
        self.node = node
        self.server = server
        self.base = base
        """What relative paths are relative to."""
        self.rewrite = rewrite
        self.fields: dict[FieldPath, Node] = {}
        self.extra: dict[str, Node] = {}
        self.problems: list[Problem] = []

    @property
    def broken(self) -> bool:
        return any(problem.severity is Severity.ERROR for problem in self.problems)

    def set(self, field_path: str | FieldPath, node: Node, value: Any) -> None:
        path = (field_path,) if isinstance(field_path, str) else field_path
        self.fields[path] = node.of(value)

    def text(self, node: Node) -> str | None:
        """The string in `node` with our variable syntax; None, with a problem, if it is not one."""
        if isinstance(node.value, str):
            return self.rewrite(node.value)
        self.wrong(node, "a string")
        return None

    def keep(self, node: Node) -> None:
        """Remember a key without effect here."""
        self.extra[".".join(map(str, node.key[len(self.node.key) :]))] = node

    def wrong(self, node: Node, expected: str, *, hint: str | None = None) -> None:
        message = f"expected {expected}, got {kind_in_words(node.value)}"
        self.add(Severity.ERROR, node, message, expected=expected, hint=hint)

    def missing(self, word: str, *, hint: str | None = None) -> None:
        """Report a missing key."""
        node = self.node
        key = f"{node.dotted}.{word}" if node.key else word
        message = f"`{word}` is missing"
        self.problems.append(
            Problem(Severity.ERROR, message, node.key_place, key, self.server, word, hint)
        )

    def error(
        self, node: Node, message: str, *, expected: str | None = None, hint: str | None = None
    ) -> None:
        self.add(Severity.ERROR, node, message, expected=expected, hint=hint)

    def add(
        self,
        severity: Severity,
        node: Node,
        message: str,
        *,
        expected: str | None = None,
        hint: str | None = None,
    ) -> None:
        place = node.place if severity is Severity.ERROR else node.key_place
        self.problems.append(
            Problem(severity, message, place, node.dotted, self.server, expected, hint)
        )
