"""The one thread that the database is used from."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple, Unpack

import anyio

PATIENCE = 10.0
"""Seconds; SQLite itself waits two for another process to finish writing."""

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class StoreThread:
    """One thread that does one thing after the other."""

    def __init__(self) -> None:
        # one: SQLite lets one write at a time, and the order is ours without a lock
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="multitap-store")

    async def run(self, work: Callable[[Unpack[_Ts]], _T], *args: *_Ts) -> _T:
        """Do it to its end even if the caller is cancelled, so that nothing is done by half.

        Raises:
            TimeoutError: The file system hangs.
        """
        future = asyncio.get_running_loop().run_in_executor(self._executor, work, *args)
        # Shielded: a thread cannot be cancelled, and a caller that left early would never learn
        # whether its records were written.
        with anyio.move_on_after(PATIENCE, shield=True):
            await asyncio.wait([future])
        if not future.done():
            # network folders may hang for good; the hub goes on without them
            raise TimeoutError("the state directory does not answer")
        return future.result()

    async def end(self) -> None:
        """Leave no thread behind, unless it hangs."""
        try:
            await self.run(_nothing)
        except TimeoutError:
            self._executor.shutdown(wait=False, cancel_futures=True)
        else:
            self._executor.shutdown()


def _nothing() -> None:
    pass
