"""Keeps pins and lock files in step: records new tools, notices accepted changes."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio import to_thread

from multitap.trust.pins.lock_places import LockPlaces
from multitap.trust.pins.pins import Pins, read, save, stamps
from multitap.upstream.signals import Latch

LOOK = 0.5
"""Seconds between two checks of the files: accepted changes apply within a second."""
SAVING = 5.0
"""Seconds to write the last observations at the end."""


class PinKeeper:
    """Runs as long as the hub is open.

    Args:
        pins: The pins.
        on_change: Called when the files have changed.
    """

    def __init__(self, pins: Pins, on_change: Callable[[], None]) -> None:
        self._pins = pins
        self._on_change = on_change
        self._seen = Latch()

    async def run(self) -> None:
        """Write new pins, and check the files for changes, until cancelled."""
        pins = self._pins
        pins.on_unsaved = self._seen.set
        # In a thread: state directories may be network folders, and a slow one must not delay
        # calls.
        known = await to_thread.run_sync(stamps, pins.files, abandon_on_cancel=True)
        while True:
            # after a write the files look changed and are read once more: another process may have
            # written them meanwhile
            unsaved = pins.unsaved_pins()
            if unsaved and pins.settle(await to_thread.run_sync(save, unsaved), unsaved):
                self._on_change()
            with anyio.move_on_after(LOOK):
                await self._seen.wait()
            now = await to_thread.run_sync(stamps, pins.files, abandon_on_cancel=True)
            if stale := [file for file in pins.files if now[file] != known[file]]:
                known = now
                readings = await to_thread.run_sync(read, stale, abandon_on_cancel=True)
                if pins.settle(readings):
                    self._on_change()


@asynccontextmanager
async def open_pins(places: LockPlaces) -> AsyncGenerator[Pins]:
    """The pins; new observations are written at the latest when the block is left."""
    pins = Pins(places)
    pins.settle(await to_thread.run_sync(read, pins.files, abandon_on_cancel=True))
    try:
        yield pins
    finally:
        if unsaved := pins.unsaved_pins():
            # Shielded, since this runs while the hub is cancelled: a tool that was seen and not
            # pinned would be new again next time, whatever it says then.
            with anyio.move_on_after(SAVING, shield=True):
                await to_thread.run_sync(save, unsaved, abandon_on_cancel=True)
