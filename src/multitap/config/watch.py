"""Reports when a configuration file has changed, by fingerprints of the files."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from pathlib import Path

from multitap.config.discover import CONFIG, PROJECT, SCRIPTS
from multitap.config.owners import entries_of
from multitap.config.sources import Source
from multitap.files import Stamp, file_stamp

# The system could report changes earlier, but not those on network drives and in containers, and a
# library for that takes 1.4 MB of each gateway.
PERIOD = 0.5
"""Seconds between two checks of the files."""
QUIET = 0.1
"""Seconds without a change after which a burst of changes is over."""
# A program that never stops writing must not delay a change forever.
LONGEST_BURST = 1.5


Stamps = Mapping[Path, Stamp]


def stamps(sources: Iterable[Source]) -> Stamps:
    """The stamp of every relevant file, existing or not."""
    return {path: file_stamp(path) for source in sources for path in _files(source)}


def changed_files(before: Stamps, after: Stamps) -> frozenset[Path]:
    """The files that were created, deleted or written."""
    return frozenset(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )


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


async def changes(
    sources: Iterable[Source], *, since: Stamps | None = None
) -> AsyncGenerator[frozenset[Path], None]:
    """Yield the changed files after each change; use it with `contextlib.aclosing`."""
    import anyio  # noqa: PLC0415 - only where something watches
    from anyio import to_thread  # noqa: PLC0415 - likewise

    watched = tuple(sources)

    async def look() -> Stamps:
        # in a thread: configurations may be on network drives, and a slow one must not delay calls
        return await to_thread.run_sync(stamps, watched, abandon_on_cancel=True)

    before = stamps(watched) if since is None else since
    while True:
        now = await look()
        if now != before:
            with anyio.move_on_after(LONGEST_BURST):
                latest: Stamps = {}
                while latest != now:
                    await anyio.sleep(QUIET)
                    latest, now = now, await look()
            if difference := changed_files(before, now):
                before = now
                yield difference
        await anyio.sleep(PERIOD)
