"""Makes every call: permission, argument check, deadline, request, result check, metrics."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import perf_counter, time
from typing import Any

import msgspec
from anyio import to_thread
from msgspec import Raw

from multitap.catalog.catalog import Tool, allowed
from multitap.config.models import Recording, Settings, ToolFilter
from multitap.config.secrets import in_call
from multitap.errors import (
    BadAnswer,
    BadArguments,
    CallTimeout,
    Denied,
    MultitapError,
    NotAllowed,
    Overloaded,
    ServerError,
    Unavailable,
    quoted,
)
from multitap.events import CallDone, EventBus, Outcome
from multitap.hub.cached_results import CachedResults, cache_key
from multitap.hub.metrics import ERROR_TYPES, RECENT, Metrics
from multitap.hub.permissions import AuditTrail, Permissions
from multitap.hub.routes import Route
from multitap.results import ToolResult
from multitap.results.result import UNREADABLE, parse_sound
from multitap.store import CallRecord, Store
from multitap.store.store import FLUSH_COUNT
from multitap.store.tables import RecordedExchange, keep_exchange
from multitap.telemetry.spans import CURRENT, current_trace
from multitap.trust.policy import ALLOWED, Decision, DeniedByRule, Guard, Ruling
from multitap.trust.scanner import scan_text, texts_in
from multitap.upstream import tasks
from multitap.upstream.questions import CallContext
from multitap.upstream.session import Session
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import encode
from multitap.wire.request import Deadline, Request

_decode = msgspec.json.Decoder(dict[str, Any]).decode
# read once: enum attributes are slow
_OK, _ERROR, _CANCELLED = Outcome.OK, Outcome.ERROR, Outcome.CANCELLED
_CODES = frozenset(
    {
        *(jsonrpc.PARSE_ERROR, jsonrpc.INVALID_REQUEST, jsonrpc.METHOD_NOT_FOUND),
        *(jsonrpc.INVALID_PARAMS, jsonrpc.INTERNAL_ERROR, jsonrpc.SERVER_ERROR),
        *(jsonrpc.MISSING_CAPABILITY, jsonrpc.URL_ELICITATION_REQUIRED),
    }
)
"""Codes of servers that metrics name; servers may invent any others."""
_LONGEST_ERROR = 4096  # characters of a tool's error message; decoding all of it could take long

LARGE = 4 * 1024 * 1024
"""Bytes above which a result is checked in a thread, so that it does not block the loop.

A megabyte takes about 0.15 ms, and a thread's turn nearly as long.
"""
SMALL = 64 * 1024
"""The same for results whose structured content has to be decoded."""
SCANNED = 256 * 1024
"""Characters of a result that are scanned for attacks, if enabled."""
CHECKED = 256 * 1024
"""Bytes of undecoded arguments above which the server checks them."""


class PendingCall(msgspec.Struct, eq=False):
    """One call, from its arguments to its record."""

    route: Route
    arguments: Mapping[str, Any] | Raw
    context: CallContext
    """The caller and its limits."""
    started: float
    """When it began, by `perf_counter`, as the other two."""
    deadline: Deadline | None = None
    """Its deadline, if its caller has set one."""
    meta: bytes = b""
    """Members of the request's `_meta`, as JSON."""
    extra: bytes = b""
    """Members of its parameters besides name and arguments, each after a comma."""
    encoded: bytes | Raw = b""
    """Its arguments as JSON."""
    request: Request | None = None
    """What its server is sent, once it is admitted."""
    session: Session | None = None
    """The session in which it was begun, until it is answered or goes on in a task."""
    sent: float = 0.0
    answered_at: float = 0.0
    ruling: Ruling | None = None
    cached: bytes | None = None
    """The key by which its result is kept, so that it can be given again."""
    raw: Raw | None = None
    """The answer to one that was begun, if it takes a closer look."""
    result: ToolResult | None = None

    @property
    def is_asked(self) -> bool:
        """Whether the policy has a person asked about it."""
        return self.ruling is not None and self.ruling.decision is Decision.ASK


