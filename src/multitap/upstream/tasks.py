"""Tasks of a server: calls that outlive their request, in both dialects of the protocol.

Servers of 2025-11-25 make a task if the request has a `task` member, and return the result by
`tasks/result`. Those of the extension of 2026-07-28 decide themselves, for clients that declare it,
and return the result by `tasks/get`. Here both are one `TaskState`.
"""

import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import anyio
import msgspec
from msgspec import Raw

from multitap.errors import (
    BadAnswer,
    CallTimeout,
    MultitapError,
    ServerError,
    Unavailable,
    ungrouped,
)
from multitap.store.task_records import ENDED, TaskStatus
from multitap.upstream.handshake import Era
from multitap.upstream.link import Link
from multitap.upstream.questions import CallContext
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import (
    INVALID_PARAMS,
    MISSING_CAPABILITY,
    NOTHING,
    SERVER_ERROR,
    UNPARSABLE,
    RpcError,
    parse_error,
    parse_table,
)
from multitap.wire.request import Deadline, Request, make_request

BEAT: Final = 15.0
"""Seconds after which a caller that waits for a task sees progress, whatever the task says."""
MISSING_EXTENSION: Final[Mapping[str, Any]] = {
    "requiredCapabilities": {"extensions": {jsonrpc.TASKS: {}}}
}
"""The data of the error for a client that does not declare the extension."""

TTL = 3_600_000
"""Milliseconds for which we ask servers of the handshake era to keep a task."""
LONGEST_WAIT = 86_400.0
"""Seconds that a call waits for a task at most, whatever the task says."""
LONGEST_ID = 1024
"""Characters of a server's task id: it travels in ours, and ours in a header."""
_FASTEST, _USUAL, _SLOWEST = 0.25, 1.0, 60.0  # seconds between two polls
_ASK_TIMEOUT = 30.0  # seconds for a request about a task
_CANCEL_TIMEOUT = 2.0  # seconds for the cancellation of a call that is itself being cancelled


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a task, in whichever dialect it was told."""

    id: str
    status: TaskStatus = "working"
    message: str | None = None
    """What the server says about its progress."""
    created_at: str = ""
    updated_at: str = ""
    ttl: int | None = None
    """Milliseconds from its creation after which it may be forgotten; None: unknown."""
    poll: int | None = None
    """Milliseconds between two polls, as the server wishes."""
    questions: Raw = NOTHING
    """What it asks, by key; only from servers of the extension."""
    result: Raw = NOTHING
    error: Raw = NOTHING

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


class _Told(msgspec.Struct, rename="camel"):
    """A task as servers write it; durations have two spellings."""

    task_id: str
    status: TaskStatus
    status_message: str | None = None
    created_at: str = ""
    last_updated_at: str = ""
    ttl: float | None = None
    ttl_ms: float | None = None
    poll_interval: float | None = None
    poll_interval_ms: float | None = None
    input_requests: Raw = NOTHING
    result: Raw = NOTHING
    error: Raw = NOTHING


class _Created(msgspec.Struct):
    resultType: str = ""  # noqa: N815 - the wire's spelling
    task: Raw = NOTHING


_parse_told = msgspec.json.Decoder(_Told).decode
_parse_created = msgspec.json.Decoder(_Created).decode


def timestamp() -> str:
    """The time now, as both dialects write it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_state(task: Raw | bytes) -> TaskState:
    """A task as a server tells of it.

    Raises:
        ValueError: It cannot be read; says why.
    """
    try:
        parsed = _parse_told(task)
    except UNPARSABLE as exc:
        raise ValueError(f"its task cannot be read: {exc}") from None
    if not 0 < len(parsed.task_id) <= LONGEST_ID:
        raise ValueError(f"the id of its task should have 1 to {LONGEST_ID} characters")
    ttl = parsed.ttl if parsed.ttl_ms is None else parsed.ttl_ms
    poll = parsed.poll_interval if parsed.poll_interval_ms is None else parsed.poll_interval_ms
    now = timestamp()
    return TaskState(
        id=parsed.task_id,
        status=parsed.status,
        message=parsed.status_message,
        created_at=parsed.created_at or now,
        updated_at=parsed.last_updated_at or now,
        # whole and positive: clients refuse anything else
        ttl=None if ttl is None else max(1, round(ttl)),
        poll=None if poll is None else max(1, round(poll)),
        questions=parsed.input_requests,
        result=parsed.result,
        error=parsed.error,
    )


def read_created(result: Raw | bytes) -> TaskState | None:
    """The task that a server made of a call; None if the answer is something else.

    Raises:
        ValueError: It is a task that cannot be read.
    """
    try:
        created = _parse_created(result)
    except UNPARSABLE:
        return None
    if created.resultType == "task":
        return read_state(result)
    # a result of any kind may have a member of that name, so the other ones decide
    is_task = len(created.task) and b'"content"' not in bytes(result)
    return read_state(created.task) if is_task else None


