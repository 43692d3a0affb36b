"""Starts an environment's own server in one task and stops it from any."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup, TaskStatus

if TYPE_CHECKING:
    from multitap.env.env_server import Front

logger = logging.getLogger(__name__)

Open = Callable[[], AbstractAsyncContextManager["Front"]]


class FrontSwitch:
    """A front that can be opened and closed many times, one after another."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._turn = anyio.Lock()  # two tasks may start and stop it at the same time
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._front: Front | None = None

    async def start(self, open_front: Open) -> Front:
        """Open it, and return once it can be reached; does nothing if it is open.

        Raises:
            ConfigError: The address cannot be listened on.
        """
        async with self._turn:
            if self._front is not None:
                return self._front
            front: Front = await self._tasks.start(self._run, open_front)
            return front

    async def stop(self) -> None:
        """Close it, and return once it is closed; does nothing if it is closed."""
        async with self._turn:
            if self._front is not None:
                self._scope.cancel()
                # Until the port is free: a `start` that waits for its turn may want the same one.
                await self._ended.wait()

    async def _run(self, open_front: Open, *, task_status: TaskStatus[Front]) -> None:
        self._ended = anyio.Event()
        try:
            with anyio.CancelScope() as self._scope:  # ends the front, not the environment
                async with open_front() as front:
                    self._front = front
                    task_status.started(front)
                    await front.closed.wait()
        except Exception as exc:
            if self._front is None:
                raise  # `start` passes it on
            logger.error("the environment's server failed: %s", exc)  # noqa: TRY400 - boundary: the environment goes on
        finally:
            self._front = None
            # After `_front` is cleared: a caller that waits in `stop` must not find it still open.
            self._ended.set()
