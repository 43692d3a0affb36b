"""Fingerprints of the source files, to detect changes."""

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from multitap.config.discover import CONFIG, PROJECT, SCRIPTS
from multitap.config.folders import entries_of
from multitap.config.search import Source
from multitap.regular_file import Stamp, file_stamp

Stamps = Mapping[Path, Stamp]


def stamps(sources: Iterable[Source]) -> Stamps:
    """The stamp of every relevant file, existing or not."""
    return {path: file_stamp(path) for source in sources for path in _files(source)}


def changed_files(before: Stamps, after: Stamps) -> frozenset[Path]:
    """The files that were created, deleted or written."""
    return frozenset(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )


def folders(sources: Iterable[Source]) -> Mapping[Path, int]:
    """The folders to watch so that no change is missed, each with its inode.

    A missing one is left out, and found by the next check. Watching its parent instead would wake
    us for unrelated changes: above our own trust file, that is every write to the call log.
    """
    wanted: set[Path] = set()
    for source in sources:
        wanted |= {source.path, *_members(source)} if source.folder else {source.path.parent}
        wanted |= {_target(source.path).parent}  # a link's target may change instead of the link
    inodes = ((path, _folder_inode(path)) for path in wanted)
    return {path: inode for path, inode in inodes if inode is not None}


def _files(source: Source) -> Iterable[Path]:
    if not source.folder:
        return (source.path,)
    names = (*SCRIPTS, CONFIG, PROJECT)
    return (member / name for member in _members(source) for name in names)


def _members(source: Source) -> list[Path]:
    try:
        return [path for path in entries_of(source.path) if path.is_dir()]
    except OSError:
        return []


def _folder_inode(path: Path) -> int | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino if stat.S_ISDIR(status.st_mode) else None


def _target(path: Path) -> Path:
    return Path(os.path.realpath(path))  # `Path.resolve` raises for circular links
