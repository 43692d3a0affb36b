"""Writes one server in a dialect, and reports what the dialect cannot express."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from multitap.config import validate
from multitap.config.dialects.dialect import Dialect
from multitap.config.dialects.draft import FieldPath
from multitap.config.dialects.rewrites import canonical
from multitap.config.dialects.rules import write_table
from multitap.config.dialects.unwritten_fields import UnwrittenFields
from multitap.config.documents import Document, KeyPath, is_table
from multitap.config.edit.changes import Change, SetValue, apply_changes
from multitap.config.mask import masked
from multitap.config.models import HttpServer, StdioServer
from multitap.config.stacks import Stack
from multitap.records import dataclass

Program = StdioServer | HttpServer
"""A server that a file can describe."""

_ESSENTIAL = frozenset({"command", "args", "url"})
"""Essential fields: without one, another server would be started, or none."""
_CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class ExportLoss:
    """A setting that a dialect cannot express as it is."""

    key: str
    """The dotted name of our field."""
    reason: str


@dataclass(frozen=True, slots=True)
class WrittenEntry:
    """A server in a dialect."""

    entry: Mapping[str, Any] | None
    """None if it cannot describe this server."""
    losses: tuple[ExportLoss, ...]


def write_entry(name: str, config: Program, dialect: Dialect) -> WrittenEntry:
    """The entry of a server, and every value that reading it back would lose."""
    fields = fields_of(config)
    if isinstance(config, StdioServer):
        fields.setdefault(("args",), [])  # for hosts that require the list even if it is empty
    if dialect.name == "multitap" and config.transport in {"stdio", "http"}:
        fields.pop(("transport",), None)  # usually left out
    entry = write_table(UnwrittenFields(fields, dialect.writing.respell), dialect.writing.keys)
    if key := dialect.writing.name_key:
        entry = {key: name, **entry}
    losses = tuple(_losses(config, _read_again(name, entry, dialect), dialect))
    lost = any(loss.key.partition(".")[0] in _ESSENTIAL for loss in losses)
    missing = {key: it for key, it in dialect.writing.required.items() if key not in entry}
    return WrittenEntry(None if lost else {**entry, **missing}, losses)


def place_entries(
    dialect: Dialect, document: Document, entries: Mapping[str, Mapping[str, Any]]
) -> list[Change]:
    """The changes that add entries to a document, with everything else its host needs."""
    made: list[Change] = []
    find_place = place_finder(dialect, document)
    for name, entry in entries.items():
        place = find_place(name)
        is_more = dialect.writing.listed and document.root.find(*map(str, place)) is None
        moved = (*place[:-1], int(place[-1]) + len(made)) if is_more else place
        made.append(SetValue(moved, dict(entry)))
    besides = dialect.writing.also(document.root, entries.values())
    return [*made, *(SetValue(path, value) for path, value in besides)]


def fields_of(config: Program) -> dict[FieldPath, Any]:
    """The set fields of a server's configuration, always with its transport."""
    given = config.model_dump(exclude_unset=True, exclude_none=True)
    return dict(_flat({**given, "transport": config.transport}, ()))


def entry_place(dialect: Dialect, document: Document, name: str) -> KeyPath:
    """The path of a server's entry in a document, or of a new one."""
    return place_finder(dialect, document)(name)


def place_finder(dialect: Dialect, document: Document) -> Callable[[str], KeyPath]:
    """The same for any number of servers: the document is read once for all of them."""
    container = dialect.writing.container(document.root)
    inside = {
        entry.name: entry.node.key
        for entry in dialect.read(document, Path("/")).entries
        if entry.node.key[: len(container)] == container and entry.node.key != container
    }
    servers = document.root.find(*map(str, container))
    count = len(servers.value) if servers and servers.value else 0

    def find_place(name: str) -> KeyPath:
        return inside.get(name) or (*container, count if dialect.writing.listed else name)

    return find_place


def _read_again(name: str, entry: Mapping[str, Any], dialect: Dialect) -> Program | None:
    path = Path("/written").with_suffix(dialect.writing.suffix)
    empty = Document(path, {})
    data = apply_changes({}, [SetValue(entry_place(dialect, empty, name), entry)])
    entries = dialect.read(Document(path, data), Path("/")).entries
    named = tuple(one for one in entries if one.name == name)
    merged = Stack(named).merge_entries() if named else None
    return validate.server(merged)[0] if merged and not merged.broken else None


def _losses(config: Program, again: Program | None, dialect: Dialect) -> Iterator[ExportLoss]:
    if again is None or type(again) is not type(config):
        key = "command" if isinstance(config, StdioServer) else "url"
        yield ExportLoss(key, f"{dialect.title} cannot describe this server")
        return
    wanted, there = _comparable(config), _comparable(again)
    for path, value in wanted.items():
        key = ".".join(path)
        if path not in there:
            yield ExportLoss(key, f"{dialect.title} cannot express it")
        elif not _is_same(value, there[path]):
            yield ExportLoss(key, f"becomes {masked(key, there[path])!r} in {dialect.title}")
    for path, value in there.items():
        if path not in wanted and path[0] != "args":
            key = ".".join(path)
            yield ExportLoss(key, f"becomes {masked(key, value)!r} in {dialect.title}")


def _comparable(config: Program) -> dict[FieldPath, Any]:
    """The relevant fields in a uniform spelling."""
    said = {path: _plain(value) for path, value in fields_of(config).items()}
    is_program = isinstance(config, StdioServer)
    silent = StdioServer(command="-") if is_program else HttpServer(url="http://-")
    return {
        path: value
        for path, value in said.items()
        if path == ("transport",) or value != _default(silent, path)
    }


def _default(silent: Any, path: FieldPath) -> Any:
    for step in path:
        silent = getattr(silent, step, None)
    return _plain(silent)


def _plain(value: Any) -> Any:
    if isinstance(value, str | Path):
        return canonical(str(value))
    return [_plain(one) for one in value] if _is_sequence(value) else value


def _is_sequence(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= _CLOSE * max(1.0, abs(one))
    return bool(one == other)


def _flat(table: Mapping[str, Any], path: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
    for name, value in table.items():
        here = (*path, name)
        if is_table(value) and value:
            yield from _flat(value, here)
        elif not is_table(value) or here == ("oauth",):
            yield here, [*value] if isinstance(value, tuple) else value
