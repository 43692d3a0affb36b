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
"""The environment that is meant where there are several."""


@dataclass(frozen=True, slots=True)
class SeedFile:
    """A file in the folder that is worked in, and the search that its design makes for it."""

    path: Path
    title: str
    """Whose it is, for people."""
    search: Search


def at_prompt(
    where: Surroundings, files: tuple[Path, ...] = (), *, dialect: str | None = None
) -> tuple[Search, tuple[SeedFile, ...]]:
    """Where a command looks, and the files of other designs that this rests on.

    Named files stand alone, and a folder with files of ours is ours. In any other the first of
    these files that is there brings the search order and the naming of its design, on top of the
    user's own configuration; those after it are only mentioned.
    """
    native = search.native(where, files, dialect=dialect)
    is_named = any(source.required for source in native.sources)
    if is_named or any(not one.trusted and is_there(one.path) for one in native.sources):
        return native, ()
    found = tuple(seed_files(where))
    if not found:
        return native, ()
    chosen = found[0].search
    own = tuple(source for source in native.sources if source.trusted)
    sources = (*own, *_resolve(chosen, where))
    return replace(chosen, sources=sources, first_only=False), found


def seed_files(where: Surroundings) -> Iterator[SeedFile]:
    """The files of other designs in the folder, in the order in which one is preferred."""
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


def _environment(folder: Path) -> str | None:
    """The only environment in a folder, or the usual one among several."""
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
    """The sources that count, those within the folder as what they are: the project's."""
    sources = chosen.sources
    if chosen.first_only:
        there = [source for source in sources if is_there(source.path)]
        sources = tuple(there[:1])
    for source in sources:
        is_ours = source.trusted and not source.path.is_relative_to(where.folder)
        yield source if is_ours else replace(source, project=where.folder)


def several_environments(where: Surroundings) -> bool:
    """Whether the folder has several environments, and nothing says which one is meant."""
    if _environment(where.folder) is not None or is_there(where.folder / FILE):
        return False
    try:
        places = entries_of(where.folder / ENVIRONMENTS)
        return sum(is_file(path / CONFIG) for path in places) > 1
    except OSError:
        return False
