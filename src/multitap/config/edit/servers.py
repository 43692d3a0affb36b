"""Servers as entries of a host's file: written in its dialect, compared, and imported."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, TypeGuard
from urllib.parse import urlsplit

import msgspec

from multitap.config.checks import table_of
from multitap.config.dialects import DIALECTS
from multitap.config.dialects.draft import FieldPath, UnwrittenFields, canonical
from multitap.config.dialects.host_format import Dialect
from multitap.config.dialects.rules import write_table
from multitap.config.documents import Document, KeyPath, is_table, read_file
from multitap.config.edit.changes import Change, SetValue, apply_changes
from multitap.config.entries import Stack, server
from multitap.config.layers import Layer, merge, read_document
from multitap.config.models import HttpServer, OAuth, StdioServer
from multitap.config.problems import Problem, Severity
from multitap.config.secrets import masked
from multitap.config.sources import Source
from multitap.config.variables import Reference, references
from multitap.errors import ConfigError

Program = StdioServer | HttpServer
"""A server that a file can describe."""

_ESSENTIAL = frozenset({"command", "args", "url"})
"""Essential fields: without one, another server would be started, or none."""
# a duration may go through milliseconds and back
_CLOSE = 1e-9


class ExportLoss(msgspec.Struct, frozen=True):
    """A setting that a dialect cannot express as it is."""

    key: str
    """The dotted name of our field."""
    reason: str


class WrittenEntry(msgspec.Struct, frozen=True):
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
    is_unusable = any(loss.key.partition(".")[0] in _ESSENTIAL for loss in losses)
    missing = {key: it for key, it in dialect.writing.required.items() if key not in entry}
    return WrittenEntry(None if is_unusable else {**entry, **missing}, losses)


def place_entries(
    dialect: Dialect, document: Document, entries: Mapping[str, Mapping[str, Any]]
) -> list[Change]:
    """The changes that add entries to a document, with everything else its host needs."""
    changes: list[Change] = []
    find_place = place_finder(dialect, document)
    for name, entry in entries.items():
        place = find_place(name)
        is_more = dialect.writing.listed and document.root.find(*map(str, place)) is None
        moved = (*place[:-1], int(place[-1]) + len(changes)) if is_more else place
        changes.append(SetValue(moved, dict(entry)))
    besides = dialect.writing.also(document.root, entries.values())
    return [*changes, *(SetValue(path, value) for path, value in besides)]


def fields_of(config: Program) -> dict[FieldPath, Any]:
    """The set fields of a server's configuration, always with its transport."""
    return dict(_flat({**table_of(config), "transport": config.transport}, ()))


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
    empty = Document(path=path, data={})
    data = apply_changes({}, [SetValue(entry_place(dialect, empty, name), entry)])
    entries = dialect.read(Document(path=path, data=data), Path("/")).entries
    named = tuple(entry for entry in entries if entry.name == name)
    merged = Stack(named).merge_entries() if named else None
    return server(merged)[0] if merged and not merged.broken else None


def _losses(config: Program, again: Program | None, dialect: Dialect) -> Iterator[ExportLoss]:
    if again is None or type(again) is not type(config):
        key = "command" if isinstance(config, StdioServer) else "url"
        yield ExportLoss(key, f"{dialect.title} cannot describe this server")
        return
    expected, there = _comparable(config), _comparable(again)
    for path, value in expected.items():
        key = ".".join(path)
        if path not in there:
            yield ExportLoss(key, f"{dialect.title} cannot express it")
        elif not _is_same(value, there[path]):
            yield ExportLoss(key, f"becomes {masked(key, there[path])!r} in {dialect.title}")
    for path, value in there.items():
        # an empty list of arguments is written for hosts that require it
        if path not in expected and path[0] != "args":
            key = ".".join(path)
            yield ExportLoss(key, f"becomes {masked(key, value)!r} in {dialect.title}")


def _comparable(config: Program) -> dict[FieldPath, Any]:
    """The relevant fields in a uniform spelling."""
    fields = {path: _plain(value) for path, value in fields_of(config).items()}
    is_program = isinstance(config, StdioServer)
    silent = StdioServer(command="-") if is_program else HttpServer(url="http://-")
    return {
        path: value
        for path, value in fields.items()
        if path == ("transport",) or value != _default(silent, path)
    }


def _default(silent: Any, path: FieldPath) -> Any:
    for step in path:
        silent = getattr(silent, step, None)
    return _plain(silent)


def _plain(value: Any) -> Any:
    if isinstance(value, str | Path):
        return canonical(str(value))
    return [_plain(item) for item in value] if _is_sequence(value) else value


def _is_sequence(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, float) and isinstance(other, float):
        return abs(value - other) <= _CLOSE * max(1.0, abs(value))
    return bool(value == other)


