"""How work and resources are limited, so that nobody takes what others need.

An event loop is only as fair as its callbacks are short. Code that parses what a stranger sends (a
server's output, a client's requests) works within a `Budget`, and once that is spent stops
reading and continues in a later turn of the loop: only the sender waits. `FairTurns` divides the
turns among many such readers, `Shares` divides sessions, streams and memory among holders (the
principal of a token, or an address if no tokens are required), and `RateLimit` counts requests
over time.
"""

import asyncio
import math
import re
from collections import deque
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import NamedTuple, Protocol

TURN_MESSAGES = 64
"""Messages that one reader takes in one turn."""
TURN_SECONDS = 0.001
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
        self._messages = TURN_MESSAGES
        self._until = perf_counter() + TURN_SECONDS

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
        if self._idle_turns < _FLOOD or self._worked < TURN_SECONDS:
            await asyncio.sleep(0)
        else:
            self._worked = 0.0
            await asyncio.sleep(TURN_SECONDS)
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
            self._handle = self._loop.call_later(TURN_SECONDS, self._go_on)


GENEROSITY = 3
"""How many times the remaining free amount one holder may have."""


class Shares:
    """How much of one resource each holder has.

    The number of holders is unknown, so none may take the last of it: a holder gets no
    more than three times what stays free. Alone, that is three quarters of everything; the next
    one gets three quarters of the rest, however much the first one wants.
    """

    __slots__ = ("held", "most", "total", "what")

    def __init__(self, most: int, what: str) -> None:
        self.held: dict[Hashable, int] = {}
        """The amount that each holder has."""
        self.most = most
        self.total = 0
        self.what = what

    def take(self, holder: Hashable, amount: int = 1) -> bool:
        """Give a holder this amount; False, with nothing counted, if that exceeds its share."""
        free, held = self.most - self.total, self.held.get(holder, 0) + amount
        # the last pieces are for holders that have little
        if amount > free or held > GENEROSITY * free:
            return False
        self.total += amount
        self.held[holder] = held
        return True

    def replace(self, holder: Hashable) -> None:
        """Give a holder one piece in place of one that was just taken back from any holder."""
        self.total += 1
        self.held[holder] = self.held.get(holder, 0) + 1

    def give(self, holder: Hashable, amount: int = 1) -> None:
        """Take back an amount from a holder."""
        self.total -= amount
        # there may be thousands of holders: those without anything are forgotten
        left = self.held[holder] - amount
        if left:
            self.held[holder] = left
        else:
            del self.held[holder]

    def refusal(self, holder: Hashable) -> str:
        """Why a holder gets no more."""
        held = self.held.get(holder, 0)
        if self.total >= self.most or not held:
            return f"all {self.most} {self.what} are in use"
        return f"one client already has {held} of the {self.most} {self.what}"


AT_ONCE = 4 * TURN_SECONDS
"""Seconds per turn for newly arrived requests; the rest waits for the next turn."""


class TurnTaker(Protocol):
    """A connection with work left."""

    answered: int
    """Requests answered so far."""

    def go_on(self) -> bool:
        """Do some of the work; returns whether more can be done now."""
        ...


class FairTurns:
    """Gives turns to connections with work left.

    Connections with little work alternate with busy ones: an ordinary request waits for a moment,
    not for a whole round of floods.
    """

    __slots__ = ("_busy", "_calm", "_calm_first", "_pace", "spent")

    def __init__(self) -> None:
        self._pace = Pace(self._work)
        self._calm: deque[TurnTaker] = deque()
        self._busy: deque[TurnTaker] = deque()
        self._calm_first = False
        self.spent = 0.0
        """Seconds spent on newly arrived requests in this turn, and in short ones before it.

        From `TURN_SECONDS` on, call `hold`; from `AT_ONCE` on, further requests wait for the next
        turn.
        """

    def hold(self) -> None:
        """Reset `spent` in the next turn, when those that wait have theirs."""
        self._pace.hold()

    def join(self, worker: TurnTaker, *, busy: bool) -> None:
        """Queue for a turn.

        Args:
            worker: The connection.
            busy: Whether it has more work than others.
        """
        (self._busy if busy else self._calm).append(worker)
        self._pace.hold()

    def stop(self) -> None:
        """Give no more turns."""
        self._pace.stop()
        self._calm.clear()
        self._busy.clear()

    def _work(self) -> bool:
        self.spent = 0.0
        if not self._calm and not self._busy:
            self._pace.useful = True  # nothing is left: it was only a burst
            return False
        budget = Budget()
        for _ in range(len(self._calm) + len(self._busy)):  # each is queued at most once
            worker = self._next()
            before = worker.answered
            if worker.go_on():
                self._busy.append(worker)
            if worker.answered > before:
                self._pace.useful = True
            if budget.spent():
                break
        return bool(self._calm or self._busy)

    def _next(self) -> TurnTaker:
        self._calm_first = not self._calm_first
        if self._calm and (self._calm_first or not self._busy):
            return self._calm.popleft()
        return self._busy.popleft()


_RATE = re.compile(r"([1-9][0-9]{0,8})\s*/\s*([a-z]+)")
_SECONDS = {
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("m", "min", "minute"), 60.0),
    **dict.fromkeys(("h", "hour"), 3600.0),
    **dict.fromkeys(("d", "day"), 86400.0),
}


class Rate(NamedTuple):
    """A number of requests per time."""

    requests: int
    seconds: float

    @classmethod
    def parse(cls, text: str) -> "Rate":
        """Parse a rate such as `100/min`.

        Raises:
            ValueError: It has another form.
        """
        match = _RATE.fullmatch(text.strip().lower())
        if match is None or match[2] not in _SECONDS:
            raise ValueError("expected a rate such as 10/s, 100/min or 5000/h")
        return cls(int(match[1]), _SECONDS[match[2]])


class RateLimit:
    """Counts requests against a rate, which allows a full burst and then refills evenly."""

    __slots__ = ("_full_at", "_step", "rate")

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._step = rate.seconds / rate.requests
        self._full_at = -math.inf
        """When the whole burst is available again."""

    def take(self, now: float) -> float:
        """Count a request; the seconds to wait if it may not be made yet, else 0."""
        # one number instead of a list of times: it costs the same for any rate. No lock, since
        # nothing is awaited.
        full_at = max(self._full_at, now) + self._step
        wait = full_at - now - self.rate.seconds
        # tolerates rounding errors
        if wait > self._step / 1000:
            return wait
        self._full_at = full_at
        return 0.0
