"""Tasks that callbacks start and end, where anyio's own tools need a task to be used in.

A transport or a timer calls back outside any task. Under `asyncio.run` anyio cannot tell there
which library runs, and refuses to make a scope or to start a task; what is here needs only the
running loop. Inside the tasks all of anyio works as ever.
"""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVarTuple

import anyio

Ts = TypeVarTuple("Ts")


class Tasks:
    """The tasks of one owner: leaving the block cancels those that still run, and waits for them.

    Each is cancelled once, however often its owner is: a second time would break off what it
    does to leave nothing behind. An error in one of them ends the block, as in any task group.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []
        self._owner: asyncio.Task[Any] | None = None
        self._interrupted: asyncio.Task[Any] | None = None
        self._over = False

    async def __aenter__(self) -> Self:
        self._owner = asyncio.current_task()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over = True
        cancelled = await self._end_all()
        if self._interrupted is not None:
            self._interrupted.uncancel()
        if self._errors:
            if exc is not None and not isinstance(exc, asyncio.CancelledError):
                self._errors.append(exc)
            raise BaseExceptionGroup("errors in tasks", self._errors)
        if cancelled is not None:
            raise cancelled

    async def _end_all(self) -> asyncio.CancelledError | None:
        for task in self._running:
            if not task.cancelling():
                task.cancel()
        cancelled = None
        while self._running:
            with anyio.CancelScope(shield=True):  # else anyio would cancel us in every turn
                try:
                    await asyncio.wait(self._running)
                except asyncio.CancelledError as exc:
                    cancelled = exc
        return cancelled

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._errors.append(error)
        if not self._over and self._owner is not None:
            self._over = True
            self._owner.cancel()
            self._interrupted = self._owner

    def start_soon(
        self,
        work: Callable[[*Ts], Coroutine[Any, Any, None]],
        *args: *Ts,
        name: str | None = None,
    ) -> None:
        """Start a task; nothing is started any more once the block is left."""
        if self._over:
            return
        # the one place that may: this class is the group that owns it
        task = asyncio.create_task(work(*args), name=name)  # noqa: TID251
        self._running.add(task)
        task.add_done_callback(self._ended)


class CancelHandle:
    """A piece of work that can be given up from outside; its block is left quietly when it was.

    A cancel scope at a fraction of its cost: what `asyncio.timeout` does, without the clock.
    """

    __slots__ = ("_cancelling", "_task", "stopped")

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self.stopped = False

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        if self._task is not None:
            self._cancelling = self._task.cancelling()
            if self.stopped:
                self._task.cancel()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: object
    ) -> bool:
        task, self._task = self._task, None
        if not self.stopped or task is None:
            return False
        ours = task.uncancel() <= self._cancelling
        return ours and isinstance(exc, asyncio.CancelledError)

    def cancel(self) -> None:
        """Give the work up."""
        if not self.stopped:
            self.stopped = True
            if self._task is not None:
                self._task.cancel()
