"""One configured server, run by one task: connected, watched, restarted."""

import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any
from urllib.parse import urlsplit

import anyio
import msgspec
from anyio import to_thread
from msgspec.structs import replace

from multitap.config.models import HttpServer, ServerConfig, StdioServer
from multitap.config.variables import may_wait
from multitap.errors import (
    AnswerTimeout,
    ConfigError,
    OwnerChanged,
    OwnerMoving,
    OwnerUnreachable,
    sole,
)
from multitap.events import Event, Failure, FailureCode, LinkState, Phase, ServerSnapshot
from multitap.principal import Person
from multitap.tasks import now
from multitap.telemetry.metrics import OPERATION_BOUNDS, Histogram
from multitap.upstream.availability import Availability
from multitap.upstream.backoff import Breaker, Paused, Restarts
from multitap.upstream.connect import (
    Approach,
    Attempt,
    Dial,
    Placement,
    Placements,
    era_after,
    first_approach,
    local_placements,
    next_approach,
)
from multitap.upstream.handshake import Era
from multitap.upstream.health import IdleTimeout, ProcessStopped, RestartRequested, Watcher
from multitap.upstream.lists import Listing, Offers
from multitap.upstream.notifications import Notifications
from multitap.upstream.questions import Handlers
from multitap.upstream.report import ServerReport
from multitap.upstream.requests import Attribution, RequestPath, ServerHabits
from multitap.upstream.session import Session, open_session
from multitap.upstream.spans import SpanWire
from multitap.upstream.start_queue import Rank, StartQueue
from multitap.upstream.tracing import Tracing
from multitap.wire.wire import Wire

PROBE = 1.2
"""Seconds a program of unknown era has to answer in the stateless one: others may stay silent."""
HTTP_PROBE = 5.0
"""The same over HTTP, where others refuse at once, and silence only means load."""

_OWNER_PAUSE = 1.0  # seconds at most: asking another replica is cheap
_MOVING_PAUSE = 0.2  # seconds; about as long as it takes to hear of a new owner

Expand = Callable[[str, ServerConfig], ServerConfig]
"""Expands the variables of a server's configuration; raises `ConfigError` if one has no value."""


class RememberedServer(msgspec.Struct, frozen=True):
    """Knowledge about a server from an earlier run."""

    era: Era | None = None
    offers: Offers | None = None
    was_up: bool | None = None
    """Whether its last start succeeded; None if unknown."""
    habits: ServerHabits | None = None
    """Its behaviour during calls; shared by all links to the server."""