class Calls:
    """Makes calls, each counted once, however it ends."""

    def __init__(
        self,
        metrics: Metrics,
        store: Store,
        events: EventBus,
        *,
        permissions: Permissions,
        trail: AuditTrail,
    ) -> None:
        self._filters: Mapping[str, ToolFilter] = {}
        """The tools that each agent may call."""
        self._metrics = metrics
        self._count = metrics.record
        self._backlog, self._audited = store.call_backlog, store.audit_backlog
        # looked up once: every call uses them
        self._log, self._audit = self._backlog.records, self._audited.records
        self._events = events
        self.permissions = permissions
        self._trail = trail
        self._clock = asyncio.get_running_loop().time
        self.is_traced = False
        """Whether spans are recorded; otherwise a call pays nothing for them but this look."""
        self._cached = CachedResults()
        self._recording: Recording = "off"
        """The calls whose arguments and results are recorded."""

    def apply(self, settings: Settings) -> None:
        """Follow new settings; people are asked again, as the rules may have changed."""
        self._filters = settings.agents
        self._recording = settings.record
        self.forget_results()
        self.permissions.forget()

    def forget_results(self) -> None:
        """Forget results that would be given again."""
        self._cached.clear()

    @property
    def made(self) -> int:
        """How many calls have ended since the start."""
        return self._metrics.made

    def latest(self, most: int = RECENT) -> Sequence[CallRecord]:
        """The last calls, oldest first; screens poll them, which costs less than events."""
        return self._metrics.latest(most)

    def make(
        self,
        route: Route,
        arguments: Mapping[str, Any] | Raw,
        context: CallContext,
        *,
        deadline: Deadline | None = None,
        meta: bytes = b"",
        extra: bytes = b"",
    ) -> Awaitable[ToolResult]:
        """Call a tool.

        Args:
            route: The route to the tool.
            arguments: Its arguments.
            context: The caller and its limits.
            deadline: Its deadline; by default, by the limits of the caller, tool or server, from
                now on.
            meta: Members of the request's `_meta`, as JSON.
            extra: Members of its parameters besides name and arguments, as JSON, each after a
                comma.

        Raises:
            NotAllowed: The agent may not use the tool.
            Denied: The policy, or a person it asks, refuses the call.
            BadArguments: The arguments do not fit its schema, and such calls are refused.
            UpstreamError: The server could not answer; the subclass says why.
            MultitapError: The call was made, but the required audit log cannot be written.
        """
        call = PendingCall(route, arguments, context, perf_counter(), deadline, meta, extra)
        return self.finish(call)

    def begin(
        self, route: Route, arguments: Raw, context: CallContext, on_news: Callable[[], None]
    ) -> "PendingCall | None":
        """Make a call without a task; None if it waits for more than its server.

        `on_news` is called once, when `end` may have its result. Until then and afterwards,
        `finish` can go on with it in a task.
        """
        link = route.link
        if not route.is_plain or link.task_tools or self._trail.is_required or self.is_traced:
            return None
        call = PendingCall(route, arguments, context, perf_counter())
        call.encoded = arguments
        request = self._prepare(call)
        call.session = link.requests.begin(request, on_news)
        return None if call.session is None else call

    def end(self, call: "PendingCall") -> ToolResult | None:
        """The result of a call that was begun, if it is here and as usual; None: `finish` it."""
        request, session = call.request, call.session
        if request is None or session is None:
            return None
        raw = call.route.link.requests.result(request, session)
        if raw is None:
            return None
        call.answered_at, call.session = perf_counter(), None
        result = call.result = _look_at(call.route, raw)
        if result is None:
            call.raw = raw
        else:
            self._record(call, _ERROR if result.is_error_known else _OK)
        return result

    async def finish(self, call: "PendingCall") -> ToolResult:  # noqa: C901, PLR0912 - in one piece: every call in a task takes this way
        """Make a call, or go on with one that was begun; raises what `make` raises."""
        if call.result is not None:
            return call.result
        route, context, link = call.route, call.context, call.route.link
        # the outcome if nothing below sets another: no `except` here catches a cancellation
        outcome, error, failure = _CANCELLED, None, None
        result: ToolResult | None = None
        try:
            request = call.request
            if request is None:
                self._admit(call)
                if route.guard is not None or self._trail.is_required:
                    await self._judge(call)
                request = self._prepare(call)
                if route.task_support != "forbidden" or context.on_task or link.task_tools:
                    _prepare_task(route, request, context)
            raw = call.raw or (self._find_cached(call) if route.cache_for else None)
            if raw is None:
                session, call.session = call.session, None
                try:
                    raw = await link.request(request, session)
                except ServerError as exc:
                    if not _may_take_task(exc, request, context):
                        raise
                    link.task_tools.add(route.tool.raw_name)
                    request.takes_task = True
                    raw = await link.request(request)
            call.answered_at = call.answered_at or perf_counter()
            call.result = result = _look_at(route, raw) or await _inspect(call, request, raw)
            if call.is_asked:
                await self.permissions.expect_answer(route, call.encoded, context, raw)
            outcome = _ERROR if result.is_error_known else _OK
            if call.cached is not None:
                self._cached.keep(call.cached, route.cache_for, raw)
        except MultitapError as exc:
            call.ruling = exc.ruling if isinstance(exc, DeniedByRule) else call.ruling
            if not isinstance(exc, ServerError) or not route.errors_are_results:
                outcome, failure = _outcome(exc)
                error = _redactor(route, call.arguments)(str(exc))
                if outcome is Outcome.REFUSED:
                    self._metrics.on_rejected(route.tool.server, route.tool.raw_name, failure)
                raise
            outcome, call.result = _ERROR, (result := _failure(exc, route.tool))
        finally:
            # in `finally`, so that cancelled calls are counted, too
            self._record(call, outcome, error, failure)
            # nobody waits for the answer to a cancelled call
            if self._trail.is_required and outcome is not _CANCELLED:
                await self._trail.wait_written(was_made=outcome is not Outcome.REFUSED)
        return result

    def _admit(self, call: "PendingCall") -> None:
        """Check permission and arguments, and encode these.

        Raises:
            NotAllowed, BadArguments: It must not be made.
        """
        route, arguments, context = call.route, call.arguments, call.context
        if context.agent_id is not None:
            self._permit(context.agent_id, route.tool)
        if route.check != "off":
            _check(route, arguments)
        call.encoded = arguments if isinstance(arguments, Raw) else _encode_arguments(arguments)

    def _prepare(self, call: "PendingCall") -> Request:
        """The request of a call that is admitted."""
        route, context = call.route, call.context
        client = context.client
        call.request = request = Request(
            method="tools/call",
            params=b"".join((route.head, call.encoded, call.extra)),
            deadline=call.deadline or route.deadline(context, self._clock()),
            name=route.tool.raw_name,
            call=context,
            slot_holder=None if client is None else client.slot_holder,
            on_progress=context.on_progress,
            meta=call.meta,
            repeatable=route.repeatable,
        )
        call.sent = perf_counter()
        return request

    def _find_cached(self, call: "PendingCall") -> Raw | None:
        """The result of an equal call that may be given again."""
        if call.extra or call.context.on_task is not None:
            return None
        key = cache_key(call.route, call.encoded, call.context)
        raw = None if key is None else self._cached.find(key)
        # a result that is given again does not become younger
        call.cached = key if raw is None else None
        return raw

    def _record(
        self,
        call: "PendingCall",
        outcome: Outcome,
        error: str | None = None,
        failure: str | None = None,
    ) -> None:
        """Record a call that has ended: for metrics, call log, audit log and watchers."""
        record = self._describe(call, outcome, error, failure)
        self._count(record)
        if record.trace is not None:
            _add_phases(record)
        if self._trail.is_enabled:
            self._audit.append(record)
        log = self._log
        log.append(record)
        # rarely: all three are processed together, in batches
        if not 1 < len(log) < FLUSH_COUNT:
            self._metrics.count_up()
            self._backlog.wake_writer()
            self._audited.wake_writer()
        if self._events.watched:
            self._events.publish(_event(record))

    def _describe(
        self, call: "PendingCall", outcome: Outcome, error: str | None, failure: str | None
    ) -> CallRecord:
        """The record of a call; notes its times in the result."""
        route, context, request, result = call.route, call.context, call.request, call.result
        tool, trail, ruling, answered_at = route.tool, self._trail, call.ruling, call.answered_at
        ended = perf_counter()
        seconds, received = ended - call.started, 0
        queued = connecting = answering = 0.0
        if request is not None:
            queued, connecting = request.queued, request.connecting
            answering = (answered_at or ended) - call.sent - queued - connecting
        if result is not None:
            result.seconds, received = seconds, len(result.raw)
            # a person takes part of the time of a call that is asked about
            if request is not None and (ruling is None or ruling.decision is not Decision.ASK):
                result.waited = queued + connecting + (request.waited or answering)
            if outcome is _ERROR:
                error = _failure_words(result, _redactor(route, call.arguments))
        client = context.client
        return CallRecord(
            time(),
            tool.server,
            tool.raw_name,
            seconds,
            outcome,
            received,
            len(call.encoded),
            error,
            context.agent_id,
            context.session_id,
            None if client is None else client.caller,
            queued,
            connecting,
            ended - answered_at if answered_at else 0.0,
            None if self._recording == "off" else self._keep(call, outcome),
            None if client is None else client.principal,
            None if ruling is None else (ruling.decision.value, ruling.place),
            trail.show_arguments(route, call.encoded) if trail.keeps_arguments else None,
            answering,
            current_trace() if self.is_traced else None,
            failure,
            route.link.person,
        )

    async def vet(self, route: Route, raw: Raw) -> ToolResult:
        """Check the result of a task that its caller has followed, as if it were of a call.

        Raises:
            BadAnswer: It cannot be read, or looks like an attack.
        """
        return _look_at(route, raw) or await _vet(route, raw)

    def _keep(self, call: "PendingCall", outcome: Outcome) -> RecordedExchange | None:
        if self._recording == "errors" and outcome is _OK:
            return None
        raw = b"" if call.result is None else bytes(call.result.raw)
        return keep_exchange(bytes(call.encoded), raw, call.route.link.report.redact)

    async def _judge(self, call: "PendingCall") -> None:
        """Check that the policy, or a person it asks, allows a call.

        Raises:
            BadArguments: Rules depend on arguments that servers may parse differently.
            Denied: It is not allowed.
        """
        if self._trail.is_blocking:
            raise Denied(
                "calls are refused while the audit log cannot be written",
                hint="`multitap status` says why; without `audit.required`, calls would continue",
            )
        route, encoded = call.route, call.encoded
        if route.guard is None:
            call.ruling = ALLOWED
            return
        ruling = await _ruling(route.guard, encoded)
        self.permissions.check(route, ruling)
        if ruling.decision is Decision.ASK:
            await self.permissions.ask(route, ruling, encoded, call.context, call.extra)
            call.deadline = None  # its time starts now: a person was asked
        call.ruling = ruling

    def _permit(self, agent: str, tool: Tool) -> None:
        """Check that the agent's filter shows the tool."""
        filter_ = self._filters.get(agent)
        if filter_ is not None and not allowed(tool.names, filter_):
            raise NotAllowed(
                f"agent {quoted(agent)} may not use {quoted(tool.name)}",
                hint=f"change the filter of agent {quoted(agent)}",
            )


