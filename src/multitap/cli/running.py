"""Runs what a command awaits; Ctrl-C and SIGTERM end it and everything it started."""

import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from multitap.errors import ungrouped

_Done = TypeVar("_Done")


def run_async(work: Callable[[], Awaitable[_Done]], *, fast: bool = False) -> _Done:
    """What `work` returns; on a faster loop, where there is one and it matters.

    Raises:
        KeyboardInterrupt: It was told to end, and has put everything away.
    """
    options = {"use_uvloop": fast and sys.platform != "win32"}
    return anyio.run(_interruptible, work, backend_options=options)


async def _interruptible(work: Callable[[], Awaitable[_Done]]) -> _Done:
    with ungrouped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_listen, tasks.cancel_scope)
            done = await work()
            tasks.cancel_scope.cancel()
            return done
    raise KeyboardInterrupt


async def _listen(scope: anyio.CancelScope) -> None:
    """Cancel the work at SIGTERM; asyncio does the same at Ctrl-C by itself."""
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
