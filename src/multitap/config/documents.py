"""Files of any format, parsed within limits, with the line and column of every value."""

import re
import stat
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard

import msgspec
from msgspec.structs import replace

from multitap.config.problems import Place, Problem, Severity
from multitap.files import open_regular, read_up_to

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


class Parsed(msgspec.Struct, frozen=True):
    """The result of a format's parser."""

    data: Any
    marks: Mapping[KeyPath, Mark]
    duplicates: tuple[KeyPath, ...] = ()
    """Duplicate keys in one table; the last one counts."""


class Document(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One file, or data that was never in a file (then without places)."""

    path: Path
    data: Any
    format: Format = "json"
    text: str = ""
    marks: Mapping[KeyPath, Mark] = msgspec.field(default_factory=dict[KeyPath, Mark])
    _line_ends: list[int] = msgspec.field(default_factory=list[int])
    """Filled on the first use; counting lines for each place would take minutes."""

    def __repr__(self) -> str:
        return f"<Document {self.path}>"  # its values may be secret

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


class Node(msgspec.Struct, frozen=True, eq=False):
    """A value in a document; keeps its place when the value is converted."""

    value: Any
    key: KeyPath
    document: Document

    def __repr__(self) -> str:
        return f"<Node {self.dotted} of {self.document!r}>"  # its value may be secret

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
    if value == "":
        return "an empty string"
    return next(
        (description for kind, description in _KINDS if isinstance(value, kind)), "a date or time"
    )


_KINDS: tuple[tuple[type, str], ...] = (
    (type(None), "nothing"),
    (bool, "a boolean"),
    (int, "a number"),
    (float, "a number"),
    (str, "a string"),
    (list, "a list"),
    (Mapping, "a table"),
)


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


SUFFIXES: dict[str, Format] = {
    ".json": "json",
    ".jsonc": "json",
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
}


def is_there(path: Path) -> bool:
    """Whether a path exists; false if it may not be accessed, where `Path.exists` raises."""
    return _mode(path) is not None


def is_file(path: Path) -> bool:
    """Whether a path is a regular file, not a pipe or a device."""
    return stat.S_ISREG(_mode(path) or 0)


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except OSError:
        return None


def read_file(path: Path) -> tuple[Document | None, tuple[Problem, ...]]:
    """The document in a file, or None, with the reason unless the file is missing."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return None, (_problem(Place(path), "is not a file"),)
        # without a suffix, only the content shows the format: its own limit is checked then
        largest = LARGEST[SUFFIXES.get(path.suffix.lower(), "json")]
        with open_regular(path) as file:
            raw = read_up_to(file, largest)
    except (FileNotFoundError, NotADirectoryError):
        return None, ()
    except OSError as exc:
        return None, (_problem(Place(path), f"cannot be read: {exc.strerror}"),)
    if len(raw) > largest:
        return None, (_problem(Place(path), f"is larger than {largest // KIB:,} KiB"),)
    try:
        # editors on Windows begin a file with a byte order mark
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        column = exc.start - raw.rfind(b"\n", 0, exc.start)
        place = Place(path, line, column)
        return None, (_problem(place, "is not UTF-8 text", hint="save it as UTF-8"),)
    return read_text(text, path)


def read_text(text: str, path: Path) -> tuple[Document | None, tuple[Problem, ...]]:
    """The document in a text; `path` determines the format and is named in problems."""
    kind = SUFFIXES.get(path.suffix.lower()) or (
        # `/` begins a comment of JSONC; no TOML begins with either
        "json" if text.lstrip()[:1] in ("{", "/") else "toml"
    )
    blank = Document(path=path, data={}, format=kind, text=text)
    if not text.strip():
        return None, (_nothing(blank, "is empty"),)
    try:
        parsed = _parse(text, kind)
    except Malformed as exc:
        return None, (_problem(blank.at(exc.offset), exc.words(kind)),)
    if parsed.data is None:
        return None, (_nothing(blank, "contains only `null`"),)
    document = Document(path=path, data=parsed.data, format=kind, text=text, marks=parsed.marks)
    return document, tuple(_duplicate(Node(None, key, document)) for key in parsed.duplicates)


def _parse(text: str, kind: Format) -> Parsed:
    # a parser is loaded for the first file that needs it: YAML alone takes 60 ms
    match kind:
        case "json":
            from multitap.config.jsonc import parse as parse_jsonc  # noqa: PLC0415

            return parse_jsonc(text)
        case "toml":
            from multitap.config.toml import parse as parse_toml  # noqa: PLC0415

            return parse_toml(text)
        case "yaml":
            from multitap.config.yaml import parse as parse_yaml  # noqa: PLC0415

            return parse_yaml(text)


def _problem(place: Place, message: str, *, hint: str | None = None) -> Problem:
    return Problem(severity=Severity.ERROR, message=message, place=place, hint=hint)


def _nothing(document: Document, message: str) -> Problem:
    """The problem of an empty file: editors and tools empty a file before they write it."""
    hint = f"write `{placeholder(document.format)}` to configure no servers"
    return _problem(Place(document.path), message, hint=hint)


def placeholder(kind: Format) -> str:
    """What stands in a file without any setting."""
    return "# no servers" if kind == "toml" else "{}"


def _duplicate(node: Node) -> Problem:
    message = "appears twice; this one is used"
    return Problem(
        severity=Severity.WARNING, message=message, place=node.key_place, key=node.dotted
    )
