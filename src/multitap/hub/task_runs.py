"""Calls that outlive their request: each runs on here, and its record outlives the process."""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from msgspec import Raw
from msgspec.structs import replace

from multitap.errors import MultitapError, Overloaded, ServerError, UnknownName, quoted
from multitap.limits import Shares
from multitap.results import ToolResult
from multitap.store.task_records import TaskRecord, TaskRecords, TaskStatus
from multitap.tasks import Bell, CancelHandle, Tasks
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import INTERNAL_ERROR, SERVER_ERROR, UNPARSABLE, RpcError

if TYPE_CHECKING:
    from pydantic import BaseModel

KEPT = 3600.0
"""Seconds for which a task is kept after its end."""
LONGEST_KEPT = 86_400.0
"""Seconds for which a client may have one kept."""
MOST_RUNNING = 1024
"""Tasks that run here at the same time; each holder has a fair share of them."""
LARGEST_ARGUMENTS = 64 * 1024
"""Bytes of arguments that are kept for the policy."""
INTERRUPTED = (
    "the gateway was stopped or restarted while it ran this call, so its outcome is not known"
)

Work = Callable[[], Awaitable[Raw | bytes]]
"""Makes the call; returns the result as a server of the handshake era would."""


class _IsError(msgspec.Struct):
    isError: bool = False  # noqa: N815 - the wire's spelling


_parse_is_error = msgspec.json.Decoder(_IsError).decode


def new_record(
    server: str, tool: str, name: str, *, arguments: Raw = jsonrpc.EMPTY, **more: Any
) -> TaskRecord:
    """The record of a call that begins now."""
    now = time.time()
    stored = bytes(arguments) if len(arguments) <= LARGEST_ARGUMENTS else b"{}"
    return TaskRecord(
        id=secrets.token_hex(12),  # people type it: one that begins with "-" would be an option
        server=server,
        tool=tool,
        name=name,
        created=now,
        updated=now,
        ttl=more.pop("ttl", KEPT),
        arguments=stored,
        **more,
    )


def error_body(exc: Exception) -> bytes:
    """The JSON-RPC error of a failed call."""
    body: dict[str, Any] = {"code": INTERNAL_ERROR, "message": str(exc) or type(exc).__name__}
    if isinstance(exc, ServerError):
        body = {"code": exc.code, "message": exc.words, "data": exc.data}
    elif isinstance(exc, RpcError):
        body = {"code": exc.code, "message": str(exc), "data": exc.data}
    elif isinstance(exc, MultitapError):
        body["code"] = SERVER_ERROR
        body["message"] = f"{exc}; {exc.hint}" if exc.hint else str(exc)
    if body.get("data", ...) is None:
        del body["data"]
    return jsonrpc.encode(body)


