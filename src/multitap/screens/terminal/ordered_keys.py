"""Keys in the order they were typed, each handled completely before the next."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress

from textual import events
from textual.app import App
from textual.widget import Widget
from textual.worker import Worker

_LOOK = 0.005  # seconds between two checks
_STUCK = 10.0
"""Seconds. Queues and windows wait for nothing but the processor, however busy that is; only a
widget that is removed meanwhile does not answer."""


class OrderedKeysApp(App[None]):
    """An app that handles keys in order, even if they arrive faster than it can follow.

    Textual passes each key from widget to widget through queues. Over a slow line, several keys
    arrive at once, and the second could be handled before the first is done: it would be typed
    into the wrong field, or act on another row.
    """

    longest = 0.3
    """Seconds that the action of a key may delay the next key; it may be waiting for a server."""

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
            with suppress(TimeoutError):
                await self._pass_on(focused)
                async with asyncio.timeout(self.longest):
                    while not self._is_done():
                        await asyncio.sleep(_LOOK)
                async with asyncio.timeout(_STUCK):
                    while not self._takes_keys():
                        await asyncio.sleep(_LOOK)

    async def _pass_on(self, focused: Widget | None) -> None:
        """Wait until a key has passed all queues on its way from the widget to the app."""
        async with asyncio.timeout(_STUCK):
            # twice: a key bubbles up to the app, which makes the widget act; the message
            # of the widget then bubbles up as well
            for _ in range(2):
                for node in focused.ancestors_with_self if focused else [self.screen]:
                    passed = asyncio.Event()
                    if node.call_later(passed.set):
                        await passed.wait()

    def _is_done(self) -> bool:
        """Whether the last action is done, or has opened a window."""
        opened, action = self._begun
        return action is None or len(self.screen_stack) != opened or action.is_finished

    def _takes_keys(self) -> bool:
        """Whether the top window is complete."""
        top = self.screen
        return top.is_mounted and (top.focused is not None or not top.focus_chain)
