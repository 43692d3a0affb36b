"""One configured server: connected, watched and brought back."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

import anyio
from msgspec import Raw

from multitap.config import ServerConfig, StdioServer
from multitap.errors import (
    LONGEST_QUOTE,
    BadAnswer,
    CallTimeout,
    MultitapError,
    Overloaded,
    ServerError,
    Unavailable,
    quoted,
    shortened,
    sole,
)
from multitap.events import (
    Event,
    Failure,
    FailureCode,
    LinkState,
    Phase,
    ServerLog,
    ServerSnapshot,
    Warned,
)
from multitap.tasks import in_task
from multitap.upstream.approach import Approach, era_after, first_approach, next_approach
from multitap.upstream.backoff import BURST, PROVED, WINDOW, Restarts
from multitap.upstream.failure import Stopped, diagnose
from multitap.upstream.habits import Habits
from multitap.upstream.handlers import Handlers
from multitap.upstream.listing import Offers
from multitap.upstream.news import News
from multitap.upstream.session import Era, Session, open_session
from multitap.upstream.signals import Latch
from multitap.upstream.slots import Full, Slots
from multitap.upstream.standing import Standing
from multitap.upstream.start_queue import Rank, Start, StartQueue
from multitap.upstream.trial import Trial, now
from multitap.upstream.watch import (
    Again,
    Asleep,
    watch_health,
    watch_idleness,
    watch_process,
    watch_wire,
    watch_wish,
)
from multitap.wire.request import Request
from multitap.wire.wire import (
    AnswerInvalid,
    AnswerTimeout,
    RequestFailed,
    RpcError,
    Wire,
    WireClosed,
    WireFault,
)

logger = logging.getLogger(__name__)

Dial = Callable[[str, ServerConfig], AbstractAsyncContextManager[Wire]]
"""Opens a wire; the one seam between a link and the world."""
Expand = Callable[[str, ServerConfig], ServerConfig]
"""Puts the variables into a server's configuration; a `ConfigError` where one has no value."""

PROBE = 1.2
"""Seconds a server of unknown era has to answer in the new one."""
IDLE_TIMEOUT = 300.0

_MIXING = frozenset({"stdio", "sse"})
"""Wires on which a server cannot say for which call it asks or logs."""
_MOST_REPEATS = 2  # of a request that got lost
_MOST_REPORTED = 32  # failures that are remembered, so that each is logged once
_MOST_MISFITS = 32  # tools that are warned about
_MOST_WARNINGS, _WARNING = 20, 500  # of one server, and characters of each
_LOG_MESSAGE = 4000  # characters of one that a server sends


@dataclass(frozen=True, slots=True)
class Known:
    """What an earlier run learned about a server."""

    era: Era | None = None
    offers: Offers | None = None
    was_up: bool | None = None
    """Whether its last start succeeded; None: nobody knows."""
    habits: Habits | None = None
    """How it behaves in the middle of calls; one for all links to the server."""


