"""Merges the files of many hosts into one list: new, identical or conflicting servers."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from multitap.config.dialects import DIALECTS
from multitap.config.dialects.rewrites import canonical
from multitap.config.edit.server_entries import Program
from multitap.config.files import read_file
from multitap.config.layers import Layer, merge
from multitap.config.loading import read_document
from multitap.config.models import HttpServer, OAuth, StdioServer
from multitap.config.problems import Problem, Severity
from multitap.config.scope import Reference, references
from multitap.config.search import Source
from multitap.errors import ConfigError
from multitap.records import dataclass

LookUp = Callable[[str], str | None]
"""The value of a secret by its name."""

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class HostFile:
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


@dataclass(frozen=True, slots=True)
class ImportedServer:
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
        return HostFile(source.path, dialect, {}, problems, (), source.trusted)
    reading = read_document(document, folder, told=dialect)
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
        and any(one.server == name and one.severity is Severity.ERROR for one in merged.problems)
    )
    return HostFile(
        source.path, dialect, servers, (*problems, *merged.problems), broken, source.trusted
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
    known = {name: (identity(config, secret), None) for name, config in present.items()}
    taken: dict[str, tuple[object, Path | None]] = {**known}
    found: list[ImportedServer] = []
    for file in files:
        for name, config in file.servers.items():
            if is_gateway(name, config):
                continue
            one = identity(config, secret)
            same = _same(taken, one, name, file.path)
            if same is not None:
                found.append(ImportedServer(same, config, file, name, same_as=same))
                continue
            free = name if name not in taken else _free(name, file.dialect, taken)
            clash = None if free == name else f"another server is called {name!r}"
            taken[free] = one, file.path
            found.append(ImportedServer(free, config, file, name, clash=clash))
    return tuple(found)


def identity(config: Program, secret: LookUp) -> object:
    """The identity of a server: its command and environment, or its address."""

    def plain(value: Any) -> Any:
        match value:
            case str() | PurePath():
                return canonical(_reveal(str(value), secret))
            case OAuth():
                return plain(value.model_dump(exclude_none=True))
            case Mapping():
                return tuple(sorted((str(key), plain(one)) for key, one in value.items()))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            case _:
                return value

    if isinstance(config, StdioServer):
        words = (config.command, *config.args)
        parts: tuple[Any, ...] = (*words, config.env, config.cwd, config.env_file)
    else:
        parts = (config.url.rstrip("/"), config.headers, config.oauth)
    return type(config).__name__, tuple(map(plain, parts))


def is_gateway(name: str, config: Program) -> bool:
    """Whether it is Multitap itself, which must not become one of its own servers."""
    if isinstance(config, StdioServer):
        words = (PurePath(config.command).name, *config.args)
        ours = ("-m", "multitap", "serve")
        return words[:2] == ("multitap", "serve") or ours in (words[1:4], words[2:5])
    # The name counts, too: other programs may serve MCP on this machine.
    return name == "multitap" and urlsplit(config.url).hostname in _LOCAL


def _same(
    taken: Mapping[str, tuple[object, Path | None]], one: object, name: str, path: Path
) -> str | None:
    """The identical server: of the same name, or of another name in another file.

    Two identical servers of one file stay two.
    """
    if name in taken and taken[name][0] == one:
        return name
    others = (other for other, (what, where) in taken.items() if what == one and where != path)
    return next(others, None)


def _free(name: str, dialect: str, taken: Mapping[str, object]) -> str:
    base = f"{name}-{dialect}"
    numbered = (f"{base}-{number}" for number in range(2, len(taken) + 3))
    return next(one for one in (base, *numbered) if one not in taken)


def _reveal(text: str, secret: LookUp) -> str:
    if "${auth:" not in text:
        return text
    try:
        found = references(text)
    except ConfigError:
        return text
    for one in found:
        text = _put_in(text, one, secret)
    return text


def _put_in(text: str, one: Reference, secret: LookUp) -> str:
    value = secret(one.name) if one.source == "auth" else None
    return text if value is None else text.replace(f"${{auth:{one.name}}}", value)
