"""Keys in the order they were typed, each handled completely before the next."""

import asyncio
from collections.abc import Coroutine

from textual import events
from textual.app import App
from textual.worker import Worker

LONGEST = 0.3
"""Seconds that a key may delay the next one; actions that wait for a server take longer."""
_LOOK = 0.005  # seconds between two checks


class OrderedKeysApp(App[None]):
    """An app that handles keys in order, even if they arrive faster than it can follow.

    Textual passes each key from widget to widget through queues. Over a slow line, several keys
    arrive at once, and the second could be handled before the first is done: it would be typed
    into the wrong field, or act on another row.
    """

    def __init__(self) -> None:
        super().__init__()
        self._typed: asyncio.Queue[events.Key | events.Paste] = asyncio.Queue()
        self._begun: tuple[int, Worker[None] | None] = (1, None)
        """How many screens were open when the last action began, and the action."""

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            # unbounded: a paste arrives as one event, and nobody types thousands of keys ahead
            self._typed.put_nowait(event)
        else:
            await super().on_event(event)

    def begin(self, action: Coroutine[None, None, None]) -> None:
        """Start the action of a key; the next key waits until it is done or opens a window."""
        opened = len(self.screen_stack)
        self._begun = opened, self.run_worker(action, exit_on_error=False)

    async def handle_keys(self) -> None:
        """Handle keys until cancelled. Must not run in the app's own queue."""
        while True:
            typed = await self._typed.get()
            focused = self.focused
            await super().on_event(typed)
            try:
                async with asyncio.timeout(LONGEST):
                    # twice: a key bubbles up to the app, which makes the widget act; the message
                    # of the widget then bubbles up as well
                    for _ in range(2):
                        for node in focused.ancestors_with_self if focused else [self.screen]:
                            passed = asyncio.Event()
                            if node.call_later(passed.set):
                                await passed.wait()
                    while not self._is_ready():
                        await asyncio.sleep(_LOOK)
            except TimeoutError:
                continue

    def _is_ready(self) -> bool:
        """Whether the last action is done, or has opened a window that takes keys."""
        opened, action = self._begun
        if action is not None and len(self.screen_stack) == opened and not action.is_finished:
            return False
        top = self.screen
        return top.is_mounted and (top.focused is not None or not top.focus_chain)
