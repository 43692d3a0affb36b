"""One configured server: connected, watched and brought back."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

import anyio
from msgspec import Raw

from multitap.config import HttpServer, ServerConfig, StdioServer
from multitap.errors import (
    BadAnswer,
    CallTimeout,
    MultitapError,
    Overloaded,
    ServerError,
    Unavailable,
    sole,
)
from multitap.events import (
    Event,
    Failure,
    FailureCode,
    LinkState,
    Phase,
    ServerSnapshot,
    Warned,
)
from multitap.upstream.approach import Approach, first_approach, next_approach
from multitap.upstream.backoff import Restarts
from multitap.upstream.failure import Stopped, diagnose
from multitap.upstream.handlers import Handlers
from multitap.upstream.listing import Offers
from multitap.upstream.news import News
from multitap.upstream.session import Era, Session, open_session
from multitap.upstream.signals import Bell, Latch
from multitap.upstream.slots import Full, Slots
from multitap.upstream.trial import Trial, Turn, now
from multitap.upstream.watch import (
    Again,
    Asleep,
    watch_health,
    watch_idleness,
    watch_process,
    watch_wire,
    watch_wish,
)
from multitap.wire.stderr import redact
from multitap.wire.wire import (
    AnswerInvalid,
    AnswerTimeout,
    OnProgress,
    RequestFailed,
    RpcError,
    SessionLost,
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
SOON = 1.0
"""Seconds until the next attempt for which a call rather waits than fails."""
IDLE_TIMEOUT = 300.0
FINAL_WORDS = 0.3
"""Seconds a failed call waits for the reason to be known in full."""


@dataclass(frozen=True, slots=True)
class Known:
    """What an earlier run learned about a server."""

    era: Era | None = None
    offers: Offers | None = None


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
        starting: Held while it starts, so that not too many do at once.
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
        starting: asyncio.Semaphore,
        health_interval: float,
        on_change: Callable[["Link"], None],
        on_event: Callable[[Event], None],
        restarts: Restarts | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.state = LinkState.DISCONNECTED if config.enabled else LinkState.DISABLED
        self.failure: Failure | None = None
        self.offers: Offers | None = known.offers
        self.stale = known.offers is not None
        self.era = known.era
        self.first_settled = anyio.Event()
        """Set once it has answered or failed for the first time."""
        self._secrets = _secrets(config)
        self._dial = dial
        self._expand = expand
        self._handlers = handlers
        self._starting = starting
        self._health_interval = config.health_interval or health_interval
        self._on_change = on_change
        self._restarts = restarts or Restarts()
        self._session: Session | None = None
        self._trial = Trial()
        self._slots = Slots(config.limits.in_flight, config.limits.queue)
        self._on_event = on_event
        self._news = News(name, on_event, log_level=config.log_level)
        self._changed = Bell()
        self._wanted = anyio.Event()
        self._poked = Latch()
        self._doubted = Latch()
        self._settling = config.enabled
        self._closing = False
        self._starts = 0
        self._since = time.time()
        self._retry_due: float | None = None
        self._latency: float | None = None
        self._warning: str | None = None
        self._unanswered = False
        self._last_used = now()
        if config.start == "eager" or known.offers is None:
            self._wanted.set()
        else:
            self._settling = False
            self.first_settled.set()

    @property
    def live(self) -> bool:
        """Whether its offers can be called: it is up, coming up again, or waiting to be woken."""
        if self.offers is None or self._closing:
            return False
        return self.state is LinkState.CONNECTED or self._hopeful or self.asleep

    @property
    def asleep(self) -> bool:
        """Whether it is lazy and waits for a call."""
        return (
            self.config.start == "lazy"
            and self.state is LinkState.DISCONNECTED
            and not self._wanted.is_set()
        )

    @property
    def settled(self) -> bool:
        """Whether it has answered, failed, or has no reason to start."""
        return not self._settling and self.state is not LinkState.CONNECTING

    @property
    def _hopeful(self) -> bool:
        """Whether it is worth a call's while to wait for it."""
        if self._closing:
            return False
        if self._settling or self.state is LinkState.CONNECTING:
            return True
        return self._retry_due is not None and self._retry_due - now() <= SOON

    @property
    def session(self) -> Session | None:
        """The live conversation, while there is one."""
        return self._session

    async def run(self) -> None:
        """Stay connected until cancelled."""
        while True:
            await self._wanted.wait()
            pause = await self._attempt()
            if pause > 0:
                with anyio.move_on_after(pause):
                    await self._poked.wait()

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout: float | None = None,
        hard_timeout: float | None = None,
        on_progress: OnProgress | None = None,
        call: object | None = None,
        repeatable: bool = False,
    ) -> Raw:
        """Ask the server and return its result, undecoded.

        Args:
            method: What to ask for.
            params: Its parameters.
            timeout: Seconds for everything; the configured ones if not given.
            hard_timeout: Seconds after which progress does not help; the configured ones if not
                given.
            on_progress: Told of progress.
            call: The context of the call, for what the server asks meanwhile.
            repeatable: Whether it may be sent again though it may have reached the server.

        Raises:
            UpstreamError: Which one says what went wrong.
        """
        timeout = self.config.timeout if timeout is None else timeout
        deadline = now() + timeout
        self._last_used = now()
        if not self._slots.take():
            await self._queue(timeout)
        try:
            repeated = False
            while True:
                session = self._session or await self._connected(deadline)
                try:
                    result = await session.request(
                        method,
                        params,
                        timeout=deadline - now(),
                        hard_timeout=hard_timeout or self.config.hard_timeout,
                        on_progress=on_progress,
                        call=call,
                    )
                except (WireFault, RpcError) as fault:
                    self._doubt(session, fault)
                    if repeated or not _may_repeat(fault, harmless=repeatable):
                        raise await self._public(fault, method) from None
                    repeated = True
                else:
                    self._unanswered = False
                    return result
        finally:
            self._slots.give()
            self._last_used = now()

    async def subscribe(self, uri: str) -> None:
        """Ask to be told when a resource changes; kept through restarts.

        Raises:
            UpstreamError: The server refuses or does not answer.
        """
        try:
            await self._news.subscribe(uri, self._session)
        except (RpcError, WireFault) as exc:
            raise await self._public(exc, "resources/subscribe") from None

    async def unsubscribe(self, uri: str) -> None:
        try:
            await self._news.unsubscribe(uri, self._session)
        except (RpcError, WireFault) as exc:
            raise await self._public(exc, "resources/unsubscribe") from None

    def restart(self) -> None:
        """Start anew at once, whatever kept it from it."""
        self._restarts.forget()
        self._wanted.set()
        if self.state is not LinkState.CONNECTING:  # else it is starting anew already
            self._settling = True
            self._poked.set()

    async def drain(self, timeout: float) -> None:
        """Take no new calls and wait for those under way."""
        self._closing = True
        with anyio.move_on_after(timeout):
            while self._slots.working:
                await anyio.sleep(0.01)

    def snapshot(self, *, tools: int, warnings: tuple[str, ...]) -> ServerSnapshot:
        session = self._session
        evidence = self._trial.evidence()
        offers = self.offers or Offers()
        if self._warning:
            warnings += (self._warning,)
        if evidence.noise:
            sample = redact(evidence.noise_sample, self._secrets)
            warnings += (f"{evidence.noise} times it wrote no message: {sample!r}",)
        return ServerSnapshot(
            name=self.name,
            transport=session.wire.kind if session else self.config.transport,
            state=self.state,
            failure=self.failure,
            warnings=(*offers.warnings, *warnings),
            era=session.era.value if session else self.era and self.era.value,
            protocol_version=session.protocol_version if session else None,
            title=session.title if session else None,
            instructions=session.instructions if session else None,
            pid=evidence.pid if session else None,
            tools=tools,
            resources=len(offers.resources),
            templates=len(offers.templates),
            prompts=len(offers.prompts),
            starts=self._starts,
            since=self._since,
            retry_at=self._retry_due and time.time() + self._retry_due - now(),
            in_flight=self._slots.working,
            latency=self._latency,
            timings=dict(self._trial.timings),
            stale=self.stale,
        )

    async def _queue(self, timeout: float) -> None:
        try:
            with anyio.fail_after(timeout):
                await self._slots.wait()
        except Full:
            raise Overloaded(
                self.name,
                f"{self.config.limits.queue} calls already wait for it",
                hint="call less at once, or raise `limits.queue`",
            ) from None
        except TimeoutError:
            raise CallTimeout(self.name, f"no turn within {timeout:g} s: it is busy") from None

    async def _connected(self, deadline: float) -> Session:
        """The session, waited for while there is hope."""
        try:
            with anyio.fail_after(deadline - now()):
                while self._session is None:
                    if self.asleep and not self._closing:
                        self._settling = True
                        self._wanted.set()
                    elif not self._hopeful:
                        raise self._unavailable()
                    await self._changed.wait()
        except TimeoutError:
            raise self._unavailable("it is still starting") from None
        return self._session

    def _unavailable(self, words: str | None = None) -> Unavailable:
        failure = self.failure
        if words is None:
            if self._closing:
                words = "it was removed or replaced"
            elif self.state is LinkState.DISABLED:
                words = "it is disabled"
            else:
                words = str(failure or "it is not connected")
        return Unavailable(
            self.name, words, hint=failure.hint if failure else None, failure=failure
        )

    def _doubt(self, session: Session, fault: WireFault | RpcError) -> None:
        """Let a failed request be a reason to look after the server."""
        if isinstance(fault, WireClosed):
            if self._session is session:
                self._session = None
                self._settling = True
        elif not isinstance(fault, AnswerInvalid | RpcError):
            self._unanswered = isinstance(fault, AnswerTimeout)
            self._doubted.set()

    async def _public(self, fault: WireFault | RpcError, method: str) -> MultitapError:
        match fault:
            case RpcError():
                words = redact(str(fault), self._secrets)
                return ServerError(self.name, words, code=fault.code, data=fault.data)
            case AnswerTimeout():
                return CallTimeout(
                    self.name, str(fault), hint="raise `timeout` if it needs that long"
                )
            case AnswerInvalid():
                return BadAnswer(self.name, str(fault))
            case WireClosed():
                trial = self._trial
                with anyio.move_on_after(FINAL_WORDS):
                    while self._settling and self._trial is trial:
                        await self._changed.wait()
                return self._unavailable(
                    f"the connection was lost during {method!r}: {self.failure or fault}"
                )
            case _:
                return Unavailable(self.name, str(fault), failure=self.failure)

    async def _attempt(self) -> float:
        """Be connected once, for as long as it lasts; seconds to wait before the next time."""
        trial = self._trial = Trial()
        self._poked = Latch()  # whoever wanted a new start gets this one
        self._starts += 1
        self._restarts.started(now())
        try:
            await self._live(trial)
        except Exception as exc:  # noqa: BLE001 - boundary: one broken server stays its own problem
            return self._ended(trial, sole(exc))
        raise AssertionError("a life ends with an exception")

    def _ended(self, trial: Trial, exc: BaseException) -> float:
        self._session = None
        self._retry_due = None
        if isinstance(exc, Again):
            self._become(LinkState.CONNECTING)
            return 0.0
        if isinstance(exc, Asleep):
            self._wanted = anyio.Event()
            self._settling = False
            self.stale = True
            self._become(LinkState.DISCONNECTED)
            return 0.0
        failure = self._failure(trial, exc)
        tripped = self._restarts.tripped(now())
        if isinstance(exc, SessionLost) and not tripped:  # no failure of its: a handshake mends it
            self.failure = failure
            self._become(LinkState.CONNECTING)
            return 0.0
        pause = self._restarts.lost(now(), healthy_for=trial.healthy_for)
        state = LinkState.DISCONNECTED
        if not failure.code.heals:
            state = LinkState.NEEDS_AUTH if failure.code is FailureCode.AUTH else LinkState.ERROR
            pause = math.inf
        elif tripped:
            state = LinkState.ERROR
            failure = _crash_loop(failure)
        elif trial.connected_at is None:
            state = LinkState.ERROR
        elif pause == 0:
            state = LinkState.CONNECTING
        self.failure = failure
        self._settling = False
        self._retry_due = now() + pause if math.isfinite(pause) else None
        logger.warning("%s: %s", self.name, failure)
        self._become(state)
        return pause

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
            secrets=self._secrets,
        )

    async def _live(self, trial: Trial) -> None:
        config = self._expand(self.name, self.config)
        self._secrets = _secrets(config)
        approach = first_approach(config, self.era)
        while True:
            try:
                await self._live_by(approach, trial)
            except Exception as exc:
                other = next_approach(approach, sole(exc), trial.phase, self.config)
                if other is None:
                    if trial.phase is Phase.HANDSHAKE:
                        self.era = None  # what was remembered may be what is wrong
                    raise
                approach = other

    async def _live_by(self, approach: Approach, trial: Trial) -> None:
        self._become(LinkState.CONNECTING)
        async with Turn(self._starting) as turn:
            trial.begin()
            await self._live_within(approach, trial, turn)

    async def _live_within(self, approach: Approach, trial: Trial, turn: Turn) -> None:
        with anyio.fail_after(self.config.connect_timeout) as clock:
            async with self._dial(self.name, approach.config) as wire:
                trial.wire = wire
                trial.reached(Phase.HANDSHAKE)
                try:
                    await self._converse(approach, trial, wire, clock, turn)
                finally:
                    trial.stopped = wire.stopped()  # looked up before it is ended

    async def _converse(
        self, approach: Approach, trial: Trial, wire: Wire, clock: anyio.CancelScope, turn: Turn
    ) -> None:
        async with (
            open_session(
                self.name,
                wire,
                handlers=self._handlers,
                on_notification=self._news.notified,
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
            turn.over()
            self._up(trial, session, offers)
            try:
                await self._watch(session)
            except Exception as exc:
                self._down(trial, sole(exc))
                raise

    def _up(self, trial: Trial, session: Session, offers: Offers) -> None:
        trial.connected_at = now()
        self._retry_due = None
        self._session = session
        self.era = session.era
        self.offers = offers
        self.stale = False
        self.failure = None
        self._settling = False
        self._last_used = now()
        self._become(LinkState.CONNECTED)

    def _down(self, trial: Trial, exc: BaseException) -> None:
        """Say that it is lost before its process is ended, which may take a while."""
        self._session = None
        self._settling = True
        if not isinstance(exc, Again | Asleep):
            self.failure = self._failure(trial, exc)
        self._become(LinkState.DISCONNECTED)

    async def _watch(self, session: Session) -> None:
        """Return never; raise what ended the life."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_health, session)
            tasks.start_soon(watch_process, session)
            tasks.start_soon(watch_wish, self._poked)
            tasks.start_soon(self._news.follow_lists, self._refetch)
            if self.config.start == "lazy":
                limit = self.config.idle_timeout or IDLE_TIMEOUT
                tasks.start_soon(watch_idleness, self._idle_for, limit)
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

    def _idle_for(self) -> float:
        return 0.0 if self._slots.working else now() - self._last_used

    async def _refetch(self) -> None:
        """Replace the offers; those that can not be had leave the old ones in place."""
        if (session := self._session) is None:
            return
        try:
            self.offers = await self._fetch(session)
        except (RpcError, AnswerInvalid, AnswerTimeout, RequestFailed) as exc:
            self._warning = f"its changed lists can not be had: {exc}"
            self._on_event(Warned(self.name, self._warning))
        else:
            self._warning = None
            self._on_change(self)

    async def _fetch(self, session: Session) -> Offers:
        return await session.offers(self.config.limits.tools, self.config.connect_timeout)

    def _become(self, state: LinkState) -> None:
        self.state = state
        self._since = time.time()
        self._changed.ring()
        if self.settled:
            self.first_settled.set()
        self._on_change(self)


def _may_repeat(fault: WireFault | RpcError, *, harmless: bool) -> bool:
    """Whether a lost request may be sent again: it never arrived, or a second run does no harm."""
    return isinstance(fault, WireClosed | RequestFailed) and (harmless or not fault.sent)


def _secrets(config: ServerConfig) -> tuple[str, ...]:
    """What the server was given in confidence; it may say it aloud, we do not repeat it."""
    match config:
        case StdioServer():
            return tuple(config.env.values())
        case HttpServer():
            return tuple(config.headers.values())
        case _:
            return ()


def _crash_loop(failure: Failure) -> Failure:
    words = f"crash loop: it was started too often of late; the last time, {failure.message}"
    return replace(failure, code=FailureCode.CRASH_LOOP, message=words)
