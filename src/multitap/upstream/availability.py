"""Whether a server can take requests now; if not, why, and whether to wait."""

import math
import time
from collections.abc import Callable

import anyio

from multitap.errors import Unavailable
from multitap.events import Failure, LinkState
from multitap.upstream.attempt import now
from multitap.upstream.session import Session
from multitap.upstream.signals import Bell
from multitap.wire.jsonrpc.deadline import Deadline

SOON = 1.0
"""Seconds until the next attempt for which a call rather waits than fails."""
FINAL_WORDS = 0.3
"""Seconds a failed call waits for the reason to be known in full."""


class Availability:
    """How one server stands; changed by its link, looked at by its callers.

    Args:
        name: Which server.
        state: What it begins with.
        is_wanted: Whether it should be up without anybody asking for it.
        on_change: Called on every change.
    """

    def __init__(
        self, name: str, state: LinkState, *, is_wanted: bool, on_change: Callable[[], None]
    ) -> None:
        self.state = state
        self.since = time.time()
        self.failure: Failure | None = None
        """Why it is not connected, or why it was last lost."""
        self.session: Session | None = None
        """The live conversation, while there is one."""
        self.retry_due: float | None = None
        """When the next attempt is due, by the loop's clock."""
        self.closing = False
        self.failing = False
        """Whether the last attempt came to nothing."""
        self.first_settled = anyio.Event()
        """Set once it has settled for the first time."""
        self.settling = is_wanted and state is not LinkState.DISABLED
        """Whether its state is about to be decided: it starts, or its end is looked into."""
        self.wanted = anyio.Event()
        """Set while it should be up; one that is lazy is not wanted until it is called."""
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
        """Whether it is worth a call's while to wait for it."""
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

        Args:
            failure: Why.
            pause: Seconds.
            state: Its state until then.
            is_failing: Whether it did not even come up.
        """
        self.failure, self.failing = failure, is_failing
        self.settling = False
        self.retry_due = now() + pause if math.isfinite(pause) else None
        self.become(state)

    def lose(self) -> None:
        """Ask no more of a session whose wire is closed; the link decides what comes next."""
        if self.session is not None and self.session.wire.closed.is_set():
            # settling: calls wait a moment for the reason instead of failing without one
            self.session = None
            self.settling = True

    def fall_asleep(self) -> None:
        """It has had nothing to do for long enough: the next call wakes it."""
        self.wanted = anyio.Event()
        self.settling = False
        self.become(LinkState.DISCONNECTED)

    def close(self) -> None:
        """It is over: nobody need wait for it."""
        self.closing = True
        self.settling = False
        # last: the callers that it wakes look at the two above
        self._changed.ring()

    async def session_by(self, deadline: Deadline) -> Session:
        """The session, waited for while there is hope; a sleeping server is woken.

        Raises:
            Unavailable: There is none, and why.
        """
        try:
            with anyio.fail_after(deadline.at - now()):
                # looked at after every ring: another call may have lost the session in between
                while self.session is None:
                    if not self._wake() and not self.hopeful:
                        raise self.unavailable()
                    await self._changed.wait()
        except TimeoutError:
            raise self.unavailable(still_starting(deadline)) from None
        return self.session

    async def wait_lost(self, words: str) -> Unavailable:
        """What to tell a caller whose connection broke, once the reason is known."""
        # the exit code and standard error arrive a little later than the end of the pipe
        with anyio.move_on_after(FINAL_WORDS):
            while self.settling:
                await self._changed.wait()
        return self.unavailable(f"{words}: {self.failure or 'the reason is unknown'}")

    def _wake(self) -> bool:
        """Wake a sleeping server; returns whether it was asleep."""
        if not self.is_asleep or self.closing:
            return False
        self.settling = True
        self.wanted.set()
        return True

    def unavailable(self, words: str | None = None) -> Unavailable:
        failure = self.failure
        if words is None:
            if self.closing:
                words = "it was removed or replaced"
            elif self.state is LinkState.DISABLED:
                words = "it is disabled"
            else:
                words = str(failure or "it is not connected")
        hint = failure.hint if failure else None
        return Unavailable(self._name, words, hint=hint, failure=failure)


def still_starting(deadline: Deadline) -> str:
    """Why a call ends that waited for a server to come up."""
    return f"it is still starting, and the call timed out after {deadline.timeout:g} s"