def needs_task(exc: MultitapError) -> bool:
    """Whether a server refuses a call because its caller does not take a task."""
    if not isinstance(exc, ServerError) or exc.code != MISSING_CAPABILITY:
        return False
    return jsonrpc.TASKS.encode() in jsonrpc.encode(exc.data)


def as_task(params: bytes | None) -> bytes:
    """The parameters of a call, with the wish for a task in the dialect of the handshake era."""
    # servers of the extension ignore it
    return b'%b,"task":{"ttl":%d}' % (params or b"", TTL)


def poll_pause(state: TaskState) -> float:
    """Seconds until the next poll: as the server wishes, within bounds, and not all at once."""
    pause = _USUAL if state.poll is None else state.poll / 1000
    return min(max(pause, _FASTEST), _SLOWEST) * random.uniform(1.0, 1.1)  # noqa: S311 - no secret


def plain_result(result: Raw | bytes) -> Raw:
    """The result of a task, as the answer to a plain call would be."""
    data = bytes(result)
    if jsonrpc.RELATED_TASK_KEY.encode() not in data:
        return Raw(data)
    table = parse_table(data)
    meta = parse_table(table.pop("_meta", jsonrpc.EMPTY))
    meta.pop(jsonrpc.RELATED_TASK_KEY, None)
    return Raw(jsonrpc.encode({**table, "_meta": meta} if meta else table))