def _prepare_task(route: Route, request: Request, context: CallContext) -> None:
    """Let the server make a task of a call if that is wanted, or if it does nothing else."""
    is_wanted = context.on_task is not None
    is_refused = route.tool.raw_name in route.link.task_tools and _can_wait(context)
    request.takes_task = is_wanted or is_refused
    if route.task_support == "required" or (route.task_support == "optional" and is_wanted):
        request.params = tasks.as_task(request.params)


def _may_take_task(exc: ServerError, request: Request, context: CallContext) -> bool:
    """Whether a call that was refused for want of a task is repeated for one."""
    return not request.takes_task and tasks.needs_task(exc) and _can_wait(context)


def _can_wait(context: CallContext) -> bool:
    """Whether a caller can be asked what a task asks."""
    return context.client is None or context.client.can_be_asked_now


def _created_task(route: Route, raw: Raw) -> tasks.TaskState | None:
    """The task that a server made of a call; None if the answer is something else.

    Raises:
        BadAnswer: It cannot be read.
    """
    if len(raw) > SMALL:  # a task that was just made has no result yet
        return None
    try:
        return tasks.read_created(raw)
    except ValueError as exc:
        raise BadAnswer(route.tool.server, str(exc)) from None


async def _inspect(call: PendingCall, request: Request, raw: Raw) -> ToolResult:
    """The result of an unusual answer, such as a task, which is followed.

    Raises:
        UpstreamError: It cannot be read, or the task failed.
    """
    if (created := _created_task(call.route, raw)) is None:
        return await _vet(call.route, raw)
    call.cached = None
    result = await _follow(call.route, request, call.context, raw, created)
    call.answered_at = perf_counter()
    request.waited = 0.0  # only the first of its requests
    return result


