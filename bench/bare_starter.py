"""The least that brings many servers up: start each, shake hands, list its tools."""

import asyncio
import json
import time
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bare", "version": "1"},
}


async def until_listed(command: tuple[str, ...], servers: int, *, places: int) -> float:
    """Seconds until that many servers have listed their tools, so many starting at a time."""
    free = anyio.Semaphore(places)
    started = time.perf_counter()
    async with AsyncExitStack() as stack:
        async with anyio.create_task_group() as tasks:

            async def start():
                async with free:
                    process = await stack.enter_async_context(_running(command))
                    await _ask(process, 1, "initialize", INITIALIZE)
                    _say(process, {"method": "notifications/initialized"})
                    await _ask(process, 2, "tools/list", {})

            for _ in range(servers):
                tasks.start_soon(start)
        return time.perf_counter() - started


@asynccontextmanager
async def _running(command):
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # as the hub does: Linux shares CPU time out by session
    )
    try:
        yield process
    finally:
        process.kill()
        with anyio.CancelScope(shield=True):
            await process.wait()


async def _ask(process, number, method, params):
    _say(process, {"id": number, "method": method, "params": params})
    while json.loads(await process.stdout.readline()).get("id") != number:
        pass


def _say(process, message):
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
