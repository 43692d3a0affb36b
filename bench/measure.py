"""CPU time per call, of several clients that take turns."""

import gc
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import anyio

Call = Callable[[], Awaitable[object]]
Open = Callable[[], AbstractAsyncContextManager[Call]]

AFTERMATH = 0.7
"""Seconds after a block in which work that the calls left behind is still counted."""


async def compare(
    clients: Mapping[str, Open], *, calls: int, blocks: int, parallel: int = 1
) -> dict[str, float]:
    """Seconds of this process's CPU per call and client: the least of several blocks.

    The clients take turns, so that whatever else the machine does hits all alike. Their servers are
    other processes and do not count.
    """
    best = dict.fromkeys(clients, math.inf)
    async with AsyncExitStack() as stack:
        opened = {
            name: await stack.enter_async_context(client()) for name, client in clients.items()
        }
        for call in opened.values():
            await _block(call, max(parallel, calls // 10), parallel)
        for _ in range(blocks):
            for name, call in opened.items():
                best[name] = min(best[name], await _block(call, calls, parallel))
    return best


async def _block(call: Call, calls: int, parallel: int) -> float:
    share = calls // parallel

    async def work():
        for _ in range(share):
            await call()

    gc.collect()
    before = time.process_time()
    async with anyio.create_task_group() as tasks:
        for _ in range(parallel):
            tasks.start_soon(work)
    await anyio.sleep(AFTERMATH)
    return (time.process_time() - before) / (share * parallel)