async def _follow(
    route: Route, request: Request, context: CallContext, raw: Raw, created: tasks.TaskState
) -> ToolResult:
    """The result of a task once it has ended; the task itself, if the caller takes it.

    Raises:
        UpstreamError: The task failed.
    """
    tool = route.tool
    if context.on_task is not None and await context.on_task(created.id):
        return ToolResult(raw, server=tool.server, tool=tool.raw_name, is_error_known=False)
    task = tasks.ServerTask(route.link, created.id, call=context, slot_holder=request.slot_holder)
    has_limit = context.timeout is not None or context.hard_timeout is not None
    ended = await task.wait(created, request, may_extend=not has_limit)
    return _look_at(route, ended) or await _vet(route, ended)


async def _ruling(guard: Guard, encoded: bytes | Raw) -> Ruling:
    """The policy's decision about a call.

    Raises:
        BadArguments: Rules depend on arguments that servers may parse differently.
    """
    # A thread costs more than decoding this much; `always` does not look at the arguments.
    if len(encoded) <= SMALL or guard.always is not None:
        return guard.decide(encoded)
    return await to_thread.run_sync(guard.decide, encoded, abandon_on_cancel=True)


def cap_of(tool: Tool, default: int) -> int:
    """Characters of a tool's text after which it is cut."""
    config = tool.link.config
    return config.result_caps.get(tool.raw_name) or config.result_cap or default


