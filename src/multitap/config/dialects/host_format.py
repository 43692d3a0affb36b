"""One host's format for MCP servers, and one file being read in it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from multitap.config.dialects.draft import (
    LONGEST_NAME,
    Draft,
    Entry,
    FieldPath,
    Reading,
    Respell,
    Rewrite,
)
from multitap.config.dialects.rules import Rules, apply
from multitap.config.documents import (
    MOST_SERVERS,
    Document,
    DocumentTooLarge,
    KeyPath,
    Node,
    is_list,
    is_table,
)
from multitap.config.problems import Problem, Severity


def nothing_else(
    _root: Node, _entries: Iterable[Mapping[str, Any]]
) -> Iterable[tuple[KeyPath, Any]]:
    return ()


class WritingRules(msgspec.Struct, frozen=True, kw_only=True):
    """How a dialect writes servers."""

    keys: Rules
    """The keys that its host knows, in their usual order; more keys are read than written."""
    respell: Respell
    container: Callable[[Node], KeyPath]
    """The path of its servers in a document."""
    suffix: str = ".json"
    """The content of a new file."""
    listed: bool = False
    """Whether servers are in a list instead of a table."""
    name_key: str | None = None
    """The key for the name within an entry."""
    required: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Keys without information that its host requires in every entry; otherwise it skips the
    entry."""
    also: Callable[[Node, Iterable[Mapping[str, Any]]], Iterable[tuple[KeyPath, Any]]] = (
        nothing_else
    )
    """Other values that a document with these entries needs."""


def within(*path: str) -> Callable[[Node], KeyPath]:
    """A layout with servers at the same path in every document."""
    return lambda _: path


def as_is(text: str) -> str | None:
    """For dialects with the same variable syntax as ours."""
    return text


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """Reads, and writes, one kind of file."""

    name: str
    title: str
    read: Callable[[Document, Path], Reading]
    """Reads a document, given the current folder."""
    matches: Callable[[Document], bool]
    """Whether the content is certainly, or probably, of this dialect."""
    writing: WritingRules
    files: tuple[str, ...] = ()
    """The ends of typical paths."""


def same_text(text: str) -> str:
    return text


def no_check(_: Draft) -> None:
    pass


class Spelling(msgspec.Struct, frozen=True, kw_only=True):
    """How a dialect spells one server."""

    keys: Rules
    rewrite: Rewrite = same_text
    check: Callable[[Draft], None] = no_check
    """Called after the keys of an entry are read."""
    words: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    beside_file: bool = False
    """Whether relative paths start at the file's folder instead of the current folder."""


class Transcript:
    """One file while it is read.

    Args:
        dialect: The name of its dialect.
        document: The file.
        folder: The current folder.
        spelling: How its servers are spelled.
        spelling_of: How a single server is spelled, if it shows that itself. One entry of another
            host must not decide how its neighbours are read.
    """

    def __init__(
        self,
        dialect: str,
        document: Document,
        folder: Path,
        spelling: Spelling,
        *,
        spelling_of: Callable[[Node], Spelling | None] = lambda _: None,
    ) -> None:
        self.dialect = dialect
        self.root = document.root
        self.spelling = spelling
        self._spelling_of = spelling_of
        self._folders = (folder, document.path.parent)
        self.entries: list[Entry] = []
        self.settings: dict[FieldPath, Node] = {}
        self.problems: list[Problem] = []
        self.defaults: dict[FieldPath, Node] = {}
        """The default for entries without their own."""

    def table(self, node: Node | None) -> None:
        """Servers by name."""
        for name, member in self.servers(node):
            self.entry(name, member)

    def servers(self, node: Node | None) -> Iterator[tuple[str, Node]]:
        """The names and nodes in a table of servers."""
        if node is not None:
            if not is_table(node.value):
                self.problem(Severity.ERROR, node, "expected a table of servers")
            yield from node.members()

    def list(self, node: Node | None, *, unnamed: str | None = None) -> None:
        """Servers in a list, named by a key or by their position."""
        if node is None:
            return
        if not is_list(node.value):
            self.problem(Severity.ERROR, node, "expected a list of servers")
        names: set[str] = set()
        for index, element in enumerate(node.elements()):
            name: Any = element.value.get("name") if is_table(element.value) else None
            if name is None and unnamed:
                name = f"{unnamed}-{index + 1}"
            if not isinstance(name, str):
                self.problem(Severity.ERROR, element, "expected a server with a `name`")
                continue
            # the last one, as in a table with a duplicate key
            if name in names:
                message = f"a second server named {name!r}; this one is used"
                self.problem(Severity.WARNING, element, message, server=name)
            names.add(name)
            self.entry(name, element)

    def entry(self, name: str, node: Node) -> None:
        """One server.

        Raises:
            DocumentTooLarge: There are too many.
        """
        if len(self.entries) >= MOST_SERVERS:
            mark = node.document.mark(node.key)
            raise DocumentTooLarge(
                f"names more than {MOST_SERVERS:,} servers", mark.key if mark else 0
            )
        spelling = self._spelling_of(node) or self.spelling
        draft = self.draft(node, server=name, spelling=spelling)
        # names reach terminals, file names and tool names
        if not name.strip() or not name.isprintable() or len(name) > LONGEST_NAME:
            message = f"a server's name has 1 to {LONGEST_NAME} printable characters"
            draft.problems.append(
                Problem(
                    severity=Severity.ERROR,
                    message=message,
                    place=node.key_place,
                    key=node.dotted,
                    server=name,
                )
            )
        apply(draft, node, spelling.keys)
        # a field with an error is not set: a check would report it as missing, too
        if not draft.broken:
            spelling.check(draft)
        self.problems += draft.problems
        entry = Entry(
            name=name,
            node=node,
            fields=draft.fields,
            extra=draft.extra,
            broken=draft.broken,
            words=spelling.words,
        )
        # an entry that only amends another one must not have defaults, which would override it
        if entry.complete:
            entry = replace(entry, fields={**self.defaults, **draft.fields})
        self.entries.append(entry)

    def amend(self, name: str, node: Node, field_name: str, value: Any) -> None:
        """A setting of a server outside its entry."""
        self.entries.append(Entry(name=name, node=node, fields={(field_name,): node.of(value)}))

    def general(self, node: Node | None, rules: Rules) -> None:
        """Settings of the hub itself."""
        if node is not None:
            draft = self.draft(node, server=None)
            apply(draft, node, rules)
            self.settings.update(draft.fields)
            self.problems += draft.problems

    def default(self, node: Node | None, rules: Rules, key: str) -> None:
        """A default for entries without a value, read by the rule of `key`."""
        if node is not None:
            draft = self.draft(node, server=None)
            rules[key](draft, node)
            self.defaults.update(draft.fields)
            self.problems += draft.problems

    def draft(self, node: Node, *, server: str | None, spelling: Spelling | None = None) -> Draft:
        spelling = spelling or self.spelling
        base = self._folders[spelling.beside_file]
        return Draft(node, server=server, base=base, rewrite=spelling.rewrite)

    def problem(
        self, severity: Severity, node: Node, message: str, *, server: str | None = None
    ) -> None:
        self.problems.append(
            Problem(
                severity=severity, message=message, place=node.place, key=node.dotted, server=server
            )
        )

    def reading(self) -> Reading:
        return Reading(
            dialect=self.dialect,
            entries=tuple(self.entries),
            settings=self.settings,
            problems=tuple(self.problems),
        )
