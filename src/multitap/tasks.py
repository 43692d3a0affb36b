"""Tasks that callbacks can start, cancel and wake, where anyio would need a running task.

A transport or a timer calls back outside any task. Under `asyncio.run` anyio cannot tell there
which library runs, and refuses to make a scope or to start a task; this module needs only the
running loop. Inside the tasks, all of anyio works as usual.
"""

import asyncio
import inspect
import logging
import math
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from types import CoroutineType, TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple

import anyio
import msgspec

logger = logging.getLogger(__name__)

Ts = TypeVarTuple("Ts")
_T = TypeVar("_T")

_AGAIN = 0.01  # seconds; about the time a task takes to leave a wait
_PAUSE = 1.0  # seconds before a watcher that failed goes on
END_LIMIT = 30.0
"""Seconds for cancelled tasks to end; a server's process is killed long before."""


class Tasks:
    """The tasks of one owner: leaving the block cancels those that still run, and waits for them.

    Each is cancelled once, however often its owner is: a second time would break off what it
    does to leave nothing behind. One that does not end is left behind, with a warning: it must not
    hold up the host for ever. An error in one of them ends the block, as in any task group.

    Args:
        end_limit: Seconds for cancelled tasks to end.
    """

    def __init__(self, *, end_limit: float = END_LIMIT) -> None:
        self._end_limit = end_limit
        self._running: set[asyncio.Task[None]] = set()
        self._cancelled: set[asyncio.Task[None]] = set()
        """The tasks that were cancelled."""
        self._errors: list[BaseException] = []
        self._owner: asyncio.Task[Any] | None = None
        self._interrupted: asyncio.Task[Any] | None = None
        self._over = False
        self._loop: asyncio.AbstractEventLoop

    async def __aenter__(self) -> Self:
        self._owner = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # first: tasks that end during the wait below must not start new ones
        self._over = True
        cancelled = await self._end_all()
        if self._interrupted is not None:
            # the cancellation was ours; if not undone, it would end an outer wait of the owner
            self._interrupted.uncancel()
        if self._errors:
            if exc is not None and not isinstance(exc, asyncio.CancelledError):
                self._errors.append(exc)
            raise BaseExceptionGroup("errors in tasks", self._errors)
        if cancelled is not None:
            raise cancelled

    async def _end_all(self) -> asyncio.CancelledError | None:
        cancelled = None
        clock = asyncio.get_running_loop().time
        latest = clock() + self._end_limit
        while self._running and (left := latest - clock()) > 0:
            with anyio.CancelScope(shield=True):  # otherwise anyio would cancel us in every turn
                try:
                    pause = self._cancel_all()
                    if self._running:
                        await asyncio.wait(self._running, timeout=min(left, pause))
                except asyncio.CancelledError as exc:
                    cancelled = exc
        for task in self._running:
            logger.warning(
                "%r still runs %g s after it was cancelled, and is left behind",
                task.get_name(),
                self._end_limit,
            )
            task.cancel()  # again: it has swallowed the first
        return cancelled

    def _cancel_all(self) -> float:
        """Cancel the remaining tasks; seconds until the next attempt if some are not ready yet."""
        # a request that others cancelled before it began never came to remove itself
        self._running = {task for task in self._running if not task.cancelled()}
        for task in self._running - self._cancelled:
            # One that is being cancelled may just be leaving a wait whose time is up, and go on
            # after it: asyncio would make one cancellation of both, and the wait would take it.
            # One that has not begun would never enter its coroutine, nor close what it was given.
            if not task.cancelling() and _has_begun(task):
                self._cancelled.add(task)
                task.cancel()
        return math.inf if self._running <= self._cancelled else _AGAIN

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._cancelled.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._errors.append(error)
        if not self._over and self._owner is not None:
            self._over = True
            # no scope of anyio: this is a callback, and belongs to no task
            self._owner.cancel()
            self._interrupted = self._owner

    def start_soon(
        self,
        work: Callable[[*Ts], Coroutine[Any, Any, None]],
        *args: *Ts,
        name: str | None = None,
    ) -> None:
        """Start a task; nothing is started once the block is left."""
        if not self._over:
            # owned by this class, which is the group
            self._own(asyncio.create_task(work(*args), name=name))  # noqa: TID251

    def start_apart(self, work: Callable[[*Ts], Coroutine[Any, Any, None]], *args: *Ts) -> None:
        """Start a task for one client, person or server; an error is logged, and ends no other."""
        self.start_soon(_log_errors, work, *args)

    def begin(self, work: "Work", coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task: from now on if Python can, else from the next turn on.

        For requests, most of which only send something and wait for its answer. Once the block
        is left, it is cancelled at its first wait. An error that it raises is logged, and ends
        nothing else.
        """
        work.become_task = None
        task = _begin(self._run(work, coroutine), self._loop)
        if task.done():
            return
        work.task = task
        self._running.add(task)
        if work.stopped or self._over:
            work.stop()

    async def _run(self, work: "Work", coroutine: Coroutine[Any, Any, None]) -> None:
        error = None
        try:
            await coroutine
        except Exception as exc:  # noqa: BLE001 - boundary: one bad request must not end the others
            error = exc
        finally:
            # here and not in a callback of the task, which takes another turn of the loop
            if (task := work.task) is not None:
                self._running.discard(task)
                self._cancelled.discard(task)
                work.task = task = None
            work.on_end(error)
            error = None  # breaks the reference cycle of error and frame

    def _own(self, task: asyncio.Task[None]) -> None:
        self._running.add(task)
        task.add_done_callback(self._on_end)


async def _log_errors(work: Callable[[*Ts], Coroutine[Any, Any, None]], *args: *Ts) -> None:
    try:
        await work(*args)
    except Exception:  # boundary: what one client causes must not end the gateway of all
        logger.exception("a task failed")


async def keep_going(work: Callable[[*Ts], Coroutine[Any, Any, None]], *args: *Ts) -> None:
    """Run what watches over something; an error is logged, and after a pause it goes on.

    Memory or threads may be short for a moment, which must not end what is served meanwhile.
    """
    while True:
        try:
            await work(*args)
        except Exception:  # boundary: see above
            logger.exception("%s failed, and is tried again", work.__qualname__)
            await anyio.sleep(_PAUSE)
        else:
            return


def _begin(
    coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop
) -> asyncio.Task[None]:
    if sys.version_info >= (3, 12):
        return asyncio.Task(coroutine, loop=loop, eager_start=True)
    # of the loop: `asyncio.create_task` looks for it, which is a system call
    return loop.create_task(coroutine)


def _has_begun(task: asyncio.Task[None]) -> bool:
    # Python 3.12.1 crashes in `get_coro` of an eager task that ended in its first step
    if task.done():
        return True
    coroutine = task.get_coro()
    return (
        not isinstance(coroutine, CoroutineType)
        or inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED
    )


class Work(msgspec.Struct, eq=False):
    """The work on one request, in a task of its own where it needs one; see `Tasks.begin`.

    Its task always enters the coroutine, which so can rely on its `finally`.
    """

    stopped: bool = False
    """Whether it was cancelled by `cancel`, not by the end of its owner."""
    task: asyncio.Task[None] | None = None
    """Runs it; set to None at the end, because a cancelled task keeps its last frames."""
    become_task: Callable[[], None] | None = None
    """Begins the task of work that has done without; None if it has one, or has ended."""

    def on_end(self, error: Exception | None) -> None:
        """Called at its end, with the error that ended it."""
        if error is not None:
            logger.error("a request failed", exc_info=error)

    def cancel(self) -> None:
        """Cancel the work."""
        if not self.stopped:
            self.stopped = True
            self.stop()

    def stop(self) -> None:
        """Cancel the task, once it has begun: before that it would never enter its coroutine."""
        if (become_task := self.become_task) is not None:
            become_task()
        if (task := self.task) is None or task.done():
            return
        if _has_begun(task):
            task.cancel()
        else:
            task.get_loop().call_soon(self.stop)

    def resume(self) -> None:
        """Go on after a cancellation, to answer or to clean up."""
        if self.task is not None:
            self.task.uncancel()


class InOwnTask(AbstractAsyncContextManager[_T]):
    """Enters and leaves a block in a task of its own, so that any task may leave it.

    Fixtures and notebooks enter a block in one task and leave it in another, which scopes and task
    groups refuse. An error that ends the block early cancels the task that entered it, and is
    raised where it is left.

    Args:
        block: The block; its own errors are those of its tasks.
    """

    def __init__(self, block: AbstractAsyncContextManager[_T]) -> None:
        self._block = block
        self._leave = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._owner: asyncio.Task[Any] | None = None
        self._is_interrupted = False

    async def __aenter__(self) -> _T:
        self._owner = asyncio.current_task()
        entered: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        # the block is its owner, which waits for it below and in `__aexit__`
        self._task = task = asyncio.create_task(self._run(entered))  # noqa: TID251
        try:
            await asyncio.wait((task, entered), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await self._wait_ended()
            raise
        if not entered.done():
            task.result()  # raises what went wrong
        task.add_done_callback(self._on_end)
        return entered.result()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave.set()
        cancelled = await self._wait_ended()
        if self._is_interrupted and self._owner is not None:
            # the cancellation was ours; if not undone, it would end an outer wait of the owner
            self._owner.uncancel()
        if self._task is not None:
            self._task.result()
        if cancelled is not None:
            raise cancelled

    async def _run(self, entered: "asyncio.Future[_T]") -> None:
        async with self._block as value:
            entered.set_result(value)
            await self._leave.wait()

    async def _wait_ended(self) -> asyncio.CancelledError | None:
        cancelled, task = None, self._task
        while task is not None and not task.done():
            with anyio.CancelScope(shield=True):  # otherwise anyio would cancel us in every turn
                try:
                    await asyncio.wait((task,))
                except asyncio.CancelledError as exc:
                    cancelled = exc
        return cancelled

    def _on_end(self, _: asyncio.Task[None]) -> None:
        owner = self._owner
        if not self._leave.is_set() and owner is not None and not owner.done():
            self._is_interrupted = True
            owner.cancel()


class CancelHandle(msgspec.Struct, eq=False):
    """A piece of work that can be cancelled from outside; its block then ends without an error.

    A cancel scope at a fraction of its cost: what `asyncio.timeout` does, without the clock.
    """

    stopped: bool = False
    """Whether it was cancelled."""
    _task: asyncio.Task[object] | None = None
    _cancelling: int = 0

    def __enter__(self) -> Self:
        self._task = task = asyncio.current_task()
        if task is not None:
            self._cancelling = task.cancelling()
            # cancelled before it began: its first wait has to notice
            if self.stopped:
                task.cancel()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: object
    ) -> bool:
        task, self._task = self._task, None
        if not self.stopped or task is None:
            return False
        # somebody else may have cancelled the task as well, and that must not be swallowed
        ours = task.uncancel() <= self._cancelling
        return ours and isinstance(exc, asyncio.CancelledError)

    def cancel(self) -> None:
        """Cancel the work."""
        if not self.stopped:
            self.stopped = True
            if self._task is not None:
                self._task.cancel()


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


def now() -> float:
    """The time of the loop's clock, which tests may advance."""
    return asyncio.get_running_loop().time()