def _check(route: Route, arguments: Mapping[str, Any] | Raw) -> None:
    """Check arguments against the tool's schema, unless that is left to the server.

    Raises:
        BadArguments: They do not match, and such calls are refused.
    """
    try:
        size = None
        if isinstance(arguments, Raw):
            size = len(arguments)
            if size > CHECKED:  # checking it would block the loop
                return
            arguments = _decode_arguments(arguments)
        route.tool.checker.check(arguments, size=size)
    except BadArguments as exc:
        if route.check == "refuse":
            raise
        message = _redactor(route, arguments)(str(exc))
        route.link.report.note_misfit(route.tool.raw_name, message)


def _decode_arguments(arguments: Raw) -> Mapping[str, Any]:
    try:
        return _decode(arguments)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise BadArguments(f"the arguments cannot be read: {exc}", path="") from None


def _encode_arguments(arguments: Mapping[str, Any]) -> bytes:
    try:
        return encode(arguments)
    except (TypeError, ValueError, RecursionError) as exc:
        raise BadArguments(
            f"the arguments cannot be sent as JSON: {exc}", path="", hint="use plain values"
        ) from None


def _failure(exc: ServerError, tool: Tool) -> ToolResult:
    """A JSON-RPC error of a server as a failed result."""
    return ToolResult.from_error(
        f"{exc.server}: {exc.words}",
        code=exc.code,
        data=exc.data,
        server=tool.server,
        tool=tool.raw_name,
    )


def _failure_words(result: ToolResult, redact: Callable[[str], str]) -> str:
    """The error message of a failed call."""
    return redact(result.beginning(_LONGEST_ERROR) or result.error or "")


def _redactor(route: Route, arguments: Mapping[str, Any] | Raw) -> Callable[[str], str]:
    """Redacts what is kept of a call: servers repeat what they were given."""
    return route.link.report.redact.with_values(in_call(arguments))


def _add_phases(record: CallRecord) -> None:
    """Add the phases of a call to the span of its request, if that is recorded."""
    span = CURRENT.get()
    if span is None:
        return
    ended = int(record.at * 1e9)
    answered = ended - int(record.encoding * 1e9)
    sent = answered - int(record.answering * 1e9)
    span.set("multitap.server", record.server)
    for name, at, seconds in (
        ("multitap.queue", sent - int(record.connecting * 1e9), record.queued),
        ("multitap.connect", sent, record.connecting),
        ("multitap.exchange", answered, record.answering),
        ("multitap.encode", ended, record.encoding),
    ):
        if seconds > 0:
            span.add_event(name, at, {"multitap.seconds": round(seconds, 9)})
    if record.outcome in {_ERROR, Outcome.TIMEOUT, _CANCELLED}:
        span.fail(ERROR_TYPES[record.outcome])


