"""Finds the files of the designs Multitap grew from, in folders without our own."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from multitap.config import search
from multitap.config.files import is_file, is_there
from multitap.config.folders import entries_of
from multitap.config.search import FILE, Search, Source, Surroundings
from multitap.records import dataclass

ENVIRONMENTS = "environments"
CONFIG = "config.jsonc"
USUAL = "default"
"""The environment to use if there are several."""


@dataclass(frozen=True, slots=True)
class SeedFile:
    """A file of a design in the current folder, and that design's search."""

    path: Path
    title: str
    """The name of the design."""
    search: Search


def at_prompt(
    where: Surroundings, files: tuple[Path, ...] = (), *, dialect: str | None = None
) -> tuple[Search, tuple[SeedFile, ...]]:
    """The search of a command, and the files of other designs that it is based on.

    Named files, and files of ours in the folder, take precedence. Otherwise, the first existing
    file of another design determines the search order and naming, on top of the user's own
    configuration; the others are only reported.
    """
    native = search.native(where, files, dialect=dialect)
    is_named = any(source.required for source in native.sources)
    if is_named or any(not one.trusted and is_there(one.path) for one in native.sources):
        return native, ()
    found = tuple(seed_files(where)) or tuple(_user_files(where, native))
    if not found:
        return native, ()
    chosen = found[0].search
    own = tuple(source for source in native.sources if source.trusted)
    sources = (*own, *_resolve(chosen, where))
    return replace(chosen, sources=sources, first_only=False), found


def seed_files(where: Surroundings) -> Iterator[SeedFile]:
    """The files of other designs in the folder, in order of preference."""
    plain: tuple[tuple[str, str, Callable[[Surroundings], Search]], ...] = (
        (".kode.json", "kode", search.kode),
        ("otter.toml", "otter", search.otter),
    )
    for name, title, look in plain:
        if is_file(path := where.folder / name):
            yield SeedFile(path, title, look(where))
    if (environment := _environment(where.folder)) is not None:
        path = where.folder / ENVIRONMENTS / environment / CONFIG
        wanted = search.agent_core(where, environment, root=where.folder)
        yield SeedFile(path, "agent-core", wanted)
    if is_file(path := where.folder / "mcp.json"):
        yield SeedFile(path, "ExcelManus", search.excelmanus(where))


def _user_files(where: Surroundings, native: Search) -> Iterator[SeedFile]:
    """The file that kode uses in all folders, for users who have none of ours."""
    path = where.home / ".kode.json"
    if is_file(path) and not any(is_there(source.path) for source in native.sources):
        yield SeedFile(path, "kode", search.kode(where))


def _environment(folder: Path) -> str | None:
    """The only environment in a folder, or the default one among several."""
    try:
        there = [
            path.name
            for path in entries_of(folder / ENVIRONMENTS)
            if is_file(path / CONFIG) and not path.name.startswith(".")
        ]
    except OSError:
        return None
    if len(there) > 1:
        return USUAL if USUAL in there else None
    return there[0] if there else None


def _resolve(chosen: Search, where: Surroundings) -> Iterator[Source]:
    """The sources to use, with those in the folder marked as the project's."""
    sources = chosen.sources
    if chosen.first_only:
        there = [source for source in sources if is_there(source.path)]
        sources = tuple(there[:1])
    own = where.home / ".config" / "tong_work"
    for source in sources:
        is_ours = source.trusted and (
            not source.path.is_relative_to(where.folder) or source.path.is_relative_to(own)
        )
        yield source if is_ours else replace(source, project=where.folder)


def several_environments(where: Surroundings) -> bool:
    """Whether the folder has several environments, and none is the default."""
    if _environment(where.folder) is not None or is_there(where.folder / FILE):
        return False
    try:
        places = entries_of(where.folder / ENVIRONMENTS)
        return sum(is_file(path / CONFIG) for path in places) > 1
    except OSError:
        return False
