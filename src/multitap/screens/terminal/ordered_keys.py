"""Keys in the order they were typed, each handled completely before the next."""

import asyncio
from collections.abc import Awaitable, Callable

from textual import events
from textual.app import App

LONGEST = 0.3
"""Seconds that a key may hold up the next one; an action that waits for a server takes longer."""
_LOOK = 0.005  # seconds between two looks

Typed = events.Key | events.Paste


class OrderedKeys:
    """Keeps keys in order that arrive faster than the screen can follow.

    Textual hands each key from widget to widget by queues. Over a slow line several keys come at
    once, and the second one would be handled while the first is still on its way: it would be
    typed into the wrong field, or act on another row.

    Args:
        app: Whose keys they are.
        handle: Hands one to the app.
        is_ready: Whether everything that began in the meantime is either done or waits for keys.
    """

    def __init__(
        self,
        app: App[None],
        handle: Callable[[Typed], Awaitable[None]],
        is_ready: Callable[[], bool],
    ) -> None:
        self._app = app
        self._handle = handle
        self._is_ready = is_ready
        self._waiting: asyncio.Queue[Typed] = asyncio.Queue()

    def put(self, typed: Typed) -> None:
        self._waiting.put_nowait(typed)

    async def run(self) -> None:
        """Handle what is typed, until cancelled. Must not run in the app's own queue."""
        while True:
            typed = await self._waiting.get()
            focused = self._app.focused
            await self._handle(typed)
            try:
                async with asyncio.timeout(LONGEST):
                    # twice: a key climbs up to the app, which has the widget do something; what
                    # the widget says then climbs up as well
                    for _ in range(2):
                        for node in focused.ancestors_with_self if focused else [self._app.screen]:
                            passed = asyncio.Event()
                            if node.call_later(passed.set):
                                await passed.wait()
                    while not self._is_ready():
                        await asyncio.sleep(_LOOK)
            except TimeoutError:
                continue
