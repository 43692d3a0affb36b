"""Whoever listens to a wire in tests."""

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import msgspec
from msgspec import Raw

from tests.waiting import PATIENCE


class Listener:
    """Keeps what the server said, and answers what it asked."""

    def __init__(self, answer: Callable[[], Any] | None = None) -> None:
        self.notifications: list[str] = []
        self.requests: list[tuple[str, Any, object]] = []
        self.cancelled = 0
        self.is_addressed = True
        self._answer = answer
        self._changed = asyncio.Event()

    def on_unaddressed(self) -> None:
        self.is_addressed = False

    def notification(self, method: str, params: Raw, call: object | None) -> None:
        self.notifications.append(method)
        self._changed.set()

    async def request(self, method: str, params: Raw, call: object | None) -> Any:
        self.requests.append((method, msgspec.json.decode(params), call))
        self._changed.set()
        if self._answer is not None:
            return self._answer()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled += 1
            self._changed.set()

    async def until(self, true: Callable[[], object]) -> None:
        with anyio.fail_after(PATIENCE):
            while not true():
                self._changed.clear()
                await self._changed.wait()
