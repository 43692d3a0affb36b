"""One configured server: connected, watched and brought back."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec
from msgspec import Raw

from multitap.config import HttpServer, ServerConfig, StdioServer
from multitap.errors import (
    BadAnswer,
    CallTimeout,
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
    ResourceUpdated,
    ServerLog,
    ServerSnapshot,
    Warned,
)
from multitap.upstream.approach import Approach, first_approach, next_approach
from multitap.upstream.backoff import Restarts
from multitap.upstream.failure import Stopped, Unresponsive, diagnose
from multitap.upstream.handlers import Handlers
from multitap.upstream.listing import Offers
from multitap.upstream.session import Era, Session, open_session
from multitap.upstream.slots import Full, Slots
from multitap.wire import envelope
from multitap.wire.stderr import redact
from multitap.wire.wire import (
    AnswerInvalid,
    AnswerTimeout,
    AuthRequired,
    Evidence,
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

PROBE = 1.2
"""Seconds a server of unknown era has to answer in the new one."""
HEALTH_TIMEOUT = 5.0
MISSES = 2
"""Health checks without an answer before a server counts as hanging."""
STOP_CHECK = 1.0
DEBOUNCE, RELIST_GAP = 0.1, 1.0
RELISTEN = 1.0
START_RUSH = 3.0
"""Seconds a starting server keeps others from starting; one that hangs must not keep them for ever."""
IDLE_TIMEOUT = 300.0
SOON = 1.0
"""Seconds until the next attempt for which a call rather waits than fails."""
FINAL_WORDS = 0.3
"""Seconds a failed call waits for the reason to be known in full."""
LOGS_PER_SECOND = 100

_LIST_CHANGED = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
        "notifications/prompts/list_changed",
    }
)


class _Updated(msgspec.Struct):
    uri: str


class _Log(msgspec.Struct):
    level: str = "info"
    logger: str | None = None
    data: Any = None


_parse_updated = msgspec.json.Decoder(_Updated).decode
_parse_log = msgspec.json.Decoder(_Log).decode


class _Asleep(Exception):  # noqa: N818 - no error: a lazy server has nothing to do
    pass


class _Again(Exception):  # noqa: N818 - no error: somebody wants it started anew
    pass


@dataclass(frozen=True, slots=True)
class Known:
    """What an earlier run learned about a server."""

    era: Era | None = None
    offers: Offers | None = None


@dataclass(slots=True)
class _Trial:
    """One attempt to be connected, as far as it came."""

    phase: Phase = Phase.SPAWN
    wire: Wire | None = None
    connected_at: float | None = None
    timings: dict[str, float] = field(default_factory=dict[str, float])
    mark: float = 0.0

    def begin(self) -> None:
        self.phase, self.mark = Phase.SPAWN, time.monotonic()

    def reached(self, phase: Phase) -> None:
        now = time.monotonic()
        self.timings[self.phase.value] = now - self.mark
        self.phase, self.mark = phase, now

    def evidence(self) -> Evidence:
        return self.wire.evidence() if self.wire else Evidence()


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
        starting: anyio.Semaphore,
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
        self._secrets = _secrets(config)
        self._dial = dial
        self._handlers = handlers
        self._starting = starting
        self._health_interval = config.health_interval or health_interval
        self._on_change = on_change
        self._on_event = on_event
        self._restarts = restarts or Restarts()
        self._session: Session | None = None
        self._trial = _Trial()
        self._slots = Slots(config.limits.in_flight, config.limits.queue)
        self.first_settled = anyio.Event()
        """Set once it has answered or failed for the first time."""
        self._changed = anyio.Event()
        self._wanted = anyio.Event()
        self._poked = anyio.Event()
        self._suspected = anyio.Event()
        self._lists_changed = anyio.Event()
        self._subscriptions: set[str] = set()
        self._subscriptions_changed = anyio.Event()
        self._settling = config.enabled
        self._closing = False
        self._starts = 0
        self._since = time.time()
        self._retry_at: float | None = None
        self._latency: float | None = None
        self._last_used = time.monotonic()
        self._log_allowance = LOGS_PER_SECOND
        self._log_second = 0
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
        if self._settling or self.state is LinkState.CONNECTING:
            return True
        return self._retry_at is not None and self._retry_at - time.time() <= SOON

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
            self._poked = anyio.Event()

    async def request(  # noqa: PLR0913 - a call has this many aspects
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - one deadline over waiting, queue and answer
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
        deadline = time.monotonic() + timeout
        self._last_used = time.monotonic()
        if not self._slots.take():
            await self._queue(timeout)
        try:
            for again in (True, False):
                session = self._session
                if session is None:
                    session = await self._connected(deadline)
                try:
                    return await session.request(
                        method,
                        params,
                        timeout=deadline - time.monotonic(),
                        hard_timeout=hard_timeout or self.config.hard_timeout,
                        on_progress=on_progress,
                        call=call,
                    )
                except WireFault as fault:
                    lost = isinstance(fault, WireClosed | RequestFailed)
                    self._doubt(session, fault)
                    if not (again and lost and (repeatable or not fault.sent)):
                        raise await self._public(fault, method) from None
                except RpcError as exc:
                    words = redact(str(exc), self._secrets)
                    raise ServerError(self.name, words, code=exc.code, data=exc.data) from None
            raise AssertionError("the second round returns or raises")
        finally:
            self._slots.give()
            self._last_used = time.monotonic()

    async def subscribe(self, uri: str) -> None:
        """Ask to be told when a resource changes; kept through restarts."""
        if uri in self._subscriptions:
            return
        self._subscriptions.add(uri)
        session = self._session
        if session is not None and session.era is Era.HANDSHAKE:
            await self.request("resources/subscribe", {"uri": uri})
        self._subscriptions_changed.set()

    async def unsubscribe(self, uri: str) -> None:
        if uri not in self._subscriptions:
            return
        self._subscriptions.discard(uri)
        session = self._session
        if session is not None and session.era is Era.HANDSHAKE:
            await self.request("resources/unsubscribe", {"uri": uri})
        self._subscriptions_changed.set()

    def restart(self) -> None:
        """Start anew at once, whatever kept it from it."""
        self._restarts.forget()
        self._wanted.set()
        self._settling = True
        self._poked.set()

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109 - waiting is all it does
        """Take no new calls and wait for those under way."""
        self._closing = True
        with anyio.move_on_after(timeout):
            while self._slots.working:
                await anyio.sleep(0.01)

    def snapshot(self, *, tools: int, warnings: tuple[str, ...]) -> ServerSnapshot:
        session = self._session
        evidence = self._trial.evidence()
        offers = self.offers or Offers()
        noise = ()
        if evidence.noise:
            noise = (f"{evidence.noise} times it wrote no message: {evidence.noise_sample!r}",)
        return ServerSnapshot(
            name=self.name,
            transport=session.wire.kind if session else self.config.transport,
            state=self.state,
            failure=self.failure,
            warnings=(*offers.warnings, *warnings, *noise),
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
            retry_at=self._retry_at,
            in_flight=self._slots.working,
            latency=self._latency,
            timings=dict(self._trial.timings),
            stale=self.stale,
        )

    async def _queue(self, timeout: float) -> None:  # noqa: ASYNC109 - part of the deadline
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
            with anyio.fail_after(deadline - time.monotonic()):
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
            words = "it is disabled" if self.state is LinkState.DISABLED else "it is not connected"
            if failure is not None:
                words = str(failure)
        return Unavailable(
            self.name, words, hint=failure.hint if failure else None, failure=failure
        )

    def _doubt(self, session: Session, fault: WireFault) -> None:
        """Let a failed request be a reason to look after the server."""
        if isinstance(fault, WireClosed) and self._session is session:
            self._session = None
            self._settling = True
        elif not isinstance(fault, AnswerInvalid):
            self._suspected.set()

    async def _public(self, fault: WireFault, method: str) -> Exception:
        match fault:
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
        trial = self._trial = _Trial()
        self._starts += 1
        self._restarts.started(time.monotonic())
        try:
            await self._live(trial)
        except Exception as exc:  # noqa: BLE001 - boundary: one broken server stays its own problem
            return self._ended(trial, sole(exc))
        raise AssertionError("a life ends with an exception")

    def _ended(self, trial: _Trial, exc: BaseException) -> float:
        self._session = None
        self._retry_at = None
        if isinstance(exc, _Again):
            self._become(LinkState.CONNECTING)
            return 0.0
        if isinstance(exc, _Asleep):
            self._wanted = anyio.Event()
            self._settling = False
            self.stale = True
            self._become(LinkState.DISCONNECTED)
            return 0.0
        now = time.monotonic()
        failure = self._failure(trial, exc)
        healthy_for = now - trial.connected_at if trial.connected_at is not None else 0.0
        if isinstance(exc, SessionLost) and healthy_for > 0:
            self.failure = failure
            self._become(LinkState.CONNECTING)
            return 0.0
        tripped = self._restarts.tripped(now)
        pause = self._restarts.lost(now, healthy_for=healthy_for)
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
        self._retry_at = time.time() + pause if math.isfinite(pause) else None
        logger.warning("%s: %s", self.name, failure)
        self._become(state)
        return pause

    def _failure(self, trial: _Trial, exc: BaseException) -> Failure:
        return diagnose(
            self.name,
            exc,
            phase=trial.phase,
            evidence=trial.evidence(),
            at=time.time(),
            timings=trial.timings,
            secrets=self._secrets,
        )

    async def _live(self, trial: _Trial) -> None:
        approach = first_approach(self.config, self.era)
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

    async def _live_by(self, approach: Approach, trial: _Trial) -> None:
        self._become(LinkState.CONNECTING)
        async with _Turn(self._starting) as turn:
            trial.begin()
            await self._live_within(approach, trial, turn)

    async def _live_within(self, approach: Approach, trial: _Trial, turn: "_Turn") -> None:
        with anyio.fail_after(self.config.connect_timeout) as clock:
            async with self._dial(self.name, approach.config) as wire:
                trial.wire = wire
                trial.reached(Phase.HANDSHAKE)
                async with open_session(
                    self.name,
                    wire,
                    handlers=self._handlers,
                    on_notification=self._notified,
                    era=approach.era,
                    probe=PROBE,
                    timeout=self.config.connect_timeout,
                ) as session:
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

    def _up(self, trial: _Trial, session: Session, offers: Offers) -> None:
        trial.connected_at = time.monotonic()
        self._retry_at = None
        self._session = session
        self.era = session.era
        self.offers = offers
        self.stale = False
        self.failure = None
        self._settling = False
        self._last_used = time.monotonic()
        self._become(LinkState.CONNECTED)

    def _down(self, trial: _Trial, exc: BaseException) -> None:
        """Say that it is lost before its process is ended, which may take a while."""
        self._session = None
        self._settling = True
        if not isinstance(exc, _Again | _Asleep):
            self.failure = self._failure(trial, exc)
        self._become(LinkState.DISCONNECTED)

    async def _watch(self, session: Session) -> None:
        """Return never; raise what ended the life."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._check_health, session)
            tasks.start_soon(self._check_stopped, session)
            tasks.start_soon(self._follow_lists, session)
            tasks.start_soon(self._await_poke)
            if session.era is Era.STATELESS:
                tasks.start_soon(self._listen, session)
            else:
                tasks.start_soon(self._resubscribe, session)
            if self.config.start == "lazy":
                tasks.start_soon(self._fall_asleep)
            await session.wire.closed.wait()
            raise session.wire.fault or WireClosed("the connection is closed", sent=True)

    async def _check_health(self, session: Session) -> None:
        limit = min(self._health_interval, HEALTH_TIMEOUT)
        misses = 0
        while True:
            if not misses:
                with anyio.move_on_after(self._health_interval):
                    await self._suspected.wait()
            self._suspected = anyio.Event()
            asked = time.monotonic()
            try:
                await session.alive(limit)
            except AnswerInvalid:
                pass  # a bad answer is a sign of life
            except AnswerTimeout:
                if self._slots.working:
                    continue  # it may only be busy: the calls' own deadlines decide
                misses += 1
                if misses >= MISSES:
                    words = f"it answered no health check for {misses * limit:g} s"
                    raise Unresponsive(words) from None
                continue
            misses = 0
            self._latency = time.monotonic() - asked

    async def _check_stopped(self, session: Session) -> None:
        """A stopped process keeps its pipes open and says nothing: only the system knows."""
        if session.wire.kind != "stdio":
            return
        stopped = 0
        while True:
            await anyio.sleep(STOP_CHECK)
            stopped = stopped + 1 if session.wire.stopped() else 0
            if stopped > 1:
                raise Stopped("its process is stopped (SIGSTOP) and does nothing")

    async def _follow_lists(self, session: Session) -> None:
        while True:
            await self._lists_changed.wait()
            await anyio.sleep(DEBOUNCE)
            self._lists_changed = anyio.Event()
            try:
                self.offers = await self._fetch(session)
            except (RpcError, AnswerInvalid, AnswerTimeout, RequestFailed) as exc:
                self._on_event(Warned(self.name, f"its changed lists can not be had: {exc}"))
            else:
                self._on_change(self)
            await anyio.sleep(RELIST_GAP)

    async def _fetch(self, session: Session) -> Offers:
        return await session.offers(self.config.limits.tools, self.config.connect_timeout)

    async def _await_poke(self) -> None:
        await self._poked.wait()
        raise _Again

    async def _fall_asleep(self) -> None:
        limit = self.config.idle_timeout or IDLE_TIMEOUT
        while (rest := self._last_used + limit - time.monotonic()) > 0 or self._slots.working:
            await anyio.sleep(max(rest, 0.05))
        raise _Asleep

    async def _resubscribe(self, session: Session) -> None:
        for uri in tuple(self._subscriptions):
            try:
                await session.request("resources/subscribe", {"uri": uri}, timeout=HEALTH_TIMEOUT)
            except (RpcError, WireFault) as exc:
                self._on_event(Warned(self.name, f"no news of {uri!r}: {exc}"))

    async def _listen(self, session: Session) -> None:
        """Keep the stateless era's stream of changes open, whatever ends it."""
        while True:
            changed = self._subscriptions_changed = anyio.Event()
            wanted = _subscription_filter(session, self._subscriptions)
            async with anyio.create_task_group() as tasks:
                if wanted is not None:
                    tasks.start_soon(self._listen_once, session, wanted, changed)
                await changed.wait()
                tasks.cancel_scope.cancel()

    async def _listen_once(
        self, session: Session, wanted: dict[str, Any], ended: anyio.Event
    ) -> None:
        try:
            await session.request("subscriptions/listen", {"notifications": wanted}, timeout=None)
        except (RpcError, WireFault) as exc:
            logger.debug("%s: its stream of changes ended: %s", self.name, exc)
            if isinstance(exc, RpcError):
                return  # it has none
        await anyio.sleep(RELISTEN)
        self._lists_changed.set()  # something may have been missed
        ended.set()

    def _notified(self, method: str, params: Raw) -> None:
        if method in _LIST_CHANGED:
            self._lists_changed.set()
            return
        try:
            if method == "notifications/resources/updated":
                self._on_event(ResourceUpdated(self.name, _parse_updated(params).uri))
            elif method == "notifications/message" and self._may_log():
                log = _parse_log(params)
                text = log.data if isinstance(log.data, str) else envelope.encode(log.data).decode()
                self._on_event(ServerLog(self.name, log.level, log.logger, text))
        except envelope.UNPARSABLE:
            logger.debug("%s: a %s that can not be read", self.name, method)

    def _may_log(self) -> bool:
        second = int(time.monotonic())
        if second != self._log_second:
            self._log_second, self._log_allowance = second, LOGS_PER_SECOND
        self._log_allowance -= 1
        return self._log_allowance >= 0

    def _become(self, state: LinkState) -> None:
        self.state = state
        self._since = time.time()
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
        if self.settled:
            self.first_settled.set()
        self._on_change(self)


