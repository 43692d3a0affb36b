"""Opens a session with a server and lists what it offers."""

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Protocol

import anyio

from multitap.config import ServerConfig, StdioServer
from multitap.events import LinkState, Phase
from multitap.faults import OwnerUnreachable
from multitap.records import dataclass
from multitap.upstream.approach import Approach
from multitap.upstream.attempt import Attempt
from multitap.upstream.availability import Availability
from multitap.upstream.breaker import Breaker
from multitap.upstream.handlers import Handlers
from multitap.upstream.listing import Listing
from multitap.upstream.notifications import Notifications
from multitap.upstream.oauth.login_sharing import LoginSharing
from multitap.upstream.offer_lists import Offers
from multitap.upstream.server_habits import ServerHabits
from multitap.upstream.server_report import ServerReport
from multitap.upstream.session import Session, open_session
from multitap.upstream.start_queue import Rank, StartQueue
from multitap.upstream.tracing import Tracing
from multitap.wire.wire import Wire

Dial = Callable[[str, ServerConfig], AbstractAsyncContextManager[Wire]]
"""Opens a wire; the only seam between a link and the network."""


class Placement(Protocol):
    """Where a server runs: in this process, or in another replica of a cluster."""

    @property
    def is_here(self) -> bool: ...

    @property
    def dial(self) -> Dial: ...

    @property
    def breaker(self) -> Breaker | None:
        """Coordinates attempts with other replicas; None if there are none."""
        ...


class Placements(Protocol):
    """Decides where servers run: in this process, or in another replica of a cluster."""

    @property
    def logins(self) -> LoginSharing | None:
        """Shares logins with other replicas; None if there are none."""
        ...

    def __call__(
        self, name: str, config: ServerConfig, dial: Dial, /
    ) -> AbstractAsyncContextManager[Placement]:
        """Where a server runs; `dial` opens its wire if that is in this process."""
        ...


@dataclass(frozen=True, slots=True)
class LocalPlacement:
    """See `Placement`."""

    dial: Dial
    is_here: bool = True
    breaker: Breaker | None = None


@dataclass(frozen=True, slots=True)
class LocalPlacements:
    """See `Placements`; for a gateway without a cluster."""

    logins: LoginSharing | None = None

    def __call__(
        self,
        name: str,  # noqa: ARG002 - the same for all of them
        config: ServerConfig,  # noqa: ARG002
        dial: Dial,
        /,
    ) -> AbstractAsyncContextManager[Placement]:
        return nullcontext(LocalPlacement(dial))


local_placements = LocalPlacements()


PROBE = 1.2
"""Seconds a program of unknown era has to answer in the new one: old ones may stay silent."""
HTTP_PROBE = 5.0
"""The same over HTTP, where old servers refuse at once, and silence only means load."""


class Connector:
    """Connects one server: its turn to start, its wire, its handshake, its first lists.

    Args:
        name: Which server.
        config: How long connecting may take, and what it should log.
        dial: Opens its wire if it runs here.
        place: Decides where it runs.
        handlers: Answer what it asks.
        starts: Queues programs that start.
        availability: Notified when it begins.
        notifications: Receives its notifications.
        listing: Fetches its lists.
        habits: Notified when it asks without saying for which call.
        tracing: Traces its messages.
        report: Has what removes its secrets, which are known once its variables are expanded.
    """

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        *,
        dial: Dial,
        place: Placements,
        handlers: Handlers,
        starts: StartQueue,
        availability: Availability,
        notifications: Notifications,
        listing: Listing,
        habits: ServerHabits,
        tracing: Tracing,
        report: ServerReport,
    ) -> None:
        self._name = name
        self._config = config
        self._dial = dial
        self._place = place
        self._handlers = handlers
        self._starts = starts
        self._availability = availability
        self._notifications = notifications
        self._listing = listing
        self._habits = habits
        self._tracing = tracing
        self._report = report

    @asynccontextmanager
    async def connect(
        self, approach: Approach, attempt: Attempt, rank: Rank
    ) -> AsyncGenerator[tuple[Session, Offers]]:
        """Within the block, the server is connected; yields its session and its offers.

        Must be entered and left in the link's own task, like its cancel scopes.

        Args:
            approach: The way to reach it.
            attempt: Records the progress.
            rank: When its program may start.
        """
        if not self._availability.failing:  # a failed server shows its failure until its turn
            self._availability.become(LinkState.CONNECTING)
        async with (
            self._find_place(approach, attempt) as placement,
            # a server that runs elsewhere costs no CPU here
            self._starts.turn(rank)
            if placement.is_here and isinstance(approach.config, StdioServer)
            else nullcontext() as start,
        ):
            if self._availability.state is not LinkState.CONNECTING:
                self._availability.become(LinkState.CONNECTING)
            attempt.begin()
            with anyio.fail_after(self._config.connect_timeout) as clock:
                async with self._open_wire(placement.dial, approach, attempt) as wire:
                    if start is not None:
                        start.on_spawned(wire.evidence().pid)
                    attempt.on_reached(Phase.HANDSHAKE)
                    async with self._conversation(approach, wire) as session:
                        attempt.on_reached(Phase.LIST)
                        offers = await self._listing.fetch(session)
                        attempt.on_reached(Phase.CALL)
                        clock.deadline = math.inf  # the time limit was only for connecting
                        if start is not None:
                            start.over()
                        with self._tracing.during(session, self._report.redact):
                            yield session, offers

    @asynccontextmanager
    async def _find_place(self, approach: Approach, attempt: Attempt) -> AsyncGenerator[Placement]:
        is_known = False
        try:
            with anyio.fail_after(self._config.connect_timeout) as clock:
                async with self._place(self._name, approach.config, self._dial) as placement:
                    await attempt.wait_admitted(placement.breaker)
                    clock.deadline, is_known = math.inf, True
                    yield placement
        except TimeoutError:
            if not is_known:
                raise OwnerUnreachable("no replica of the cluster runs it", sent=False) from None
            raise

    @asynccontextmanager
    async def _open_wire(
        self, dial: Dial, approach: Approach, attempt: Attempt
    ) -> AsyncGenerator[Wire]:
        async with dial(self._name, approach.config) as wire:
            attempt.wire = wire
            try:
                yield self._tracing.through(wire, self._report.redact)
            finally:
                attempt.stopped = wire.is_stopped()  # read before the process is ended

    @asynccontextmanager
    async def _conversation(self, approach: Approach, wire: Wire) -> AsyncGenerator[Session]:
        async with (
            open_session(
                self._name,
                wire,
                handlers=self._handlers,
                on_notification=self._notifications.on_notification,
                on_unaddressed=self._habits.learn,
                redact=self._report.redact,
                era=approach.era,
                probe=PROBE if wire.kind == "stdio" else HTTP_PROBE,
                timeout=self._config.connect_timeout,
                log_level=self._config.log_level,
            ) as session,
            self._notifications.receive(session),
        ):
            yield session
