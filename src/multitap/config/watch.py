"""Reports when a configuration file has changed."""

import threading
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType] - names trio's types

from multitap.config.search import Source
from multitap.config.stamps import Stamps, changed_files, folders, stamps

QUIET_MS = 100
"""Seconds without a change after which a burst of changes is over."""
# A program that never stops writing must not delay a change forever.
LONGEST_BURST_MS = 1500
RECHECK_MS = 1000
"""Seconds between checks without events, which network drives and containers may not send."""


async def changes(
    sources: Iterable[Source], *, since: Stamps | None = None
) -> AsyncGenerator[frozenset[Path], None]:
    """Yield the changed files after each change; use it with `contextlib.aclosing`.

    Folders are watched, not files: editors replace a file, and a watch on it dies with the old one.
    System events only wake us; the stamps decide whether a file changed.
    """
    wanted = tuple(sources)
    known = stamps(wanted) if since is None else since
    while True:
        watched = folders(wanted)
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
                now = stamps(wanted)
                if difference := changed_files(known, now):
                    known = now
                    yield difference
                await _stir(stirs, stop)
                # A folder that appeared, or was replaced under the same name, needs a new watch:
                # the system follows the inode, not the path.
                if folders(wanted) != watched:
                    break


async def _stir(stirs: AsyncGenerator[Any, None], stop: threading.Event) -> None:
    """Return after an event, or after a timeout."""
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
    try:
        await anyio.sleep_forever()
    finally:
        stop.set()
