"""Two small ways to tell another task that something happened."""

import anyio


class Latch:
    """Stays set until the one who waits for it has seen it."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Return once it is set, and clear it."""
        await self._event.wait()
        self._event = anyio.Event()


class Bell:
    """Wakes everybody who waits for it, each time it rings."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def ring(self) -> None:
        rung, self._event = self._event, anyio.Event()
        rung.set()

    async def wait(self) -> None:
        await self._event.wait()