class Link:
    """One server, run by one task: attempts, back-off, and its current state.

    The session is opened and closed inside `run`, because cancel scopes must be left in the task
    that entered them. Other tasks only send requests and read state. Callers use its parts:
    `availability` (can it be asked), `requests` (the way there), `listing` (what it offers),
    `notifications` (its own messages), `attribution` (to which call these belong) and `report`
    (warnings about it).

    `expand` puts in its variables, each time it is reached. `on_change` is called on every change
    of state or offers, `on_event` with everything else that happens.
    """

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        *,
        dial: Dial,
        place: Placements = local_placements,
        handlers: Handlers = Handlers(),
        remembered: RememberedServer = RememberedServer(),
        expand: Expand = lambda _, config: config,
        starts: StartQueue,
        health_interval: float,
        on_change: Callable[["Link"], None],
        on_event: Callable[[Event], None],
        restarts: Restarts | None = None,
        tracing: Tracing | None = None,
        extensions: Mapping[str, Any] | None = None,
        person: Person | None = None,
    ) -> None:
        self.name = name
        self.extensions = extensions
        """What it declares to the server besides MCP's capabilities; None: as the handlers say."""
        self.config = config
        self.person = person
        """Whose account it uses; None for the gateway's own."""
        self.era = remembered.era
        self.was_up = remembered.was_up
        """Whether its last start succeeded, in this run or an earlier one; None if unknown."""
        self.habits = remembered.habits or ServerHabits()
        self.restarts = restarts or Restarts()
        self.is_backing_off = False
        """Whether it waits for its next attempt."""
        self.task_tools = self.habits.task_tools
        self._dial = dial
        self._place = place
        self._handlers = handlers
        self._expand = expand
        self._start_queue = starts
        self._tracing = tracing or Tracing()
        self._attempt = Attempt()
        self.starts = 0
        """How often it was started or connected."""
        self.past_sessions: Histogram | None = None
        """How long its sessions lasted that have ended; None if none has."""
        self._is_ordered = False
        self._lost_healthy = False
        self.availability = Availability(
            name,
            LinkState.DISCONNECTED if config.enabled else LinkState.DISABLED,
            is_wanted=config.start != "lazy" or remembered.offers is None,
            on_change=lambda: on_change(self),
        )
        self.report = ServerReport(name, config.redact, on_event=on_event)
        self.attribution = Attribution(self.habits, mixes=isinstance(config, StdioServer))
        self.requests = RequestPath(config.limits, self.availability, self.attribution, self.report)
        # attributes, not methods: bound once, to save frames in every call
        self.request = self.requests.request
        self.may_mix = self.attribution.may_mix
        self.listing = Listing(config, remembered.offers, self.report, lambda: on_change(self))
        self.notifications = Notifications(
            self.availability,
            self.requests,
            self.report,
            on_unowned=handlers.said,
            log_level=config.log_level,
        )
        self._watcher = Watcher(
            config,
            health_interval,
            requests=self.requests,
            listing=self.listing,
            notifications=self.notifications,
            habits=self.habits,
        )

    @property
    def state(self) -> LinkState:
        return self.availability.state

    @property
    def failure(self) -> Failure | None:
        """Why it is not connected, or why it was last lost."""
        return self.availability.failure

    @property
    def session(self) -> Session | None:
        """The current session, if there is one."""
        return self.availability.session

    @property
    def is_settled(self) -> bool:
        """Whether it has answered, failed, or has no reason to start."""
        return self.availability.is_settled

    @property
    def offers(self) -> Offers | None:
        """Its current or last known offers; None if unknown."""
        return self.listing.offers

    @property
    def pid(self) -> int | None:
        """The process id of its program; None if it has not started, or is remote."""
        return self._attempt.evidence().pid

    @property
    def live(self) -> bool:
        """Whether its offers can be called: it is up, restarting, or asleep.

        A server that failed to restart is not, until it succeeds. One that waits for a login is:
        the call reports that, and a client may be asked to log in.
        """
        availability = self.availability
        if self.offers is None or availability.closing:
            return False
        if self.state is LinkState.NEEDS_AUTH:
            return True
        returning = availability.hopeful and not availability.failing
        return self.state is LinkState.CONNECTED or returning or availability.is_asleep

    async def run(self) -> None:
        """Stay connected until cancelled."""
        try:
            while True:
                await self.availability.wanted.wait()
                pause = await self._make_attempt()
                if pause > 0:
                    with anyio.move_on_after(pause):
                        await self._attempt.superseded.wait()
        finally:
            self.availability.close()

    def restart(self) -> None:
        """Restart now, ignoring back-off."""
        self.restarts.forget()
        self._is_ordered = True
        self.retry()

    def retry(self) -> None:
        """Try to connect now, unless the replicas of a cluster have agreed to wait."""
        if not self.was_up:
            self.was_up = None  # it may have been repaired, so it does not start last
        self.availability.wanted.set()
        attempt = self._attempt
        # a failed server shows its failure while it waits for its turn to start again
        is_ordered = attempt.is_ordered and attempt.connected_at is None
        is_restarting = self.state is LinkState.CONNECTING or (
            is_ordered and not self.is_backing_off
        )
        if not is_restarting:
            self.availability.settling = True
            self._attempt.superseded.set()

    def snapshot(self, *, tools: int, warnings: tuple[str, ...]) -> ServerSnapshot:
        availability, session = self.availability, self.session
        evidence = self._attempt.evidence()
        offers = self.offers or Offers()
        return ServerSnapshot(
            name=self.name,
            transport=session.wire.kind if session else self.config.transport,
            state=availability.state,
            failure=availability.failure,
            warnings=self.report.warnings(
                (*offers.warnings, *warnings), self.listing.warnings, evidence
            ),
            era=session.era.value if session else self.era and self.era.value,
            protocol_version=session.protocol_version if session else None,
            title=session.title if session else None,
            instructions=session.instructions if session else None,
            pid=evidence.pid if session else None,
            tools=tools,
            resources=len(offers.resources),
            templates=len(offers.templates),
            prompts=len(offers.prompts),
            starts=self.starts,
            since=availability.since,
            retry_at=availability.retry_due and time.time() + availability.retry_due - now(),
            in_flight=self.requests.slots.working,
            latency=self._watcher.latency,
            timings=dict(self._attempt.timings),
            stale=self.listing.is_stale,
        )

    async def _make_attempt(self) -> float:
        """Connect once, until the session ends; returns the seconds before the next attempt."""
        attempt = self._attempt = Attempt(  # this is the restart that was asked for
            restarts=self.restarts, is_first=self._lost_healthy, is_ordered=self._is_ordered
        )
        self._is_ordered = self._lost_healthy = self.is_backing_off = False
        self.starts += 1
        began = now()
        try:
            await self._live(attempt)
        except Exception as exc:  # noqa: BLE001 - boundary: a broken server must not affect others
            self.is_backing_off = True
            if (lasted := attempt.healthy_for) is not None:
                self.past_sessions = self.past_sessions or Histogram.empty(OPERATION_BOUNDS)
                self.past_sessions.observe(lasted, OPERATION_BOUNDS)
            pause = self._on_end(attempt, sole(exc), began)
        else:
            raise AssertionError("a life ends with an exception")
        if attempt.breaker is not None:
            pause = await self._count_failure(attempt.breaker, pause)
        return pause

    async def _count_failure(self, breaker: Breaker, pause: float) -> float:
        """Share a failure with other replicas; returns the seconds to wait."""
        availability = self.availability
        # without a time for the next attempt there was no failure, or one that waiting cannot mend
        if availability.retry_due is None or availability.failure is None:
            await breaker.give_up()
            return pause
        self._lost_healthy = pause == 0
        pause = await breaker.on_lost(self.restarts.history, pause, availability.failure)
        availability.retry_due = now() + pause
        return pause

    async def _live(self, attempt: Attempt) -> None:
        config = await _expand_config(self.name, self.config, self._expand)
        self.report.redact = config.redact
        approach = first_approach(config, self.era)
        while True:
            try:
                async with self._connect(approach, attempt) as (session, offers):
                    self._up(attempt, session, offers)
                    if attempt.breaker is not None:
                        await attempt.breaker.came_up()
                    await self._watch(attempt, session)
            except Exception as exc:
                cause, evidence = sole(exc), attempt.evidence()
                if isinstance(cause, OwnerChanged | OwnerUnreachable | Paused):
                    raise
                other = next_approach(approach, cause, attempt.phase, self.config, evidence)
                if other is None:
                    if attempt.phase is Phase.HANDSHAKE:
                        self.era = era_after(approach, cause, self.era, evidence)
                    raise
                approach = other

    @asynccontextmanager
    async def _connect(
        self, approach: Approach, attempt: Attempt
    ) -> AsyncGenerator[tuple[Session, Offers]]:
        """Connect the server: its turn to start, its wire, its handshake, its first lists."""
        if not self.availability.failing:  # a failed server shows its failure until its turn
            self.availability.become(LinkState.CONNECTING)
        async with (
            self._find_place(approach, attempt) as placement,
            # a server that runs elsewhere costs no CPU here
            self._start_queue.turn(Rank.after(self.was_up))
            if placement.is_here and isinstance(approach.config, StdioServer)
            else nullcontext() as start,
        ):
            if self.availability.state is not LinkState.CONNECTING:
                self.availability.become(LinkState.CONNECTING)
            attempt.begin()
            with anyio.fail_after(self.config.connect_timeout) as clock:
                async with self._open_wire(placement.dial, approach, attempt) as wire:
                    if start is not None:
                        start.on_spawned(wire.evidence().pid)
                    attempt.on_reached(Phase.HANDSHAKE)
                    session = await self._open_session(approach, wire)
                    async with self.notifications.receive(session):
                        attempt.on_reached(Phase.LIST)
                        offers = await self.listing.fetch(session)
                        attempt.on_reached(Phase.CALL)
                        clock.deadline = math.inf  # the time limit was only for connecting
                        if start is not None:
                            start.over()
                        with self._tracing.during(session, self.report.redact):
                            yield session, offers

    @asynccontextmanager
    async def _find_place(self, approach: Approach, attempt: Attempt) -> AsyncGenerator[Placement]:
        is_placed = False
        try:
            with anyio.fail_after(self.config.connect_timeout) as clock:
                async with self._place(self, approach.config, self._dial) as placement:
                    await attempt.wait_admitted(placement.breaker)
                    clock.deadline, is_placed = math.inf, True
                    yield placement
        except TimeoutError:
            if not is_placed:
                raise OwnerUnreachable("no replica of the cluster runs it", sent=False) from None
            raise

    @asynccontextmanager
    async def _open_wire(
        self, dial: Dial, approach: Approach, attempt: Attempt
    ) -> AsyncGenerator[Wire]:
        async with dial(self.name, approach.config) as wire:
            attempt.wire = wire
            try:
                spans = self._tracing.spans
                outer = wire if spans is None else SpanWire(wire, self.name, spans, _peer(approach))
                yield self._tracing.through(outer, self.report.redact)
            finally:
                attempt.stopped = wire.is_stopped()  # read before the process is ended

    async def _open_session(self, approach: Approach, wire: Wire) -> Session:
        return await open_session(
            self.name,
            wire,
            handlers=self._handlers,
            on_notification=self.notifications.on_notification,
            on_unaddressed=self.habits.learn,
            redact=self.report.redact,
            era=approach.era,
            probe=PROBE if wire.kind == "stdio" else HTTP_PROBE,
            timeout=self.config.connect_timeout,
            log_level=self.config.log_level,
            extensions=self.extensions,
        )

    def _up(self, attempt: Attempt, session: Session, offers: Offers) -> None:
        attempt.connected_at = self.requests.last_used = now()
        self.era = session.era
        self.was_up = True
        self.attribution.on_connected(session)
        self.listing.on_connected(offers)
        self.availability.up(session)

    async def _watch(self, attempt: Attempt, session: Session) -> None:
        """Watch the session, and mark the server as lost before its process is ended."""
        try:
            await self._watcher.watch(session, attempt.superseded)
        except Exception as exc:
            if not isinstance(cause := sole(exc), RestartRequested | IdleTimeout | OwnerChanged):
                self.availability.failure = self._failure(attempt, cause)
            self.availability.session = None
            self.availability.settling = True
            self.availability.become(LinkState.DISCONNECTED)
            raise

    def _on_end(self, attempt: Attempt, exc: BaseException, began: float) -> float:
        availability = self.availability
        availability.session = availability.retry_due = None
        if isinstance(exc, RestartRequested | OwnerChanged):
            availability.become(LinkState.CONNECTING)
            return 0.0
        if isinstance(exc, OwnerMoving):
            # as while it starts: calls wait for the new owner, within their deadlines
            availability.become(LinkState.CONNECTING)
            return _MOVING_PAUSE
        if isinstance(exc, IdleTimeout):
            self.listing.is_stale = True
            availability.fall_asleep()
            return 0.0
        if isinstance(exc, Paused):
            self.starts -= 1  # it came to none
            state = _state_after(exc.failure, exc.seconds, was_up=False)
            availability.down(exc.failure, exc.seconds, state, is_failing=True)
            return exc.seconds
        return self._on_failed(attempt, exc, began)

    def _on_failed(self, attempt: Attempt, exc: BaseException, began: float) -> float:
        if _is_start(self.config, attempt, exc):
            self.restarts.on_started(began)
        failure = self._failure(attempt, exc)
        tripped = self.restarts.tripped(now())
        pause = self.restarts.on_lost(now(), healthy_for=attempt.healthy_for)
        if not failure.code.heals:
            pause = math.inf
        elif not self.config.reconnect:
            pause = math.inf
            # the hint of a server that never came up is more useful
            if attempt.connected_at is not None:
                failure = _stays_down(failure, self.name)
        elif isinstance(exc, OwnerUnreachable):
            pause = min(pause, _OWNER_PAUSE)
        elif tripped:
            failure = _crash_loop(failure)
        # people have their own: whether the gateway has one, too, concerns only its own user
        if self.person is not None or not self.config.is_per_user or self.config.service_account:
            self.report.log_failure(failure, attempt.healthy_for)
        is_failing = attempt.connected_at is None
        if is_failing:
            self.was_up = False
        state = _state_after(failure, pause, was_up=not is_failing)
        self.availability.down(failure, pause, state, is_failing=is_failing)
        return pause

    def _failure(self, attempt: Attempt, exc: BaseException) -> Failure:
        if attempt.stopped and isinstance(exc, TimeoutError | AnswerTimeout):
            exc = ProcessStopped()
        from multitap.upstream.diagnosis import diagnose  # noqa: PLC0415 - most servers work

        return diagnose(
            self.name,
            exc,
            phase=attempt.phase,
            evidence=attempt.evidence(),
            at=time.time(),
            timings=attempt.timings,
            redact=self.report.redact,
        )


