"""Whether a server can take requests now; if not, why, and whether to wait."""

import math
import time
from collections.abc import Callable

import anyio

from multitap.errors import Unavailable
from multitap.events import Failure, LinkState
from multitap.tasks import Bell, now
from multitap.upstream.session import Session
from multitap.wire.request import Deadline

SOON = 1.0
"""A call waits if the next attempt is due within this many seconds; else it fails."""
FINAL_WORDS = 0.3
"""Seconds a failed call waits for the full reason."""


class Availability:
    """The availability of one server; set by its link, read by its callers.

    It `is_wanted` if it should be up before the first call.
    """

    def __init__(
        self, name: str, state: LinkState, *, is_wanted: bool, on_change: Callable[[], None]
    ) -> None:
        self.state = state
        self.since = time.time()
        self.failure: Failure | None = None
        """Why it is not connected, or why it was last lost."""
        self.session: Session | None = None
        """The current session, if there is one."""
        self.retry_due: float | None = None
        """When the next attempt is due, by the loop's clock."""
        self.closing = False
        self.failing = False
        """Whether the last attempt failed."""
        self.first_settled = anyio.Event()
        """Set once it has settled for the first time."""
        self.settling = is_wanted and state is not LinkState.DISABLED
        """Whether its state is about to change: it is starting, or its loss is being examined."""
        self.wanted = anyio.Event()
        """Set while it should be up; for a lazy server, from the first call on."""
        if is_wanted:
            self.wanted.set()
        self._name = name
        self._changed = Bell()
        self._on_change = on_change
        if self.is_settled:
            self.first_settled.set()

    @property
    def is_settled(self) -> bool:
        """Whether it has answered, failed, or has no reason to start."""
        return not self.settling and self.state is not LinkState.CONNECTING

    @property
    def hopeful(self) -> bool:
        """Whether calls should wait for it."""
        if self.closing:
            return False
        if self.settling or self.state is LinkState.CONNECTING:
            return True
        return self.retry_due is not None and self.retry_due - now() <= SOON

    @property
    def is_asleep(self) -> bool:
        """Whether it is lazy and waits for a call."""
        return self.state is LinkState.DISCONNECTED and not self.wanted.is_set()

    def become(self, state: LinkState) -> None:
        self.state = state
        self.since = time.time()
        self._changed.ring()
        if self.is_settled:
            self.first_settled.set()
        self._on_change()

    def up(self, session: Session) -> None:
        self.session = session
        self.failure = self.retry_due = None
        self.settling = self.failing = False
        self.become(LinkState.CONNECTED)

    def down(self, failure: Failure, pause: float, state: LinkState, *, is_failing: bool) -> None:
        """Mark it as not connected; it is tried again after `pause` seconds, if that is finite.

        Until then it has this state. It `is_failing` if it did not come up at all.
        """
        self.failure, self.failing = failure, is_failing
        self.settling = False
        self.retry_due = now() + pause if math.isfinite(pause) else None
        self.become(state)

    def lose(self) -> None:
        """Drop a session whose wire is closed; the link decides what follows."""
        if self.session is not None and self.session.wire.closed.is_set():
            # settling: calls wait a moment for the reason instead of failing without one
            self.session = None
            self.settling = True

    def fall_asleep(self) -> None:
        """Mark it as asleep after a time without calls; the next call wakes it."""
        self.wanted = anyio.Event()
        self.settling = False
        self.become(LinkState.DISCONNECTED)

    def close(self) -> None:
        """Mark it as removed; waiting calls fail."""
        self.closing = True
        self.settling = False
        # last: woken callers read the two above
        self._changed.ring()

    async def session_by(self, deadline: Deadline) -> Session:
        """Wait for the session while the server may come up; wakes a sleeping server.

        Raises:
            Unavailable: There is no session.
        """
        try:
            with anyio.fail_after(deadline.at - now()):
                # checked after every ring: another call may have lost the session in between
                while self.session is None:
                    if not self._wake() and not self.hopeful:
                        raise self.unavailable()
                    await self._changed.wait()
        except TimeoutError:
            raise self.unavailable(still_starting(deadline)) from None
        return self.session

    async def wait_lost(self, message: str) -> Unavailable:
        """The error for a caller whose connection broke, once the reason is known."""
        # the exit code and standard error arrive a little later than the end of the pipe
        with anyio.move_on_after(FINAL_WORDS):
            while self.settling:
                await self._changed.wait()
        return self.unavailable(f"{message}: {self.failure or 'the reason is unknown'}")

    def _wake(self) -> bool:
        """Wake a sleeping server; returns whether it was asleep."""
        if not self.is_asleep or self.closing:
            return False
        self.settling = True
        self.wanted.set()
        return True

    def unavailable(self, message: str | None = None) -> Unavailable:
        failure = self.failure
        if message is None:
            if self.closing:
                message = "it was removed or replaced"
            elif self.state is LinkState.DISABLED:
                message = "it is disabled"
            else:
                message = str(failure or "it is not connected")
        hint = failure.hint if failure else None
        return Unavailable(self._name, message, hint=hint, failure=failure)


def still_starting(deadline: Deadline) -> str:
    """The message for a call that timed out while its server was starting."""
    return f"it is still starting, and the call timed out after {deadline.timeout:g} s"
