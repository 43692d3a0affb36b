"""Watches a connected server, and raises what it finds."""

from collections.abc import Callable

import anyio

from multitap.config.models import ServerConfig
from multitap.errors import AnswerInvalid, AnswerTimeout, WireClosed
from multitap.tasks import Latch, now
from multitap.upstream.lists import Listing
from multitap.upstream.notifications import Notifications
from multitap.upstream.requests import RequestPath, ServerHabits
from multitap.upstream.session import Session, load_answers

HEALTH_TIMEOUT = 5.0  # seconds for an answer, or the whole interval if that is shorter
MISSES = 2
"""Unanswered health checks after which a server counts as hanging."""
STOP_CHECK = 1.0  # seconds between two looks whether the process is stopped
IDLE_TIMEOUT = 300.0  # seconds, for lazy servers that do not set their own


class IdleTimeout(Exception):
    """Not a failure: a lazy server was idle for long enough."""


class RestartRequested(Exception):
    """Not a failure: a restart was requested."""


class ProcessStopped(Exception):
    """The process is stopped by a signal."""

    def __init__(self) -> None:
        super().__init__("its process is stopped (SIGSTOP)")


class Unresponsive(Exception):
    """The server does not answer health checks."""


class Watcher:
    """Watches one connected server, and measures its latency.

    A server without an interval of its own is checked every `health_interval` seconds.
    """

    def __init__(
        self,
        config: ServerConfig,
        health_interval: float,
        *,
        requests: RequestPath,
        listing: Listing,
        notifications: Notifications,
        habits: ServerHabits,
    ) -> None:
        self.latency: float | None = None
        """Seconds that the last health check took."""
        self._config = config
        self._interval = config.health_interval or health_interval
        self._requests = requests
        self._listing = listing
        self._notifications = notifications
        self._habits = habits

    async def watch(self, session: Session, superseded: Latch) -> None:
        """Watch until something ends the session, and raise that.

        `superseded` is set when a restart is requested.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_health, session)
            tasks.start_soon(watch_process, session)
            tasks.start_soon(watch_restart_request, superseded)
            tasks.start_soon(self._notifications.follow_lists, self._listing, session)
            if self._config.start == "lazy":
                limit = self._config.idle_timeout or IDLE_TIMEOUT
                tasks.start_soon(watch_idleness, self._requests.idle_for, limit)
            if self._habits.asks:  # the means to answer are loaded before it does
                tasks.start_soon(load_answers)
            await watch_wire(session)

    async def _watch_health(self, session: Session) -> None:
        await watch_health(
            session,
            interval=self._interval,
            doubted=self._requests.doubted,
            busy=self._requests.is_busy,
            on_answer=self._on_answer,
        )

    def _on_answer(self, seconds: float) -> None:
        self.latency = seconds
        self._requests.proved_alive()


async def watch_health(
    session: Session,
    *,
    interval: float,
    doubted: Latch,
    busy: Callable[[], bool],
    on_answer: Callable[[float], None],
) -> None:
    """Send a health check at every interval, and at once when a call has failed (`doubted`).

    While it is busy with calls, their own deadlines decide. `on_answer` is called with the seconds
    that an answer took.

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
        since = now()
        try:
            await session.alive(limit)
        except AnswerInvalid:
            pass  # a bad answer is a sign of life
        except AnswerTimeout:
            # single-threaded servers do not answer while they work
            misses = 0 if busy() else misses + 1
            if misses >= MISSES:
                raise Unresponsive(
                    f"it has not answered a health check for {misses * limit:g} s"
                ) from None
            continue
        misses = 0
        on_answer(now() - since)


async def watch_process(session: Session) -> None:
    """Watch for a stopped process, whose pipes stay open and silent.

    Raises:
        ProcessStopped: The process is stopped.
    """
    if session.wire.kind != "stdio":
        return
    stopped = 0
    while True:
        # polled: the system notifies only the parent, which is the warden
        await anyio.sleep(STOP_CHECK)
        stopped = stopped + 1 if session.wire.is_stopped() else 0
        # twice in a row: a process may be stopped for a moment on purpose
        if stopped > 1:
            raise ProcessStopped


async def watch_wire(session: Session) -> None:
    """Wait until the wire closes, and raise its fault."""
    await session.wire.closed.wait()
    raise session.wire.fault or WireClosed("the connection is closed", sent=True)


async def watch_idleness(idle_for: Callable[[], float], limit: float) -> None:
    """Raise `IdleTimeout` after `limit` seconds without a request."""
    while (rest := limit - idle_for()) > 0:
        await anyio.sleep(rest)
    raise IdleTimeout


async def watch_restart_request(superseded: Latch) -> None:
    """Wait for a request to restart, and raise `RestartRequested`."""
    await superseded.wait()
    raise RestartRequested