class _Turn:
    """A place among the servers that start at the same time, given up once it is up or hangs."""

    def __init__(self, starting: anyio.Semaphore) -> None:
        self._starting = starting
        self._held = False

    async def __aenter__(self) -> "_Turn":
        await self._starting.acquire()
        self._held = True
        asyncio.get_running_loop().call_later(START_RUSH, self.over)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.over()

    def over(self) -> None:
        if self._held:
            self._held = False
            self._starting.release()


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
    return Failure(
        FailureCode.CRASH_LOOP,
        failure.phase,
        f"crash loop: it was started too often of late; the last time, {failure.message}",
        hint=failure.hint,
        exit_code=failure.exit_code,
        stderr=failure.stderr,
        at=failure.at,
        timings=failure.timings,
    )


def _subscription_filter(session: Session, uris: set[str]) -> dict[str, Any] | None:
    """What to be told of in the stateless era; None where there is nothing."""
    can = session.capabilities
    wanted: dict[str, Any] = {}
    if can.tools and can.tools.list_changed:
        wanted["toolsListChanged"] = True
    if can.prompts and can.prompts.list_changed:
        wanted["promptsListChanged"] = True
    if can.resources and can.resources.list_changed:
        wanted["resourcesListChanged"] = True
    if uris:
        wanted["resourceSubscriptions"] = sorted(uris)
    return wanted or None