def _flat(table: Mapping[str, Any], path: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
    for name, value in table.items():
        here = (*path, name)
        if is_table(value) and value:
            yield from _flat(value, here)
        elif not is_table(value) or here == ("oauth",):
            yield here, [*value] if isinstance(value, tuple) else value


LookUp = Callable[[str], str | None]
"""The value of a secret by its name."""

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class HostFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one file of a host."""

    path: Path
    dialect: str
    servers: Mapping[str, Program]
    problems: tuple[Problem, ...]
    """Problems of its entries and of the whole file."""
    broken: tuple[str, ...]
    """Entries that cannot be used."""
    trusted: bool = True

    @property
    def title(self) -> str:
        return DIALECTS[self.dialect].title


class ImportedServer(msgspec.Struct, frozen=True, kw_only=True):
    """One server of a host, and how it is imported."""

    name: str
    """Its name here."""
    config: Program
    origin: HostFile
    old_name: str
    same_as: str | None = None
    """An identical server; it is then not added."""
    clash: str | None = None
    """Why it is renamed."""

    @property
    def is_new(self) -> bool:
        return self.same_as is None


def read_host(source: Source, folder: Path) -> HostFile:
    """Read a file of a host; never raises for its content."""
    document, problems = read_file(source.path)
    dialect = source.dialect or "mcpservers"
    if document is None:
        return HostFile(
            path=source.path,
            dialect=dialect,
            servers={},
            problems=problems,
            broken=(),
            trusted=source.trusted,
        )
    reading = read_document(document, folder, dialect_name=dialect)
    merged = merge([Layer(reading)])
    servers = {
        name: config
        for name, config in merged.settings.servers.items()
        if isinstance(config, StdioServer | HttpServer)
    }
    broken = tuple(
        name
        for name in merged.servers
        if name not in servers
        and any(
            problem.server == name and problem.severity is Severity.ERROR
            for problem in merged.problems
        )
    )
    return HostFile(
        path=source.path,
        dialect=dialect,
        servers=servers,
        problems=(*problems, *merged.problems),
        broken=broken,
        trusted=source.trusted,
    )


def arrivals(
    files: Iterable[HostFile], present: Mapping[str, Program], secret: LookUp
) -> tuple[ImportedServer, ...]:
    """How to import each server: identical ones once, others with a taken name renamed.

    Args:
        files: In the order of import.
        present: Existing servers.
        secret: Looks up secrets that `present` refers to.
    """
    present_keys = {name: (identity(config, secret), None) for name, config in present.items()}
    keys: dict[str, tuple[object, Path | None]] = {**present_keys}
    servers: list[ImportedServer] = []
    for file in files:
        for name, config in file.servers.items():
            if is_gateway(name, config):
                continue
            key = identity(config, secret)
            same = _same(keys, key, name, file.path)
            if same is not None:
                servers.append(
                    ImportedServer(
                        name=same, config=config, origin=file, old_name=name, same_as=same
                    )
                )
                continue
            free = name if name not in keys else _free(name, file.dialect, keys)
            clash = None if free == name else f"another server is called {name!r}"
            keys[free] = key, file.path
            servers.append(
                ImportedServer(name=free, config=config, origin=file, old_name=name, clash=clash)
            )
    return tuple(servers)


def identity(config: Program, secret: LookUp) -> object:
    """The identity of a server: its command and environment, or its address."""

    def plain(value: Any) -> Any:
        match value:
            case str() | PurePath():
                # with its secrets, which an earlier import has moved to the vault
                return canonical(_reveal(str(value), secret))
            case OAuth():
                return plain(table_of(value, "changed"))
            case Mapping():
                return tuple(sorted((str(key), plain(item)) for key, item in value.items()))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            case _:
                return value

    if isinstance(config, StdioServer):
        command_line = (config.command, *config.args)
        parts: tuple[Any, ...] = (*command_line, config.env, config.cwd, config.env_file)
    else:
        parts = (config.url.rstrip("/"), config.headers, config.oauth)
    return type(config).__name__, tuple(map(plain, parts))


def is_gateway(name: str, config: Program) -> bool:
    """Whether it is Multitap itself, which must not become one of its own servers."""
    if isinstance(config, StdioServer):
        command_line = (PurePath(config.command).name, *config.args)
        ours = ("-m", "multitap", "serve")
        return command_line[:2] == ("multitap", "serve") or ours in (
            command_line[1:4],
            command_line[2:5],
        )
    # The name counts, too: other programs may serve MCP on this machine.
    return name == "multitap" and urlsplit(config.url).hostname in _LOCAL


def _same(
    keys: Mapping[str, tuple[object, Path | None]], key: object, name: str, path: Path
) -> str | None:
    """The identical server: of the same name, or of another name in another file.

    Two identical servers of one file stay two.
    """
    if name in keys and keys[name][0] == key:
        return name
    others = (other for other, (what, where) in keys.items() if what == key and where != path)
    return next(others, None)


def _free(name: str, dialect: str, names: Mapping[str, object]) -> str:
    base = f"{name}-{dialect}"
    numbered = (f"{base}-{number}" for number in range(2, len(names) + 3))
    return next(candidate for candidate in (base, *numbered) if candidate not in names)


def _reveal(text: str, secret: LookUp) -> str:
    if "${auth:" not in text:
        return text
    try:
        found_references = references(text)
    except ConfigError:
        return text
    for reference in found_references:
        text = _put_in(text, reference, secret)
    return text


def _put_in(text: str, reference: Reference, secret: LookUp) -> str:
    value = secret(reference.name) if reference.source == "auth" else None
    return text if value is None else text.replace(f"${{auth:{reference.name}}}", value)
