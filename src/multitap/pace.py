"""Limits how much a reader of foreign bytes does in one turn of the loop.

An event loop is only as fair as its callbacks are short. Code that parses what a stranger sends (a
server's output, a client's requests) works within a `Budget`, and once that is spent stops
reading and continues in a later turn of the loop: only the sender waits.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

MESSAGES = 64
"""Messages that one reader takes in one turn."""
SECONDS = 0.001
"""Seconds that one reader takes in one turn; a message that was begun is finished."""
FULL_READ = 64 * 1024
"""Bytes from which on a read may be followed by another one in the same turn of uvloop.

It reads again while its buffer of this size or more was filled, up to 32 times.
"""
_FLOOD = 50
"""Consecutive turns with a spent budget and only unwanted messages that make a flood."""
_CALM = 0.1
"""Seconds of silence after which a flood is over."""


class Budget:
    """What is left of one reader's share of a turn."""

    __slots__ = ("_messages", "_until")

    def __init__(self) -> None:
        self._messages = MESSAGES
        self._until = perf_counter() + SECONDS

    def spent(self) -> bool:
        """Count one message; whether it was the last one of this turn."""
        self._messages -= 1
        # checked for each message, because one may have megabytes
        return self._messages <= 0 or perf_counter() >= self._until

    def charge(self, messages: int) -> None:
        """Count a message as several, because it causes more work than others."""
        self._messages -= messages

    def late(self) -> bool:
        """Whether its time is up, regardless of the count."""
        return perf_counter() >= self._until


class Turns:
    """Yields the loop from a task that always has work and never has to wait for it."""

    __slots__ = ("_began", "_idle_turns", "_worked", "budget", "useful")

    def __init__(self) -> None:
        self.budget = Budget()
        self.useful = False
        """Set when a message arrives that somebody waits for."""
        self._idle_turns = 0
        self._began = perf_counter()
        self._worked = 0.0

    def begin(self) -> None:
        """Begin with a full budget, after waiting for something else."""
        now = perf_counter()
        if now - self._began > _CALM:
            self._idle_turns = 0
        self.budget = Budget()
        self._began = now

    async def wait_next(self) -> None:
        """Yield to other tasks; during a flood, for half of the time."""
        self._idle_turns = 0 if self.useful else self._idle_turns + 1
        self.useful = False
        self._worked += perf_counter() - self._began
        # as in `Pace`: a flood that only yields would use all idle time
        if self._idle_turns < _FLOOD or self._worked < SECONDS:
            await asyncio.sleep(0)
        else:
            self._worked = 0.0
            await asyncio.sleep(SECONDS)
        self.budget = Budget()
        self._began = perf_counter()


class Readable(Protocol):
    """The transport that is read; uvloop's transports are not `asyncio.ReadTransport`s."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def is_closing(self) -> bool: ...


class Pace:
    """Pauses one transport while its data is processed, turn by turn.

    Args:
        work: Continues until a budget is spent; returns whether work is left.
    """

    __slots__ = ("_handle", "_idle_turns", "_loop", "_transport", "_until", "_work", "useful")

    def __init__(self, work: Callable[[], bool]) -> None:
        self._work = work
        # not from anyio: readers are made in callbacks of transports
        self._loop = asyncio.get_running_loop()
        self._transport: Readable | None = None
        self._handle: asyncio.Handle | None = None
        self._idle_turns = 0
        self._until = 0.0
        self.useful = False
        """Set by `work` when it finds a message that somebody waits for."""

    @property
    def holding(self) -> bool:
        """Whether work is left for a later turn."""
        return self._handle is not None

    def reads(self, transport: Readable) -> None:
        """Set the transport to pause and resume."""
        self._transport = transport

    def hold(self) -> None:
        """Stop reading until the remaining data is processed, starting in the next turn."""
        if self._handle is not None:
            return
        if self._loop.time() > self._until:
            self._idle_turns = 0
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._schedule()

    def stop(self) -> None:
        """Drop the remaining work."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._transport = None

    def _go_on(self) -> None:
        self._handle = None
        left = self._work()
        self._idle_turns = 0 if self.useful else self._idle_turns + 1
        self.useful = False
        if left:
            self._schedule()
            return
        # a flood that pauses for less than that is still the same flood
        self._until = self._loop.time() + _CALM
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _schedule(self) -> None:
        if self._idle_turns < _FLOOD:
            self._handle = self._loop.call_soon(self._go_on)
        else:  # even in small pieces, an endless flood would use all idle time
            self._handle = self._loop.call_later(SECONDS, self._go_on)
