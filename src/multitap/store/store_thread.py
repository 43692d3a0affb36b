"""The thread in which the database is used."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple, Unpack

import anyio

PATIENCE = 10.0
"""Seconds for one piece of work; SQLite itself waits two for other processes."""

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class StoreThread:
    """One thread that runs one piece of work after the other."""

    def __init__(self) -> None:
        # one: SQLite allows one writer at a time, and the order is kept without a lock
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="multitap-store")

    async def run(self, work: Callable[[Unpack[_Ts]], _T], *args: *_Ts) -> _T:
        """Run `work` to its end, even if the caller is cancelled, so that nothing is half done.

        Raises:
            TimeoutError: The file system hangs.
        """
        future = asyncio.get_running_loop().run_in_executor(self._executor, work, *args)
        # Shielded: a thread cannot be cancelled, and a caller that left early would never learn
        # whether its records were written.
        with anyio.move_on_after(PATIENCE, shield=True):
            await asyncio.wait([future])
        if not future.done():
            # network folders may hang forever; the hub continues without them
            raise TimeoutError("the state directory does not answer")
        return future.result()

    async def end(self) -> None:
        """End the thread, unless it hangs."""
        try:
            await self.run(_nothing)
        except TimeoutError:
            self._executor.shutdown(wait=False, cancel_futures=True)
        else:
            self._executor.shutdown()


def _nothing() -> None:
    pass
