"""Tasks that callbacks can start, cancel and wake, where anyio would need a running task.

A transport or a timer calls back outside any task. Under `asyncio.run` anyio cannot tell there
which library runs, and refuses to make a scope or to start a task; this module needs only the
running loop. Inside the tasks, all of anyio works as usual.
"""

import asyncio
import inspect
import logging
import math
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context, copy_context
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple

import anyio
import msgspec

logger = logging.getLogger(__name__)

Ts = TypeVarTuple("Ts")
_T = TypeVar("_T")

_AGAIN = 0.01  # seconds; about the time a task takes to leave a wait
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

    async def __aenter__(self) -> Self:
        self._owner = asyncio.current_task()
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
                    await asyncio.wait(self._running, timeout=min(left, self._cancel_all()))
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
        for task in self._running - self._cancelled:
            # One that is being cancelled may just be leaving a wait whose time is up, and go on
            # after it: asyncio would make one cancellation of both, and the wait would take it.
            if not task.cancelling():
                self._cancelled.add(task)
                task.cancel()
        return math.inf if self._running <= self._cancelled else _AGAIN

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._cancelled.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
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
            self._own(work(*args), name)

    def adopt(
        self, coroutine: Coroutine[Any, Any, None], context: Context | None = None
    ) -> asyncio.Task[None]:
        """Continue a coroutine as a task; it is cancelled at once if the block was left."""
        task = self._own(coroutine, None, context)
        # not dropped: it has begun, and has to release what it holds
        if self._over:
            self._cancelled.add(task)
            task.cancel()
        return task

    def _own(
        self,
        coroutine: Coroutine[Any, Any, None],
        name: str | None,
        context: Context | None = None,
    ) -> asyncio.Task[None]:
        # the only place that may call it: this class is the group that owns the task
        task = asyncio.create_task(coroutine, name=name, context=context)  # noqa: TID251
        self._running.add(task)
        task.add_done_callback(self._on_end)
        return task


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


class CancelHandle:
    """A piece of work that can be cancelled from outside; its block then ends without an error.

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
            # cancelled before it began: its first wait has to notice
            if self.stopped:
                self._task.cancel()
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


WAIT, _TASK = object(), object()
"""What a light task's coroutine yields: it waits to be woken, or it needs a task."""


class _Waiting:
    """Suspends a light task until `run` is called again.

    A `partial`, so that no function of ours runs for it: an iterator made in C is all there is
    between the coroutine and who wakes it. From Python 3.14 on a bare `partial` is a method.
    """

    __slots__ = ()
    __await__ = staticmethod(partial(iter, (WAIT,)))


WAITING: Awaitable[None] = _Waiting()  # pyright: ignore[reportAssignmentType] - see above


