"""Owns the processes that run scripts: kept warm, one script each, killed if they do not end."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import anyio

from multitap.code.messages import HEAD, LARGEST, Order, Report, frame, parse_report
from multitap.errors import MultitapError

MOST = 16
"""Scripts that run at a time."""
MOST_IDLE = 2
"""Processes that wait for the next script: starting one takes about 0.2 s."""
_START = 30.0  # seconds for a process to start, on a busy machine


class ScriptProcess:
    """One process; a script has it alone."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.is_clean = True
        """Whether it can run another script."""

    async def ask(self, order: Order) -> Report:
        """Send an order, and wait for what comes of it.

        Raises:
            MultitapError: The process has ended.
        """
        self.is_clean = False
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise MultitapError("the process of the script has no pipes")
        try:
            stdin.write(frame(order))
            await stdin.drain()
            (size,) = HEAD.unpack(await stdout.readexactly(HEAD.size))
            if size > LARGEST:
                raise MultitapError(f"the script sends {size:,} bytes at once")
            return parse_report(await stdout.readexactly(size))
        except (OSError, asyncio.IncompleteReadError):
            raise MultitapError("it took too much, and its process has ended") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def kill(self) -> None:
        """End it, with the engine that it has started."""
        with suppress(ProcessLookupError, PermissionError):
            # its group: a killed process cannot end its own child any more
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()


class ScriptPool:
    """The processes of one gateway."""

    def __init__(self, most: int = MOST) -> None:
        self._idle: list[ScriptProcess] = []
        self._turns = anyio.CapacityLimiter(most)

    @asynccontextmanager
    async def process(self) -> AsyncGenerator[ScriptProcess]:
        """A process for one script; it is killed unless it is clean afterwards.

        Raises:
            MultitapError: Too many scripts run.
        """
        holder = object()
        try:
            self._turns.acquire_on_behalf_of_nowait(holder)
        except anyio.WouldBlock:
            raise MultitapError(f"{self._turns.total_tokens:g} scripts are running") from None
        process: ScriptProcess | None = None
        try:
            process = await self._take()
            yield process
        finally:
            self._turns.release_on_behalf_of(holder)
            if process is not None:
                if process.is_clean and not process.has_ended and len(self._idle) < MOST_IDLE:
                    self._idle.append(process)
                else:
                    with anyio.CancelScope(shield=True):
                        await process.kill()

    async def _take(self) -> ScriptProcess:
        while self._idle:
            process = self._idle.pop()
            if not process.has_ended:
                return process
        with anyio.fail_after(_START):
            return ScriptProcess(
                await asyncio.create_subprocess_exec(
                    sys.executable,
                    # isolated: no variable, folder or package of the user has a say in what runs
                    *("-I", "-m", "multitap.code.worker"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                    env={},
                    cwd="/",
                    start_new_session=True,
                    limit=HEAD.size + 64 * 1024,
                )
            )

    async def close(self) -> None:
        """End all processes that wait."""
        while self._idle:
            await self._idle.pop().kill()
