"""Reports when a configuration file has changed, by fingerprints of the files."""

import os
import stat
import threading
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from multitap.config.discover import CONFIG, PROJECT, SCRIPTS
from multitap.config.owners import entries_of
from multitap.config.sources import Source
from multitap.files import Stamp, file_stamp

QUIET_MS = 100
"""Milliseconds without a change after which a burst of changes is over."""
# A program that never stops writing must not delay a change forever.
LONGEST_BURST_MS = 1500
RECHECK_MS = 1000
"""Milliseconds between checks without events: network drives and containers may send none."""


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
    paths: set[Path] = set()
    for source in sources:
        paths |= {source.path, *_members(source)} if source.folder else {source.path.parent}
        paths |= {_target(source.path).parent}  # a link's target may change instead of the link
    inodes = ((path, _folder_inode(path)) for path in paths)
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


async def changes(
    sources: Iterable[Source], *, since: Stamps | None = None
) -> AsyncGenerator[frozenset[Path], None]:
    """Yield the changed files after each change; use it with `contextlib.aclosing`.

    Folders are watched, not files: editors replace a file, and a watch on it dies with the old one.
    System events only wake us; the stamps decide whether a file changed.
    """
    from watchfiles import (  # noqa: PLC0415 - only where something watches
        awatch,  # pyright: ignore[reportUnknownVariableType] - names trio's types
    )

    watched_sources = tuple(sources)
    before = stamps(watched_sources) if since is None else since
    while True:
        watched = folders(watched_sources)
        stop = threading.Event()
        stirs = awatch(
            *watched,
            watch_filter=None,
            recursive=False,
            debounce=LONGEST_BURST_MS,
            step=QUIET_MS,
            rust_timeout=RECHECK_MS,
            yield_on_timeout=True,
            stop_event=stop,
        )
        async with aclosing(stirs):
            while True:
                now = stamps(watched_sources)
                if difference := changed_files(before, now):
                    before = now
                    yield difference
                await _stir(stirs, stop)
                # A folder that appeared, or was replaced under the same name, needs a new watch:
                # the system follows the inode, not the path.
                if folders(watched_sources) != watched:
                    break


async def _stir(stirs: AsyncGenerator[Any, None], stop: threading.Event) -> None:
    """Return after an event, or after a timeout."""
    import anyio  # noqa: PLC0415 - like `watchfiles`

    async with anyio.create_task_group() as group:
        group.start_soon(_release, stop)
        try:
            await anext(stirs)
        except Exception:  # noqa: BLE001 - boundary: whatever the watcher lacks, looking helps
            await anyio.sleep(RECHECK_MS / 1000)
        group.cancel_scope.cancel()
    # `_release` set it when it ended; the same watch is used for the next check.
    stop.clear()


async def _release(stop: threading.Event) -> None:
    """Stop the watching thread as soon as we are cancelled: a thread cannot be cancelled itself."""
    import anyio  # noqa: PLC0415 - like `watchfiles`

    try:
        await anyio.sleep_forever()
    finally:
        stop.set()