class LightTask(msgspec.Struct, eq=False):
    """A coroutine that runs without a task until it has to wait for more than an answer.

    Most requests wait only for their server. The code that delivers the answer steps such a
    coroutine, in the same turn of the loop, for less than a task costs: 2.5 to 5 of the 36 to 97
    microseconds of a call. Before it waits for anything else it calls `await in_task(light)`, and
    continues as a task of its owner. It has a context of its own, as a task has.
    """

    tasks: Tasks
    """The owner."""
    task: asyncio.Task[None] | None = None
    """The task that continues it."""
    stopped: bool = False
    """Whether it was cancelled."""
    _coroutine: Coroutine[Any, None, None] | None = None
    _context: Context = msgspec.field(default_factory=copy_context)
    _must_cancel: bool = False
    """Whether it was cancelled where that could not be raised: its next wait will."""

    def run(self, coroutine: Coroutine[Any, None, None] | None = None) -> None:
        """Run until the next wait: from the start, or from a wait whose answer has arrived."""
        if coroutine is None:
            coroutine = self._coroutine
            if coroutine is None:
                return
        else:
            self._coroutine = coroutine
        try:
            awaited = self._context.run(coroutine.send, None)
        except StopIteration:
            self._coroutine = None
            return
        except BaseException as exc:  # noqa: BLE001 - boundary: who steps it has others to serve
            self._end(exc)
            return
        if awaited is not WAIT or self._must_cancel:
            self._wait(coroutine, awaited)

    def cancel(self) -> None:
        """Cancel the work."""
        if self.stopped:
            return
        self.stopped = True
        if self.task is not None:
            self.task.cancel()
        elif self._coroutine is None or _is_running(self._coroutine):
            self._must_cancel = True
        else:
            self._throw(self._coroutine)

    def recover(self) -> None:
        """Continue after a cancellation, to clean up."""
        if self.task is not None:
            self.task.uncancel()

    def _wait(self, coroutine: Coroutine[Any, None, None], awaited: object) -> None:
        """Let a coroutine wait for what it awaits."""
        if awaited is _TASK:
            self._become_task(coroutine)
        elif awaited is not WAIT:  # without `in_task`, such as in a `finally`
            self._become_task(_resume(coroutine, awaited))
        elif self._must_cancel:
            self._throw(coroutine)

    def _throw(self, coroutine: Coroutine[Any, None, None]) -> None:
        self._must_cancel = False
        try:
            awaited = self._context.run(coroutine.throw, asyncio.CancelledError())
        except StopIteration:
            self._coroutine = None
        except BaseException as exc:  # noqa: BLE001 - boundary: who cancels it has others to serve
            self._end(exc)
        else:
            self._wait(coroutine, awaited)

    def _end(self, exc: BaseException) -> None:
        self._coroutine = None
        if isinstance(exc, Exception):
            logger.error("a request failed", exc_info=exc)
        elif not isinstance(exc, asyncio.CancelledError):
            raise exc

    def _become_task(self, coroutine: Coroutine[Any, None, None]) -> None:
        # first: a late answer must not step what is now a task
        self._coroutine = None
        self.task = self.tasks.adopt(coroutine, self._context)
        self.task.add_done_callback(self._let_go)
        if self._must_cancel:
            self._must_cancel = False
            self.task.cancel()

    def _let_go(self, _: object) -> None:
        """Break the reference cycle: a cancelled task keeps its last frames, and these keep us."""
        self.task = None


def _resume(coroutine: Coroutine[Any, None, None], awaited: object) -> Coroutine[Any, None, None]:
    """What remains of a coroutine that waits for something that only a task can wait for."""
    rest = _await_steps(coroutine, awaited)
    # up to its first wait: a task that is cancelled before it begins would not enter it at all
    rest.send(None)
    return rest


async def _await_steps(coroutine: Coroutine[Any, None, None], awaited: object) -> None:
    await _steps(coroutine, awaited)


@types.coroutine
def _steps(coroutine: Coroutine[Any, Any, None], awaited: object) -> Generator[object, Any, None]:
    try:
        yield _TASK
        step = partial(coroutine.send, (yield awaited))
    except BaseException as exc:  # noqa: BLE001 - of whatever kind, it is the coroutine's
        step = partial(coroutine.throw, exc)
    with suppress(StopIteration):
        while True:
            awaited = step()
            try:
                step = partial(coroutine.send, (yield awaited))
            except BaseException as exc:  # noqa: BLE001 - see above
                step = partial(coroutine.throw, exc)


def _is_running(coroutine: Coroutine[Any, None, None]) -> bool:
    """Whether it cannot be entered; `run` then notices the cancellation at its next wait."""
    return inspect.getcoroutinestate(coroutine) == inspect.CORO_RUNNING


async def in_task(light: LightTask | None) -> None:
    """Continue in a task; `light` is the caller, or None if it runs in a task already.

    The task begins in a later turn of the loop: anything read before may have changed, and
    has to be read again.
    """
    if light is not None and light.task is None:
        await _pause()


@types.coroutine
def _pause() -> Generator[Any, None, None]:
    yield _TASK


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
