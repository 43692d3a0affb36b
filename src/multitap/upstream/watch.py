"""What keeps an eye on a connected server; each raises what it finds."""

from collections.abc import Callable

import anyio

from multitap.upstream.failure import Stopped, Unresponsive
from multitap.upstream.session import Session
from multitap.upstream.signals import Latch
from multitap.upstream.trial import now
from multitap.wire.wire import AnswerInvalid, AnswerTimeout, WireClosed

HEALTH_TIMEOUT = 5.0
MISSES = 2
"""Health checks without an answer before a server counts as hanging."""
STOP_CHECK = 1.0


class Asleep(Exception):
    """No failure: a lazy server has had nothing to do for long enough."""


class Again(Exception):
    """No failure: somebody wants it started anew."""


async def watch_health(
    session: Session,
    *,
    interval: float,
    doubted: Latch,
    busy: Callable[[], bool],
    answered: Callable[[float], None],
) -> None:
    """Ask for a sign of life at every interval, and at once when somebody doubts it.

    Args:
        session: Whom to ask.
        interval: Seconds between two checks.
        doubted: Set by a call that failed.
        busy: Whether calls are under way; their own deadlines decide then.
        answered: Told how many seconds an answer took.

    Raises:
        Unresponsive: It gave none.
        WireFault: It can not be reached at all.
    """
    limit = min(interval, HEALTH_TIMEOUT)
    misses = 0
    while True:
        if not misses:
            with anyio.move_on_after(interval):
                await doubted.wait()
        asked = now()
        try:
            await session.alive(limit)
        except AnswerInvalid:
            pass  # a bad answer is a sign of life
        except AnswerTimeout:
            misses = 0 if busy() else misses + 1
            if misses >= MISSES:
                raise Unresponsive(
                    f"it answered no health check for {misses * limit:g} s"
                ) from None
            continue
        misses = 0
        answered(now() - asked)


async def watch_process(session: Session) -> None:
    """A stopped process keeps its pipes open and says nothing: only the system knows.

    Raises:
        Stopped: It is.
    """
    if session.wire.kind != "stdio":
        return
    stopped = 0
    while True:
        await anyio.sleep(STOP_CHECK)
        stopped = stopped + 1 if session.wire.stopped() else 0
        if stopped > 1:
            raise Stopped


async def watch_wire(session: Session) -> None:
    """Raise why the wire closed, once it does."""
    await session.wire.closed.wait()
    raise session.wire.fault or WireClosed("the connection is closed", sent=True)


async def watch_idleness(idle_for: Callable[[], float], limit: float) -> None:
    """Raise `Asleep` once nothing was asked of the server for `limit` seconds."""
    while (rest := limit - idle_for()) > 0:
        await anyio.sleep(rest)
    raise Asleep


async def watch_wish(wished: Latch) -> None:
    """Raise `Again` once somebody wants a new start."""
    await wished.wait()
    raise Again