class ServerTask:
    """One task of a server, and the requests about it.

    Args:
        link: The server.
        id: The server's id of the task.
        call: The context of the call, whose client answers what the task asks.
        slot_holder: The holder whose share of the server's slots the requests use.
    """

    def __init__(
        self,
        link: Link,
        id: str,  # noqa: A002 - what it is called everywhere
        *,
        call: object | None = None,
        slot_holder: object = None,
    ) -> None:
        self._link = link
        self.id = id
        self._call = call
        self._slot_holder = slot_holder

    async def state(self) -> TaskState:
        """Its state now; with the result or the error, if it has ended.

        Raises:
            ServerError: The server does not know it.
            UpstreamError: The server could not answer.
        """
        state = self._read(await self._ask("tasks/get"))
        if state.has_ended and self._link.era is Era.HANDSHAKE:
            state = await self._with_result(state)
        return state

    async def update(self, answers: Mapping[str, Any] | Raw) -> None:
        """Answer what it asks; only servers of the extension take that."""
        await self._ask("tasks/update", {"inputResponses": answers})

    async def cancel(self) -> None:
        """Ask the server to cancel it; one that has ended stays as it is."""
        await self._ask("tasks/cancel")

    async def wait(self, state: TaskState, request: Request, *, may_extend: bool) -> Raw:
        """Wait for its end, and return the result as the call itself would.

        Args:
            state: Its state when it was made.
            request: The call that it was made of: its deadline, and who sees its progress.
            may_extend: Whether it may take longer than a call: the caller has set no limit.

        Raises:
            ServerError: The task failed, or was cancelled at the server.
            UpstreamError: The server is gone, or the time is over.
        """
        deadline = request.deadline
        if may_extend:
            # what a server makes a task of takes long: each answer to a poll shows that it is alive
            most = LONGEST_WAIT if state.ttl is None else min(state.ttl / 1000, LONGEST_WAIT)
            deadline.latest = max(deadline.latest, anyio.current_time() + most)
        try:
            with ungrouped():
                if self._link.era is Era.HANDSHAKE:
                    return await self._collect(state, request)
                return await self._poll(state, request)
        except BaseException as exc:
            # the server would go on working for nobody
            if not isinstance(exc, ServerError) and not self._is_left(exc):
                with anyio.CancelScope(shield=True), anyio.move_on_after(_CANCEL_TIMEOUT):
                    await self._try_cancel()
            raise

    def _is_left(self, exc: BaseException) -> bool:
        """Whether somebody will follow it again, because only this process ends."""
        outlives_us = self._call.outlives_us if isinstance(self._call, CallContext) else None
        is_cancelled = isinstance(exc, anyio.get_cancelled_exc_class())
        return is_cancelled and outlives_us is not None and outlives_us()

    async def _poll(self, state: TaskState, request: Request) -> Raw:
        """Poll a task of the extension, and answer what it asks."""
        answered: set[str] = set()
        steps = _Steps(request)
        while not state.has_ended:
            steps.show(state)
            if state.status == "input_required" and len(state.questions):
                await self._answer(state, answered)
                request.deadline.renew(anyio.current_time())
            await self._pause(state, request.deadline, steps)
            state = await self._next_state(request.deadline)
        return self._outcome(state)

    async def _collect(self, state: TaskState, request: Request) -> Raw:
        """Hold `tasks/result`, during which a server of the handshake era asks its questions."""
        deadline, steps, result = request.deadline, _Steps(request), NOTHING
        failure: MultitapError | None = None
        async with anyio.create_task_group() as tasks:

            async def poll(state: TaskState) -> None:
                nonlocal failure
                try:
                    while not state.has_ended:
                        steps.show(state)
                        await self._pause(state, deadline, steps)
                        state = await self._next_state(deadline)
                except MultitapError as exc:
                    failure = exc  # not raised: the other request may fail at the same time
                    tasks.cancel_scope.cancel()

            tasks.start_soon(poll, state)
            try:
                result = await self._ask("tasks/result", deadline=deadline)
            except ServerError as exc:
                if exc.code == INVALID_PARAMS:  # the error of the task, or its server forgot it
                    await self._next_state(deadline)
                raise
            tasks.cancel_scope.cancel()
        if failure is not None and result is NOTHING:
            raise failure
        return plain_result(result)

    async def _next_state(self, deadline: Deadline) -> TaskState:
        try:
            state = self._read(await self._ask("tasks/get"))
        except ServerError as exc:
            if exc.code != INVALID_PARAMS:
                raise
            raise Unavailable(self._link.name, LOST) from None
        deadline.renew(anyio.current_time())
        return state

    async def _pause(self, state: TaskState, deadline: Deadline, steps: "_Steps") -> None:
        left = deadline.latest - anyio.current_time()
        if left <= 0:
            hint = "raise `hard_timeout` if it needs that long"
            raise CallTimeout(self._link.name, deadline.words("tools/call"), hint=hint)
        pause = min(poll_pause(state), left)
        while pause > BEAT:
            await anyio.sleep(BEAT)
            steps.show(state)
            pause -= BEAT
        await anyio.sleep(pause)

    async def _answer(self, state: TaskState, answered: set[str]) -> None:
        questions = {
            key: question
            for key, question in parse_table(state.questions).items()
            # keys are never used twice; a server may show one until it has read the answer
            if key not in answered
        }
        session = self._link.session
        if not questions or session is None:
            return
        answered |= questions.keys()
        try:
            answers = await session.answer_inputs(self._call, Raw(jsonrpc.encode(questions)))
        except RpcError as exc:
            await self._try_cancel()
            raise ServerError(self._link.name, str(exc), code=exc.code, data=exc.data) from None
        await self.update(answers)

    def _outcome(self, state: TaskState) -> Raw:
        if state.status == "completed" and len(state.result):
            result = plain_result(state.result)
            # inside a task it may be missing; clients of this era refuse a call's result without
            if b'"resultType"' in bytes(result):
                return result
            return Raw(jsonrpc.encode({"resultType": "complete", **parse_table(result)}))
        raise self._failure(state)

    def _failure(self, state: TaskState) -> ServerError:
        name = self._link.name
        if state.status == "cancelled":
            return ServerError(name, "the task was cancelled at the server", code=SERVER_ERROR)
        try:
            error = parse_error(state.error)
        except UNPARSABLE:
            reason = state.message or "the task failed without giving a reason"
            return ServerError(name, reason, code=SERVER_ERROR)
        return ServerError(name, error.message, code=error.code, data=error.data)

    async def _with_result(self, state: TaskState) -> TaskState:
        """The state of an ended task of the handshake era, as the extension would tell it."""
        replace = msgspec.structs.replace
        if state.status == "cancelled":
            return state
        try:
            result = plain_result(await self._ask("tasks/result"))
        except ServerError as exc:
            error = {"code": exc.code, "message": exc.words}
            if exc.data is not None:
                error["data"] = exc.data
            return replace(state, status="failed", error=Raw(jsonrpc.encode(error)))
        # a tool that reports an error has run: only the handshake era calls that a failed task
        return replace(state, status="completed", result=result)

    def _read(self, answer: Raw) -> TaskState:
        try:
            state = read_state(answer)
        except ValueError as exc:
            raise BadAnswer(self._link.name, str(exc)) from None
        if state.id != self.id:
            raise BadAnswer(self._link.name, "it answered about another task")
        return state

    async def _try_cancel(self) -> None:
        try:
            await self.cancel()
        except MultitapError:
            return  # it may have ended, or its server

    async def _ask(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> Raw:
        request = make_request(
            method,
            {"taskId": self.id, **(params or {})},
            _ASK_TIMEOUT if deadline is None else deadline,
            call=self._call,
            slot_holder=self._slot_holder,
            repeatable=True,
        )
        request.takes_task = True
        return await self._link.request(request)


LOST = "it no longer knows the task: it was restarted, or the task has expired"
"""Why a task has no end that its server could tell."""


class _Steps:
    """Shows what a task says about itself as progress; from time to time also if it is not new.

    Clients give up on a call from which they hear nothing.
    """

    def __init__(self, request: Request) -> None:
        self._on_progress = request.on_progress
        self._shown: str | None = None
        self._count = 0
        self._last = anyio.current_time()

    def show(self, state: TaskState) -> None:
        is_new = bool(state.message) and state.message != self._shown
        is_due = anyio.current_time() - self._last >= BEAT
        if self._on_progress is None or not (is_new or is_due):
            return
        self._count += 1
        self._shown, self._last = state.message, anyio.current_time()
        self._on_progress(float(self._count), None, state.message)