class TaskRun:
    """One call that runs here, and what is known about it."""

    def __init__(self, record: TaskRecord, holder: str = "") -> None:
        self.record = record
        """Replaced with every change."""
        self.holder = holder
        self.is_task = False
        """Whether its caller has been told that it is a task: its record is kept."""
        self.changed = Bell()
        self.scope = CancelHandle()
        self.saving = anyio.Lock()
        """Held while its record is written, so that the end is written last."""
        self.failure: Exception | None = None
        """Why it failed, as it was raised."""
        self.raw: Raw | bytes = b""
        """Its result as it was returned, until it is a task."""
        self._questions: dict[str, tuple[dict[str, Any], asyncio.Future[Raw]]] = {}
        self._keys = count(1)

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def questions(self) -> dict[str, dict[str, Any]]:
        """What waits for its client, by key."""
        return {key: question for key, (question, _) in self._questions.items()}

    def is_kept(self) -> bool:
        """Whether it goes on after this process: its record is kept, and nobody cancelled it."""
        return self.is_task and not self.scope.stopped

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Show the progress of the call as its status."""
        if message is None:
            done = f"{progress:g}"
            message = done if total is None else f"{done} of {total:g}"
        self.become(self.record.status, message)

    def become(self, status: TaskStatus, message: str | None = None, **more: Any) -> None:
        """Change its state, unless it has ended."""
        if self.record.has_ended:
            return
        self.record = replace(
            self.record, status=status, message=message, updated=time.time(), **more
        )
        self.changed.ring()

    async def ask(self, method: str, params: Mapping[str, Any]) -> Raw:
        """Ask its client when that looks at it next."""
        key = f"{method.partition('/')[0]}-{next(self._keys)}"
        answer: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self._questions[key] = ({"method": method, "params": {**params}}, answer)
        self.become("input_required", self.record.message)
        try:
            return await answer
        finally:
            self._questions.pop(key, None)
            if not self._questions:
                self.become("working", self.record.message)

    def answer(self, responses: Mapping[str, Raw | RpcError]) -> None:
        """Pass on answers; unknown keys are ignored."""
        for key, response in responses.items():
            _, waiting = self._questions.pop(key, (None, None))
            if waiting is None or waiting.done():
                continue
            if isinstance(response, RpcError):
                waiting.set_exception(response)
            else:
                waiting.set_result(response)
        if not self._questions:
            self.become("working", self.record.message)

    async def ended(self) -> TaskRecord:
        """Its record, once it has ended."""
        while not self.record.has_ended:
            await self.changed.wait()
        return self.record


class CallQuestion(msgspec.Struct, frozen=True):
    """What a server asks during a started call."""

    key: str
    method: str
    """`elicitation/create` or `sampling/createMessage`."""
    params: Mapping[str, Any]
    """As the protocol has them: `message` and `requestedSchema`, or `messages`."""


class StartedCall:
    """A call that runs by itself; made by `Hub.start`."""

    def __init__(self, runs: "TaskRuns", run: TaskRun) -> None:
        self._runs = runs
        self._run = run

    @property
    def id(self) -> str:
        """Its id, by which `multitap tasks` shows it."""
        return self._run.id

    @property
    def status(self) -> TaskStatus:
        """Whether it works, waits for an answer, or has ended, and how."""
        return self._run.record.status

    @property
    def message(self) -> str | None:
        """What it last said about its progress."""
        return self._run.record.message

    async def questions(self) -> AsyncIterator[CallQuestion]:
        """What its server asks, each question once, until the call ends.

        The hub needs `Handlers(callers_answer_within=…)`. While one is open, the status is
        `input_required`.
        """
        seen: set[str] = set()
        while (question := await self.next_question(seen)) is not None:
            yield question

    async def next_question(self, seen: set[str]) -> CallQuestion | None:
        """The next question that is not in `seen`, and is put there; None if the call has ended."""
        while not self._run.record.has_ended:
            for key, question in self._run.questions.items():
                if key not in seen:
                    seen.add(key)
                    return CallQuestion(key, question["method"], question["params"])
            await self._run.changed.wait()
        return None

    def answer(self, question: CallQuestion, result: "BaseModel | Mapping[str, Any]") -> None:
        """Answer a question, or refuse it with an `ErrorData`.

        Raises:
            UnknownName: It is not open: somebody answered it, or the call ended meanwhile.
        """
        if question.key not in self._run.questions:
            raise UnknownName(f"the question {question.key!r} is not open any more")
        table = result if isinstance(result, Mapping) else _dump(result)
        if isinstance(table.get("code"), int):
            refusal = RpcError(table["code"], table["message"], table.get("data"))
            self._run.answer({question.key: refusal})
        else:
            self._run.answer({question.key: Raw(jsonrpc.encode(table))})

    async def result(self) -> ToolResult:
        """Its result, once it has ended.

        Raises:
            MultitapError: It failed, or was cancelled.
        """
        record = await self._run.ended()
        if self._run.failure is not None:
            raise self._run.failure
        if record.status != "completed":
            raise MultitapError(f"the call of {quoted(record.name)} was cancelled")
        return ToolResult(record.result, server=record.server, tool=record.tool)

    async def cancel(self) -> None:
        """Cancel it, at the server too; one that has ended stays as it is."""
        if not self._run.record.has_ended:
            await self._runs.cancel(self._run)


class TaskRuns:
    """All tasks that run here, and the records of all tasks.

    Args:
        tasks: Runs the calls.
        records: Keeps their records.
    """

    def __init__(self, tasks: Tasks, records: TaskRecords) -> None:
        self._tasks = tasks
        self.records = records
        self.runner = own_name()
        """The name of this process in records; in a cluster, that of the replica."""
        self.running: dict[str, TaskRun] = {}
        self._shares = Shares(MOST_RUNNING, "tasks at a time")

    def begin(self, record: TaskRecord, work: Callable[[TaskRun], Work], holder: str) -> TaskRun:
        """Start a call; it is no task until `publish`.

        Raises:
            Overloaded: Its caller has too many.
        """
        if not self._shares.take(holder):
            raise Overloaded(record.server, self._shares.refusal(holder))
        run = TaskRun(replace(record, runner=self.runner), holder)
        self.running[run.id] = run
        self._tasks.start_apart(self._run, run, work(run))
        return run

    def start_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something besides, for as long as the hub is open."""
        self._tasks.start_apart(work)

    async def publish(self, run: TaskRun) -> None:
        """Make a call a task: from now on it is found, whatever happens to this process.

        Raises:
            MultitapError: Its record cannot be kept.
        """
        async with run.saving:
            run.is_task = True  # first: it may end while it is written
            try:
                await self.records.save(run.record)
            except MultitapError:
                run.is_task = False
                raise

    async def cancel(self, run: TaskRun) -> None:
        """End a call; its record says so before this returns."""
        # first: an error on its way out must not count as its outcome
        run.become("cancelled", ttl=_kept(run.record))
        run.scope.cancel()
        if run.is_task:
            async with run.saving:
                await self.records.save(run.record)

    async def find(self, task_id: str) -> TaskRun | TaskRecord | None:
        """A task that runs here, or the record of another; None if it is not known."""
        if (run := self.running.get(task_id)) is not None:
            return run
        return await self.records.load(task_id)

    def is_lost(self, record: TaskRecord) -> bool:
        """Whether the process that ran a task is gone, as far as this machine can tell."""
        if record.has_ended or not record.runner:
            return False
        # one of our own that does not run any more was lost, too
        return record.runner == self.runner or not is_running(record.runner)

    async def fail(self, record: TaskRecord, reason: str = INTERRUPTED) -> TaskRecord:
        """End a task that nobody runs any more."""
        error = jsonrpc.encode({"code": INTERNAL_ERROR, "message": reason})
        failed = replace(record, status="failed", message=reason, error=error, updated=time.time())
        await self.records.save(failed)
        return failed

    async def _run(self, run: TaskRun, work: Work) -> None:
        try:
            with run.scope:
                await self._work(run, work)
            if run.scope.stopped:
                run.become("cancelled")
            if run.is_task:
                await self._keep(run)
        finally:
            # only now: until its end is written, whoever asks for it finds it here
            del self.running[run.id]
            self._shares.give(run.holder)

    async def _work(self, run: TaskRun, work: Work) -> None:
        try:
            result = await work()
        except Exception as exc:  # noqa: BLE001 - boundary: its caller is told, now or later
            run.failure = exc
            run.become("failed", str(exc)[:500], error=error_body(exc), ttl=_kept(run.record))
            return
        run.raw = result
        try:
            is_error = _parse_is_error(result).isError
        except UNPARSABLE:
            is_error = False
        message, data = run.record.message, bytes(result)
        run.become("completed", message, result=data, is_error=is_error, ttl=_kept(run.record))

    async def _keep(self, run: TaskRun) -> None:
        """Keep the end of a task; while that fails, it stays here."""
        pause = 1.0  # seconds; a full disk, or a coordinator that is down, may last
        while True:
            try:
                async with run.saving:
                    await self.records.save(run.record)
            except MultitapError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, 60.0)
            else:
                return


def _dump(result: "BaseModel") -> dict[str, Any]:
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


def _kept(record: TaskRecord) -> float:
    """The lifetime of a task that ends now: its result must not expire with its end."""
    return max(record.ttl, time.time() - record.created + KEPT)


def own_name() -> str:
    """A name for this process that no later one has."""
    # a pid alone is used again by later processes
    pid = os.getpid()
    return f"{pid}.{_started(pid) or secrets.token_hex(4)}"


def is_running(runner: str) -> bool:
    """Whether a process still runs, by its name."""
    pid, _, started = runner.partition(".")
    if not pid.isdigit():
        return False
    if (now := _started(int(pid))) is not None:
        return now == started
    try:
        os.kill(int(pid), 0)
    except (OSError, OverflowError):
        return False
    # where there is /proc, one that runs has been found there
    return not Path("/proc/self").exists()


def _started(pid: int) -> str | None:
    """When a process started, in ticks since the machine did; None if that is not known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # the name of the program comes before, and may contain spaces and brackets
    return stat.rpartition(")")[2].split()[19]
