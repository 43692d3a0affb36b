"""Runs the coroutine of a command until it ends or a signal stops it."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from multitap.cli.stopping import on_signal, stop
from multitap.errors import ungrouped
from multitap.records import dataclass

_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True)
class _Stopped:
    number: int


def run_async(work: Callable[[], Awaitable[_Done]], *, fast: bool = False) -> _Done:
    """Run `work` and return its result, on a faster loop if available and useful.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed, and everything is cleaned up.
        Terminated: The same after SIGTERM or SIGHUP.
    """
    options = {"use_uvloop": fast and sys.platform != "win32"}
    outcome = anyio.run(_until_stopped, work, backend_options=options)
    if isinstance(outcome, _Stopped):
        stop(outcome.number)
    return outcome


async def _until_stopped(work: Callable[[], Awaitable[_Done]]) -> _Done | _Stopped:
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def act(number: int) -> None:
        # this interrupts the loop at any point, so it only sets a flag
        loop.call_soon_threadsafe(stopped.set_result, number)

    with on_signal(act), ungrouped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel, tasks.cancel_scope, stopped)
            done = await work()
            tasks.cancel_scope.cancel()
            return done
    # only reached when the signal cancelled the scope, so this does not wait
    return _Stopped(await stopped)


async def _cancel(scope: anyio.CancelScope, stopped: "asyncio.Future[int]") -> None:
    # this is cancelled when the work is done first, but the future must not be: a late signal
    # still sets it
    await asyncio.shield(stopped)
    scope.cancel()