class Link:
    """One server's life, run by one task.

    The session is opened and closed inside `run`, because cancel scopes must be left in the task
    that entered them. Everybody else only calls `request` and looks.

    Args:
        name: What the configuration calls the server.
        config: How to reach it.
        dial: Opens its wire.
        handlers: Who answers what it asks.
        known: What an earlier run learned.
        expand: Puts in its variables, each time it is reached.
        starts: Where a program waits for its turn, so that not too many start at once.
        health_interval: Seconds between health checks.
        on_change: Told of every change of state or offers.
        on_event: Told of what else happens.
    """

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        *,
        dial: Dial,
        handlers: Handlers = Handlers(),
        known: Known = Known(),
        expand: Expand = lambda _, config: config,
        starts: StartQueue,
        health_interval: float,
        on_change: Callable[["Link"], None],
        on_event: Callable[[Event], None],
        restarts: Restarts | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.offers: Offers | None = known.offers
        self.stale = known.offers is not None
        self.era = known.era
        self.was_up = known.was_up
        """Whether its last start, in this run or an earlier one, succeeded; None: nobody knows."""
        self.habits = known.habits or Habits()
        self._mixes = isinstance(config, StdioServer)
        self._quiet: set[str] = set()
        self.logs = False
        """Whether it says that it logs."""
        self.is_tried = False
        """Whether it works on what it was never asked for, so that log messages may be its own."""
        self._redact = config.redact
        self._dial = dial
        self._expand = expand
        self._handlers = handlers
        self._start_queue = starts
        self._health_interval = config.health_interval or health_interval
        self._on_change = on_change
        self._restarts = restarts or Restarts()
        self._trial = Trial()
        self._slots = Slots(config.limits.in_flight, config.limits.queue)
        self._on_event = on_event
        self._news = News(name, self._tell, said=handlers.said, log_level=config.log_level)
        self._wanted = anyio.Event()
        self._poked = Latch()
        self._doubted = Latch()
        self._starts = 0
        self._latency: float | None = None
        self._warning: str | None = None
        self._reported: set[str] = set()
        """Failures that were logged since it last proved healthy."""
        self._misfits: dict[str, str] = {}
        """By tool: what was wrong with arguments that were passed on all the same."""
        self._odd_results: dict[tuple[str, str], str] = {}
        """By tool and kind of trouble: what was wrong with its results."""
        self._unanswered = False
        self._clock = asyncio.get_running_loop().time  # to find the loop costs more than to ask it
        self._last_used = now()
        lazy = config.start == "lazy" and known.offers is not None
        if not lazy:
            self._wanted.set()
        self._standing = Standing(
            name,
            LinkState.DISCONNECTED if config.enabled else LinkState.DISABLED,
            settling=config.enabled and not lazy,
            on_change=lambda: on_change(self),
        )

    @property
    def state(self) -> LinkState:
        return self._standing.state

    @property
    def failure(self) -> Failure | None:
        """Why it is not connected, or why it was last lost."""
        return self._standing.failure

    @property
    def session(self) -> Session | None:
        """The live conversation, while there is one."""
        return self._standing.session

    @property
    def settled(self) -> bool:
        """Whether it has answered, failed, or has no reason to start."""
        return self._standing.settled

    @property
    def settling(self) -> bool:
        """Whether its first attempt, or one that was asked for, is still under way."""
        return self._standing.settling

    @property
    def first_settled(self) -> anyio.Event:
        """Set once it has settled for the first time."""
        return self._standing.first_settled

    @property
    def pid(self) -> int | None:
        """Its program, once that is started; None for a server that is reached elsewhere."""
        return self._trial.evidence().pid

    @property
    def live(self) -> bool:
        """Whether its offers can be called: it is up, coming up again, or waiting to be woken.

        One that failed to come up again is not, however often it is tried, until it succeeds.
        """
        standing = self._standing
        if self.offers is None or standing.closing:
            return False
        returning = standing.hopeful and not standing.failing
        return self.state is LinkState.CONNECTED or returning or self.asleep

    @property
    def asleep(self) -> bool:
        """Whether it is lazy and waits for a call."""
        return (
            self.config.start == "lazy"
            and self.state is LinkState.DISCONNECTED
            and not self._wanted.is_set()
        )

    def may_mix(self, subject: str) -> bool:
        """Whether a request may bring questions or log messages that do not say whose they are.

        Args:
            subject: What is asked for: a tool's own name, or a method.
        """
        mixes = self._mixes and (self.is_tried or subject not in self._quiet)
        return self.habits.asks or mixes

    def is_quiet(self, subject: str) -> bool:
        """Whether it has answered that before without asking or logging."""
        return subject in self._quiet

    def was_quiet(self, subject: str) -> None:
        """Note what it answered without asking or logging, unless it has done so before."""
        if not self.habits.asks:
            self._quiet.add(subject)

    def serves_only(self, party: object) -> bool:
        """Whether it works on no call of anybody else."""
        session = self.session
        return session is None or session.wire.serves_only(party)

    async def run(self) -> None:
        """Stay connected until cancelled."""
        try:
            while True:
                await self._wanted.wait()
                pause = await self._attempt()
                if pause > 0:
                    with anyio.move_on_after(pause):
                        await self._poked.wait()
        finally:
            self._standing.close()

    async def request(self, request: Request) -> Raw:
        """Ask the server and return its result, undecoded.

        The one way of a request to a server: a slot is taken and given back here, and here it is
        decided whether what got lost is sent again.

        Raises:
            UpstreamError: Which one says what went wrong.
        """
        slots, rival = self._slots, request.rival
        if not slots.take(rival):
            await self._queue(request)
        self._last_used = self._clock()
        try:
            try:
                session = self._standing.session or await self._session(request)
                result = await session.request(request)
            except (WireFault, RpcError) as fault:
                lost = fault
            else:
                self._unanswered = False
                return result
            return await self._go_into(request, lost)
        finally:
            slots.give(rival)
            self._last_used = self._clock()
            if self.habits.asks or self.is_tried:  # who waits for the end may have their turn
                self.habits.changed.ring()

    async def _session(self, request: Request) -> Session:
        await in_task(request.light)
        return await self._standing.session_by(request.deadline, self._wake)

    async def _go_into(self, request: Request, fault: WireFault | RpcError) -> Raw:
        """Send a request again if it may be, or find out why it failed.

        A second time only if the first one met a session that is gone, and provably did nothing.
        """
        await in_task(request.light)
        fault.__traceback__ = None  # or it would keep the frames, and they what was received
        self._doubt(fault)
        repeats = 0
        while repeats < _MOST_REPEATS and _may_repeat(
            fault, harmless=request.repeatable and not repeats
        ):
            repeats += 1
            session = self._standing.session or await self._session(request)
            try:
                result = await session.request(request)
            except (WireFault, RpcError) as again:
                self._doubt(again)
                fault = again
            else:
                self._unanswered = False
                return result
        raise await self._public(fault, request.method) from None

    @property
    def is_followed(self) -> bool:
        """Whether anybody wants to hear of changes of its resources."""
        return self._news.is_followed

    async def subscribe(self, uri: str) -> None:
        """Ask to be told when a resource changes; kept through restarts.

        Raises:
            UpstreamError: The server refuses or does not answer.
        """
        try:
            await self._news.subscribe(uri, self.session)
        except (RpcError, WireFault) as exc:
            raise await self._public(exc, "resources/subscribe") from None

    async def unsubscribe(self, uri: str) -> None:
        try:
            await self._news.unsubscribe(uri, self.session)
        except (RpcError, WireFault) as exc:
            raise await self._public(exc, "resources/unsubscribe") from None

    async def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Notify the server, if it is there and of the era in which clients do that."""
        session = self.session
        if session is not None and session.era is Era.HANDSHAKE:
            await session.wire.notify(method, params)

    @property
    def log_level(self) -> str | None:
        """From which level on the server was asked to send log messages; None: as it likes."""
        return self._news.log_level

    async def settle(self, timeout: float) -> None:
        """Wait until it has read all that it was told, so that it says no more of calls given up.

        Args:
            timeout: Seconds after which it is left at that.
        """
        if (session := self.session) is not None:
            with contextlib.suppress(WireFault):
                await session.alive(timeout)

    async def want_logs(self, level: str) -> None:
        """Have the server send log messages from this level on, now and after restarts.

        Raises:
            UpstreamError: The server refuses or does not answer.
        """
        try:
            await self._news.want_logs(level, self.session)
        except (RpcError, WireFault) as exc:
            raise await self._public(exc, "logging/setLevel") from None

    def expect(self, offers: Offers | None) -> None:
        """List what its predecessor had until it is up itself."""
        self.offers = offers
        self.stale = offers is not None

    def restart(self) -> None:
        """Start anew at once, whatever kept it from it."""
        self._restarts.forget()
        if not self.was_up:
            self.was_up = None  # who asks for it may have mended it: it need not start last
        self._wanted.set()
        if self.state is not LinkState.CONNECTING:  # else it is starting anew already
            self._standing.settling = True
            self._poked.set()

    async def drain(self, timeout: float) -> None:
        """Take no new calls and wait for those under way."""
        self._standing.closing = True
        with anyio.move_on_after(timeout):
            while self._slots.working:
                await anyio.sleep(0.01)

    def redacted(self, text: str) -> str:
        """`text` without what the server was given in confidence."""
        return self._redact(text)

    def redacted_data(self, value: Any) -> Any:
        """Plain data without it; the very same where it holds nothing of the kind."""
        return self._redact.data(value)

    def note_misfit(self, tool: str, words: str) -> None:
        """Warn, once for each tool, that a call was passed on whose arguments do not fit."""
        if tool in self._misfits or len(self._misfits) >= _MOST_MISFITS:
            return
        warning = f"arguments for {quoted(tool)} that do not fit were passed on: {words}"
        self._misfits[tool] = warning
        self._tell(Warned(self.name, warning))

    def note_result(self, tool: str, words: str) -> None:
        """Warn, once for each tool and kind of trouble, of what is wrong with a result.

        Args:
            tool: By the server's own name.
            words: What is wrong: the kind of trouble, a colon, the details.
        """
        key = (tool, words.partition(":")[0])
        if key in self._odd_results or len(self._odd_results) >= _MOST_MISFITS:
            return
        warning = f"in a result of {quoted(tool)}, {words}"
        self._odd_results[key] = warning
        self._tell(Warned(self.name, warning))

    def snapshot(self, *, tools: int, warnings: tuple[str, ...]) -> ServerSnapshot:
        standing, session = self._standing, self.session
        evidence = self._trial.evidence()
        offers = self.offers or Offers()
        own = [self._warning] if self._warning else []
        own += (
            f"its {key} could not be fetched and will be asked for again: {why}"
            for key, why in offers.missing.items()
        )
        own += (*self._misfits.values(), *self._odd_results.values())
        if evidence.noise:
            times = "once" if evidence.noise == 1 else f"{evidence.noise} times"
            own.append(f"it wrote what is not a message, {times}: {evidence.noise_sample!r}")
        return ServerSnapshot(
            name=self.name,
            transport=session.wire.kind if session else self.config.transport,
            state=standing.state,
            failure=standing.failure,
            warnings=(
                *self._bounded((*offers.warnings, *warnings)),
                *map(self._worded, own),
            ),
            era=session.era.value if session else self.era and self.era.value,
            protocol_version=session.protocol_version if session else None,
            title=self._said(session.title) if session else None,
            instructions=self._said(session.instructions) if session else None,
            pid=evidence.pid if session else None,
            tools=tools,
            resources=len(offers.resources),
            templates=len(offers.templates),
            prompts=len(offers.prompts),
            starts=self._starts,
            since=standing.since,
            retry_at=standing.retry_due and time.time() + standing.retry_due - now(),
            in_flight=self._slots.working,
            latency=self._latency,
            timings=dict(self._trial.timings),
            stale=self.stale,
        )

    def _bounded(self, warnings: tuple[str, ...]) -> tuple[str, ...]:
        """The first warnings, each without secrets and not too long."""
        told = [self._worded(warning) for warning in warnings[:_MOST_WARNINGS]]
        if (more := len(warnings) - len(told)) > 0:
            told.append(f"{more:,} more warnings like these")
        return tuple(told)

    def _worded(self, warning: str, limit: int = _WARNING) -> str:
        return shortened(self._redact(shortened(warning, 2 * limit)), limit)

    def _said(self, text: str | None) -> str | None:
        return None if text is None else self._redact(text)

    async def _queue(self, request: Request) -> None:
        await in_task(request.light)
        deadline = request.deadline
        try:
            with anyio.fail_after(deadline.at - self._clock()):
                await self._slots.wait(request.rival)
        except Full as exc:
            raise Overloaded(
                self.name,
                str(exc),
                hint="call less at once, or raise `limits.queue`",
            ) from None
        except TimeoutError:
            words = f"no turn within {deadline.timeout:g} s: it is busy"
            raise CallTimeout(self.name, words) from None

    def _wake(self) -> bool:
        """Have a sleeping server started; whether it was asleep."""
        if not self.asleep or self._standing.closing:
            return False
        self._standing.settling = True
        self._wanted.set()
        return True

    def _doubt(self, fault: WireFault | RpcError) -> None:
        """Let a failed request be a reason to look after the server."""
        if isinstance(fault, WireClosed):
            self._standing.lose()
        elif not isinstance(fault, AnswerInvalid | RpcError):
            self._unanswered = isinstance(fault, AnswerTimeout)
            self._doubted.set()

    async def _public(self, fault: WireFault | RpcError, method: str) -> MultitapError:
        words = self._redact(str(fault))
        match fault:
            case RpcError():
                data = self._redact.data(fault.data)
                return ServerError(self.name, words, code=fault.code, data=data)
            case AnswerTimeout():
                return CallTimeout(self.name, words, hint="raise `timeout` if it needs that long")
            case AnswerInvalid():
                return BadAnswer(self.name, words)
            case WireClosed():
                return await self._standing.lost(f"the connection was lost during {method!r}")
            case _:
                return Unavailable(self.name, words, failure=self.failure)

    async def _attempt(self) -> float:
        """Be connected once, for as long as it lasts; seconds to wait before the next time."""
        trial = self._trial = Trial()
        self._poked = Latch()  # whoever wanted a new start gets this one
        self._starts += 1
        if isinstance(self.config, StdioServer):  # knocking at an address starts nothing
            self._restarts.started(now())
        try:
            await self._live(trial)
        except Exception as exc:  # noqa: BLE001 - boundary: one broken server stays its own problem
            return self._ended(trial, sole(exc))
        raise AssertionError("a life ends with an exception")

    def _ended(self, trial: Trial, exc: BaseException) -> float:
        standing = self._standing
        standing.session = standing.retry_due = None
        if isinstance(exc, Again):
            standing.become(LinkState.CONNECTING)
            return 0.0
        if isinstance(exc, Asleep):
            self._wanted = anyio.Event()
            self.stale = True
            standing.settling = False
            standing.become(LinkState.DISCONNECTED)
            return 0.0
        failure = self._failure(trial, exc)
        tripped = self._restarts.tripped(now())
        pause = self._restarts.lost(now(), healthy_for=trial.healthy_for)
        if not failure.code.heals:
            pause = math.inf
        elif not self.config.reconnect:
            pause = math.inf
            if trial.connected_at is not None:  # one that never came up has a hint that helps more
                failure = _stays_down(failure, self.name)
        elif tripped:
            failure = _crash_loop(failure)
        self._report(failure, trial.healthy_for)
        standing.failure = failure
        standing.failing = trial.connected_at is None
        if standing.failing:
            self.was_up = False
        standing.settling = False
        standing.retry_due = now() + pause if math.isfinite(pause) else None
        standing.become(_state_after(failure, pause, was_up=trial.connected_at is not None))
        return pause

    def _report(self, failure: Failure, healthy_for: float | None) -> None:
        """Log a failure once, however often the same one comes back."""
        if (healthy_for or 0.0) >= PROVED or len(self._reported) >= _MOST_REPORTED:
            self._reported.clear()
        if (text := str(failure)) not in self._reported:
            self._reported.add(text)
            logger.warning("%s: %s", self.name, text)

    def _failure(self, trial: Trial, exc: BaseException) -> Failure:
        if trial.stopped and isinstance(exc, TimeoutError | AnswerTimeout):
            exc = Stopped()
        return diagnose(
            self.name,
            exc,
            phase=trial.phase,
            evidence=trial.evidence(),
            at=time.time(),
            timings=trial.timings,
            redact=self._redact,
        )

    async def _live(self, trial: Trial) -> None:
        config = self._expand(self.name, self.config)
        self._redact = config.redact
        approach = first_approach(config, self.era)
        while True:
            try:
                await self._live_by(approach, trial)
            except Exception as exc:
                cause, evidence = sole(exc), trial.evidence()
                other = next_approach(approach, cause, trial.phase, self.config, evidence)
                if other is None:
                    if trial.phase is Phase.HANDSHAKE:
                        self.era = era_after(approach, cause, self.era, evidence)
                    raise
                approach = other

    async def _live_by(self, approach: Approach, trial: Trial) -> None:
        if not self._standing.failing:  # one that failed shows why until it is its turn again
            self._standing.become(LinkState.CONNECTING)
        if not isinstance(approach.config, StdioServer):
            # what starts elsewhere, or is up already, costs nothing here
            await self._live_within(approach, trial, None)
            return
        async with self._start_queue.turn(self._rank()) as start:
            await self._live_within(approach, trial, start)

    def _rank(self) -> Rank:
        if self.was_up is None:
            return Rank.UNKNOWN
        return Rank.UP_BEFORE if self.was_up else Rank.FAILED_BEFORE

    async def _live_within(self, approach: Approach, trial: Trial, start: Start | None) -> None:
        if self.state is not LinkState.CONNECTING:
            self._standing.become(LinkState.CONNECTING)
        trial.begin()
        with anyio.fail_after(self.config.connect_timeout) as clock:
            async with self._dial(self.name, approach.config) as wire:
                if start is not None:
                    start.spawned(wire.evidence().pid)
                trial.wire = wire
                trial.reached(Phase.HANDSHAKE)
                try:
                    await self._converse(approach, trial, wire, clock, start)
                finally:
                    trial.stopped = wire.stopped()  # looked up before it is ended

    async def _converse(
        self,
        approach: Approach,
        trial: Trial,
        wire: Wire,
        clock: anyio.CancelScope,
        start: Start | None,
    ) -> None:
        async with (
            open_session(
                self.name,
                wire,
                handlers=self._handlers,
                on_notification=self._news.notified,
                on_unaddressed=self.habits.learn,
                era=approach.era,
                probe=PROBE,
                timeout=self.config.connect_timeout,
                log_level=self.config.log_level,
            ) as session,
            self._news.received(session),
        ):
            trial.reached(Phase.LIST)
            offers = await self._fetch(session)
            trial.reached(Phase.CALL)
            clock.deadline = math.inf  # the limit was for connecting, not for living
            if start is not None:
                start.over()
            self._up(trial, session, offers)
            try:
                await self._watch(session)
            except Exception as exc:
                self._down(trial, sole(exc))
                raise

    def _up(self, trial: Trial, session: Session, offers: Offers) -> None:
        trial.connected_at = self._last_used = now()
        self.era = session.era
        self._mixes = session.wire.kind in _MIXING
        self.logs = session.capabilities.logging is not None
        self.was_up = True
        self.offers = offers
        self.stale = False
        self._standing.up(session)

    def _down(self, trial: Trial, exc: BaseException) -> None:
        """Say that it is lost before its process is ended, which may take a while."""
        if not isinstance(exc, Again | Asleep):
            self._standing.failure = self._failure(trial, exc)
        self._standing.session = None
        self._standing.settling = True
        self._standing.become(LinkState.DISCONNECTED)

    async def _watch(self, session: Session) -> None:
        """Return never; raise what ended the life."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_health, session)
            tasks.start_soon(watch_process, session)
            tasks.start_soon(watch_wish, self._poked)
            tasks.start_soon(self._follow_lists)
            if self.config.start == "lazy":
                limit = self.config.idle_timeout or IDLE_TIMEOUT
                tasks.start_soon(watch_idleness, self.idle_for, limit)
            await watch_wire(session)

    async def _watch_health(self, session: Session) -> None:
        await watch_health(
            session,
            interval=self._health_interval,
            doubted=self._doubted,
            # a call that is still within its time may be all that keeps the server busy
            busy=lambda: self._slots.working > 0 and not self._unanswered,
            answered=self._alive,
        )

    def _alive(self, seconds: float) -> None:
        self._latency = seconds
        self._unanswered = False

    def idle_for(self) -> float:
        """Seconds since anybody last wanted something of it."""
        return 0.0 if self._slots.working else now() - self._last_used

    def _tell(self, event: Event) -> None:
        match event:
            case Warned(_, text):
                event = replace(event, text=self._worded(text))
            case ServerLog(_, level, source, text):
                event = replace(
                    event,
                    level=self._worded(level, LONGEST_QUOTE),
                    logger=None if source is None else self._worded(source, LONGEST_QUOTE),
                    text=self._worded(text, _LOG_MESSAGE),
                )
            case _:
                pass
        self._on_event(event)

    async def _follow_lists(self) -> None:
        is_complete = self.offers is None or not self.offers.missing
        await self._news.follow_lists(self._refetch, is_complete=is_complete)

    async def _refetch(self, changed: bool) -> bool:  # noqa: FBT001 - see `Refetch`
        """Replace the offers, and say whether all could be had; old ones stay for what could not.

        Args:
            changed: Whether any list may be another one now; if not, only what is missing is
                fetched.
        """
        if (session := self.session) is None or self.offers is None:
            return True
        whole = changed or self._warning is not None
        try:
            self.offers = await self._fetch(session, None if whole else self.offers.missing)
        except (RpcError, AnswerInvalid, AnswerTimeout, RequestFailed) as exc:
            warning = f"its changed lists can not be had: {exc}"
            if warning != self._warning:  # once, however often it is tried
                self._warning = warning
                self._tell(Warned(self.name, warning))
            return False
        self._warning = None
        self._on_change(self)
        return not self.offers.missing

    async def _fetch(self, session: Session, only: Collection[str] | None = None) -> Offers:
        return await session.offers(
            self.config.limits.tools,
            self.config.connect_timeout,
            known=self.offers or Offers(),
            only=only,
        )


def _may_repeat(fault: WireFault | RpcError, *, harmless: bool) -> bool:
    """Whether a lost request may be sent again: it never arrived, or a second run does no harm."""
    return isinstance(fault, WireClosed | RequestFailed) and (harmless or not fault.sent)


def _state_after(failure: Failure, pause: float, *, was_up: bool) -> LinkState:
    """What a server is while the next attempt is waited for."""
    if failure.code is FailureCode.AUTH:
        return LinkState.NEEDS_AUTH
    if failure.code is FailureCode.CRASH_LOOP or not failure.code.heals or not was_up:
        return LinkState.ERROR
    return LinkState.CONNECTING if pause == 0 else LinkState.DISCONNECTED


def _stays_down(failure: Failure, name: str) -> Failure:
    words = f"`reconnect` is off for it: `multitap restart {name}` starts it again"
    return replace(failure, hint=f"{failure.hint}; {words}" if failure.hint else words)


def _crash_loop(failure: Failure) -> Failure:
    often = f"more than {BURST} starts in {WINDOW / 60:g} minutes"
    words = f"crash loop ({often}): the last time, {failure.message}"
    return replace(failure, code=FailureCode.CRASH_LOOP, message=words)