def _event(record: CallRecord) -> CallDone:
    return CallDone(
        record.server,
        record.tool,
        record.seconds,
        record.outcome,
        record.bytes_in,
        record.error,
        record.agent,
        record.session,
    )


def _outcome(exc: MultitapError) -> tuple[Outcome, str]:  # noqa: PLR0911 - a table
    """How a call ended, and why, as metrics name it."""
    match exc:
        case CallTimeout():
            return Outcome.TIMEOUT, "timeout"
        case NotAllowed():
            return Outcome.REFUSED, "not_allowed"
        case BadArguments():
            return Outcome.REFUSED, "bad_arguments"
        case Denied():
            return Outcome.REFUSED, "denied"
        case Overloaded():
            return Outcome.REFUSED, "overloaded"
        case ServerError() if exc.code in _CODES:
            return Outcome.FAILED, str(exc.code)
        case Unavailable():
            return Outcome.FAILED, "unavailable"
        case BadAnswer():
            return Outcome.FAILED, "bad_answer"
        case _:
            return Outcome.FAILED, "_OTHER"


def _look_at(route: Route, raw: Raw) -> ToolResult | None:
    """The result of the usual kind, checked in one look; None if it takes a closer one."""
    if len(raw) > SMALL or route.scan != "off":
        return None
    try:
        sound = parse_sound(raw)
    except UNREADABLE:
        return None
    checker = route.result_checker
    if checker is not None and not sound.is_error and not checker.is_match(sound.structured):
        return None
    tool = route.tool
    return ToolResult(
        raw,
        server=tool.server,
        tool=tool.raw_name,
        is_error_known=sound.is_error,
        _sound=sound,
    )


async def _vet(route: Route, raw: Raw) -> ToolResult:
    """The result without malformed blocks; problems are added to the server's warnings.

    Raises:
        BadAnswer: It cannot be read.
    """
    size = len(raw)
    is_decoded = route.result_checker is not None or route.scan != "off"
    if size <= SMALL or (size <= LARGE and not is_decoded):
        result = _vet_result(route, raw)
    else:
        # a thread cannot be stopped: after a cancellation it runs to its end
        result = await to_thread.run_sync(_vet_result, route, raw, abandon_on_cancel=True)
    for warning in result.warnings:
        route.link.report.note_result(route.tool.raw_name, warning)
    return result


def _vet_result(route: Route, raw: Raw) -> ToolResult:
    tool = route.tool
    result = ToolResult(raw, server=tool.server, tool=tool.raw_name)
    if route.link.config.check_results != "off":
        _check_result(route, result)
    if route.scan != "off":
        _scan_result(route, result)
    result.is_error_known = result.is_error  # from here on without another check
    return result


def _scan_result(route: Route, result: ToolResult) -> None:
    """Scan a result for attacks on the model that reads it.

    Raises:
        BadAnswer: It looks like an attack, and such results are refused.
    """
    tool = route.tool
    # Structured content too: a model reads it as well, and an attack may be in only one of them.
    texts = [result.beginning(SCANNED), *texts_in(result.structured)]
    if not (findings := scan_text(" ".join(texts)[:SCANNED])):
        return
    if route.scan == "block":
        raise BadAnswer(
            tool.server,
            f"a result of {quoted(tool.raw_name)} looks like an attack: {findings[0].words}",
            hint='`scan = "report"` lets it pass',
        )
    result.warnings += (findings[0].words,)


def _check_result(route: Route, result: ToolResult) -> None:
    result.sift()
    checker = route.result_checker
    if checker is None or result.is_error or not result.answer.is_complete:
        return
    answer = result.answer
    structured = answer.outline.structured
    mismatch = checker.misfit(structured) if answer.has_structured else "it is missing"
    if mismatch is not None:
        result.warnings += (f"structured content does not match the output schema: {mismatch}",)
