"""Reads a file of any format into a document."""

import stat
from pathlib import Path

from multitap.config.documents import Document, Format, Malformed, Node, Parsed
from multitap.config.formats.limits import KIB, LARGEST
from multitap.config.problems import Place, Problem, Severity
from multitap.regular_file import open_regular, read_up_to

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
        "json" if text.lstrip()[:1] in ("{", "/") else "toml"
    )
    blank = Document(path, {}, kind, text)
    if not text.strip():
        return None, (_nothing(blank, "is empty"),)
    try:
        parsed = _parse(text, kind)
    except Malformed as exc:
        return None, (_problem(blank.at(exc.offset), exc.words(kind)),)
    if parsed.data is None:
        return None, (_nothing(blank, "contains only `null`"),)
    document = Document(path, parsed.data, kind, text, parsed.marks)
    return document, tuple(_duplicate(Node(None, key, document)) for key in parsed.duplicates)


def _parse(text: str, kind: Format) -> Parsed:
    # a parser is loaded for the first file that needs it: YAML alone takes 60 ms
    match kind:
        case "json":
            from multitap.config.formats import jsonc  # noqa: PLC0415

            return jsonc.parse(text)
        case "toml":
            from multitap.config.formats import toml  # noqa: PLC0415

            return toml.parse(text)
        case "yaml":
            from multitap.config.formats import yaml  # noqa: PLC0415

            return yaml.parse(text)


def _problem(place: Place, message: str, *, hint: str | None = None) -> Problem:
    return Problem(Severity.ERROR, message, place, hint=hint)


def _nothing(document: Document, message: str) -> Problem:
    """The problem of an empty file: editors and tools empty a file before they write it."""
    words = "# no servers" if document.format == "toml" else "{}"
    return _problem(Place(document.path), message, hint=f"write `{words}` to configure no servers")


def _duplicate(node: Node) -> Problem:
    message = "appears twice; this one is used"
    return Problem(Severity.WARNING, message, node.key_place, key=node.dotted)
