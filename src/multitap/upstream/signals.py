"""Two small ways to signal another task.

Both may be used from a callback, where there is no task and so no event of anyio.
"""

import asyncio


class Latch:
    """An event that its single waiter clears."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Return once it is set, and clear it."""
        await self._event.wait()
        self._event = asyncio.Event()


class Bell:
    """Wakes all waiting tasks each time it rings."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        # replaced before it is set: a task that wakes up and waits again waits for the next ring
        rung, self._event = self._event, asyncio.Event()
        rung.set()

    async def wait(self) -> None:
        await self._event.wait()

    def coming(self) -> asyncio.Event:
        """The event that the next ring sets; taken before a check that awaits, to miss no ring."""
        return self._event
