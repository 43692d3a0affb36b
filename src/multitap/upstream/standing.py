"""Whether a server can be asked right now, and if not, why, and whether to wait."""

import time
from collections.abc import Callable

import anyio

from multitap.errors import Unavailable
from multitap.events import Failure, LinkState
from multitap.upstream.session import Session
from multitap.upstream.signals import Bell
from multitap.upstream.trial import now
from multitap.wire.deadline import Deadline

SOON = 1.0
"""Seconds until the next attempt for which a call rather waits than fails."""
FINAL_WORDS = 0.3
"""Seconds a failed call waits for the reason to be known in full."""


class Standing:
    """How one server stands; changed by its link, looked at by its callers.

    Args:
        name: Which server.
        state: What it begins with.
        settling: Whether it will be tried without anybody asking for it.
        on_change: Told of every change.
    """

    def __init__(
        self, name: str, state: LinkState, *, settling: bool, on_change: Callable[[], None]
    ) -> None:
        self.state = state
        self.since = time.time()
        self.failure: Failure | None = None
        self.session: Session | None = None
        self.retry_due: float | None = None
        """When the next attempt is due, by the loop's clock."""
        self.closing = False
        self.failing = False
        """Whether the last attempt came to nothing."""
        self.first_settled = anyio.Event()
        self.settling = settling
        """Whether its state is about to be decided: it starts, or its end is looked into."""
        self._name = name
        self._changed = Bell()
        self._on_change = on_change
        if self.settled:
            self.first_settled.set()

    @property
    def settled(self) -> bool:
        return not self.settling and self.state is not LinkState.CONNECTING

    @property
    def hopeful(self) -> bool:
        """Whether it is worth a call's while to wait for it."""
        if self.closing:
            return False
        if self.settling or self.state is LinkState.CONNECTING:
            return True
        return self.retry_due is not None and self.retry_due - now() <= SOON

    def become(self, state: LinkState) -> None:
        self.state = state
        self.since = time.time()
        self._changed.ring()
        if self.settled:
            self.first_settled.set()
        self._on_change()

    def up(self, session: Session) -> None:
        self.session = session
        self.failure = self.retry_due = None
        self.settling = self.failing = False
        self.become(LinkState.CONNECTED)

    def lose(self) -> None:
        """Ask no more of a session whose wire is closed; the link decides what comes next."""
        if self.session is not None and self.session.wire.closed.is_set():
            self.session = None
            self.settling = True

    def close(self) -> None:
        """It is over: nobody need wait for it any more."""
        self.closing = True
        self.settling = False
        self._changed.ring()

    async def session_by(self, deadline: Deadline, wake: Callable[[], bool]) -> Session:
        """The session, waited for while there is hope.

        Args:
            deadline: When to give up.
            wake: Has a sleeping server started, and says whether it was asleep.

        Raises:
            Unavailable: There is none, and why.
        """
        try:
            with anyio.fail_after(deadline.at - now()):
                while self.session is None:
                    if not wake() and not self.hopeful:
                        raise self.unavailable()
                    await self._changed.wait()
        except TimeoutError:
            raise self.unavailable(still_starting(deadline)) from None
        return self.session

    async def lost(self, words: str) -> Unavailable:
        """What to tell a caller whose connection broke, once the reason is known."""
        with anyio.move_on_after(FINAL_WORDS):
            while self.settling:
                await self._changed.wait()
        return self.unavailable(f"{words}: {self.failure or 'it is not known why'}")

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
    return f"it is still starting, and the call's {deadline.timeout:g} s are over"