async def _expand_config(name: str, config: ServerConfig, expand: Expand) -> ServerConfig:
    """The configuration with expanded variables.

    Raises:
        ConfigError: A variable has no value, or is not resolved in time.
    """
    if not may_wait(config):
        return expand(name, config)
    # a keyring may ask the user, and files may be on a slow disk
    with anyio.move_on_after(config.connect_timeout):
        return await to_thread.run_sync(expand, name, config, abandon_on_cancel=True)
    raise ConfigError(
        f"its variables could not be resolved within {config.connect_timeout:g} s",
        hint="unlock the keyring, or check the files that it names",
    )


def _is_start(config: ServerConfig, attempt: Attempt, exc: BaseException) -> bool:
    """Whether the attempt started a program, rather than connect to a URL or a replica."""
    is_elsewhere = attempt.wire is not None and attempt.wire.kind == "cluster"
    return (
        isinstance(config, StdioServer)
        and not is_elsewhere
        and not isinstance(exc, OwnerUnreachable)
    )


def _state_after(failure: Failure, pause: float, *, was_up: bool) -> LinkState:
    """The state of a server between two attempts."""
    if failure.code is FailureCode.AUTH:
        return LinkState.NEEDS_AUTH
    if failure.code is FailureCode.CRASH_LOOP or not failure.code.heals or not was_up:
        return LinkState.ERROR
    return LinkState.CONNECTING if pause == 0 else LinkState.DISCONNECTED


def _stays_down(failure: Failure, name: str) -> Failure:
    hint = f"`reconnect` is off for it: `multitap restart {name}` starts it again"
    return replace(failure, hint=f"{failure.hint}; {hint}" if failure.hint else hint)


def _crash_loop(failure: Failure) -> Failure:
    # short, so that a line of a terminal has room for the reason
    message = f"it keeps crashing: {failure.message}"
    return replace(failure, code=FailureCode.CRASH_LOOP, message=message)


def _peer(approach: Approach) -> tuple[str, int] | None:
    """The host and port of a server with an address."""
    if not isinstance(approach.config, HttpServer):
        return None
    url = urlsplit(approach.config.url)
    try:
        port = url.port
    except ValueError:  # an invalid address is reported when it is used
        port = None
    return (url.hostname or "", port or (443 if url.scheme == "https" else 80))
