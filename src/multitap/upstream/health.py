"""Watches a connected server, and raises what it finds."""

from collections.abc import Callable

import anyio

from multitap.config import ServerConfig
from multitap.faults import AnswerInvalid, AnswerTimeout, WireClosed
from multitap.upstream.attempt import now
from multitap.upstream.diagnosis import ProcessStopped, Unresponsive
from multitap.upstream.listing import Listing
from multitap.upstream.notifications import Notifications
from multitap.upstream.request_path import RequestPath
from multitap.upstream.session import Session
from multitap.upstream.signals import Latch

HEALTH_TIMEOUT = 5.0
MISSES = 2
"""Health checks without an answer before a server counts as hanging."""
STOP_CHECK = 1.0
IDLE_TIMEOUT = 300.0


class IdleTimeout(Exception):
    """No failure: a lazy server has had nothing to do for long enough."""


class RestartRequested(Exception):
    """No failure: a restart was requested."""


class Watcher:
    """Owns the watch over one server while it is connected, and how fast it answers.

    Args:
        config: What is asked for: health checks, and an end after a time without use.
        health_interval: Seconds between health checks, where the configuration says nothing.
        requests: Whether the server is in use, in doubt or busy.
        listing: Fetched again when it changes.
        notifications: Says when it does.
    """

    def __init__(
        self,
        config: ServerConfig,
        health_interval: float,
        *,
        requests: RequestPath,
        listing: Listing,
        notifications: Notifications,
    ) -> None:
        self.latency: float | None = None
        """Seconds that the last health check took."""
        self._config = config
        self._interval = config.health_interval or health_interval
        self._requests = requests
        self._listing = listing
        self._notifications = notifications

    async def watch(self, session: Session, superseded: Latch) -> None:
        """Return never; raise what ended the life.

        Args:
            session: What is watched.
            superseded: Set when somebody wants another one.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_health, session)
            tasks.start_soon(watch_process, session)
            tasks.start_soon(watch_wish, superseded)
            tasks.start_soon(self._follow_lists)
            if self._config.start == "lazy":
                limit = self._config.idle_timeout or IDLE_TIMEOUT
                tasks.start_soon(watch_idleness, self._requests.idle_for, limit)
            await watch_wire(session)

    async def _watch_health(self, session: Session) -> None:
        await watch_health(
            session,
            interval=self._interval,
            doubted=self._requests.doubted,
            busy=self._requests.is_busy,
            answered=self._on_answer,
        )

    def _on_answer(self, seconds: float) -> None:
        self.latency = seconds
        self._requests.proved_alive()

    async def _follow_lists(self) -> None:
        await self._notifications.follow_lists(
            self._listing.refetch, is_complete=self._listing.is_complete
        )


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
        WireFault: It cannot be reached at all.
    """
    limit = min(interval, HEALTH_TIMEOUT)
    misses = 0
    while True:
        # after a miss, ask again at once: two misses decide, not two intervals
        if not misses:
            with anyio.move_on_after(interval):
                await doubted.wait()
        asked = now()
        try:
            await session.alive(limit)
        except AnswerInvalid:
            pass  # a bad answer is a sign of life
        except AnswerTimeout:
            # servers with a single thread answer nothing while they work
            misses = 0 if busy() else misses + 1
            if misses >= MISSES:
                raise Unresponsive(
                    f"it has not answered a health check for {misses * limit:g} s"
                ) from None
            continue
        misses = 0
        answered(now() - asked)


async def watch_process(session: Session) -> None:
    """A stopped process keeps its pipes open and says nothing: only the system knows.

    Raises:
        ProcessStopped: It is.
    """
    if session.wire.kind != "stdio":
        return
    stopped = 0
    while True:
        # polled: the system tells only the parent, which is the warden
        await anyio.sleep(STOP_CHECK)
        stopped = stopped + 1 if session.wire.is_stopped() else 0
        # twice in a row: somebody may stop a process for a moment on purpose
        if stopped > 1:
            raise ProcessStopped


async def watch_wire(session: Session) -> None:
    """Raise why the wire closed, once it does."""
    await session.wire.closed.wait()
    raise session.wire.fault or WireClosed("the connection is closed", sent=True)


async def watch_idleness(idle_for: Callable[[], float], limit: float) -> None:
    """Raise `IdleTimeout` once nothing was asked of the server for `limit` seconds."""
    while (rest := limit - idle_for()) > 0:
        await anyio.sleep(rest)
    raise IdleTimeout


async def watch_wish(wished: Latch) -> None:
    """Raise `RestartRequested` when a restart is requested."""
    await wished.wait()
    raise RestartRequested
