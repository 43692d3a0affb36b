"""Limits how much a reader of foreign bytes does in one turn of the loop.

An event loop is only as fair as its callbacks are short. Code that parses what a stranger sends (a
server's output, a client's requests) works within a `Budget`, and once that is spent stops
reading and goes on in a later turn of the loop: the sender waits, nobody else does.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

MESSAGES = 64
"""Messages that one reader takes in one turn."""
SECONDS = 0.001
"""Time that one reader takes in one turn; what is begun is finished."""
FULL_READ = 64 * 1024
"""Bytes from which on a read may be followed by another one in the same turn of uvloop.

It reads again while its buffer of this size or more was filled, up to 32 times.
"""
_FLOOD = 50
"""Turns with a spent budget, and with nothing in them that anybody waits for, that make a flood."""
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
        # the clock as well: a single message may have megabytes
        return self._messages <= 0 or perf_counter() >= self._until

    def charge(self, messages: int) -> None:
        """Count a message for several: it makes more work than it is itself."""
        self._messages -= messages

    def late(self) -> bool:
        """Whether its time is over, whatever was counted."""
        return perf_counter() >= self._until


class Turns:
    """Shares the loop from within a task that finds its work without having to wait for it."""

    __slots__ = ("_began", "_idle_turns", "_worked", "budget", "useful")

    def __init__(self) -> None:
        self.budget = Budget()
        self.useful = False
        """Set when something came that somebody waits for."""
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
        """Let everybody else have a turn; in a flood, half of the time."""
        self._idle_turns = 0 if self.useful else self._idle_turns + 1
        self.useful = False
        self._worked += perf_counter() - self._began
        # as in `Pace`: a flood that only yields fills all the time that nobody else takes
        if self._idle_turns < _FLOOD or self._worked < SECONDS:
            await asyncio.sleep(0)
        else:
            self._worked = 0.0
            await asyncio.sleep(SECONDS)
        self.budget = Budget()
        self._began = perf_counter()


class Readable(Protocol):
    """What is read from; the transports of uvloop are no `asyncio.ReadTransport`."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def is_closing(self) -> bool: ...


class Pace:
    """Holds one transport back while what came from it is worked off, turn by turn.

    Args:
        work: Goes on with what is left, until a budget is spent; whether anything is still left.
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
        """Set by `work` when it came across something that somebody waits for."""

    @property
    def holding(self) -> bool:
        """Whether work is left for a later turn."""
        return self._handle is not None

    def reads(self, transport: Readable) -> None:
        """Say what is held back."""
        self._transport = transport

    def hold(self) -> None:
        """Read nothing more before the rest is worked off, from the next turn on."""
        if self._handle is not None:
            return
        if self._loop.time() > self._until:
            self._idle_turns = 0
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._schedule()

    def stop(self) -> None:
        """Forget the rest: nobody wants it."""
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
        else:  # even in small pieces, an endless flood would fill all the time there is
            self._handle = self._loop.call_later(SECONDS, self._go_on)
