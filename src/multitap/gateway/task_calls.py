"""Calls of clients that take a task instead of the result: relayed, or run here."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
import msgspec
from msgspec import Raw
from msgspec.structs import replace

from multitap.config import StdioServer
from multitap.config.documents import is_table
from multitap.gateway.calls import Job, JobRunner, ToolCalls, for_client
from multitap.gateway.client import ClientRequest, fit
from multitap.gateway.eras import to_handshake
from multitap.gateway.parked_calls import ParkedCalls
from multitap.gateway.task_dialects import TaskId, TaskIds, describe, state_of
from multitap.hub.routes import Route
from multitap.hub.task_runs import KEPT, LONGEST_KEPT, TaskRun, TaskRuns, Work, new_record
from multitap.store.task_records import TaskRecord
from multitap.upstream.handshake import Era
from multitap.upstream.link import Link
from multitap.upstream.questions import CallContext, OnBehalfOf
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import INVALID_PARAMS, UNPARSABLE, Result, RpcError, parse_table
from multitap.wire.request import Deadline

_MOST_PLACES = 4096  # tasks whose sessions are remembered
SLOW = 5.0
"""Seconds after which a call of a client that takes tasks becomes one."""


class TaskAsker:
    """A client on whose behalf a call runs: asked during its request, later when it polls.

    An `OnBehalfOf`.
    """

    def __init__(self, request: ClientRequest, first: OnBehalfOf | None, run: TaskRun) -> None:
        client = request.client
        self.capabilities = request.capabilities.copy()
        self.log_level = request.log_level
        self.caller = request.caller
        self.principal = request.principal
        self.holder = client.holder
        self.slot_holder = request.slot_holder
        self.owner: object = client if client.single else self
        self.can_be_asked_now = True
        self.asked = 0
        """How many questions wait for an answer to the request itself."""
        self._is_stateless = request.is_stateless
        self._first = first
        self._run = run

    @property
    def drives_rounds(self) -> bool:
        # until it is a task, the client itself answers what a stateless server asks back
        return self._is_stateless and not self._is_task

    @property
    def _is_task(self) -> bool:
        # also if only its server knows: what it asks then belongs to the task
        return self._first is None or self._run.is_task or bool(self._run.record.upstream)

    def on_notification(self, method: str, params: Raw) -> None:
        if self._first is not None and not self._is_task:
            self._first.on_notification(method, params)

    async def ask(self, method: str, params: Mapping[str, Any]) -> Raw:
        if self._first is None or self._is_task:
            question = {**fit(self.capabilities, method, params)}
            question.pop("elicitationId", None)
            return await self._run.ask(method, question)
        self.asked += 1
        try:
            return await self._first.ask(method, params)
        finally:
            self.asked -= 1
            self._run.changed.ring()


class TaskPlaces:
    """Which session knows a task: each session with a program is a process of its own."""

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}

    def remember(self, record: str, link: Link) -> None:
        if isinstance(link.config, StdioServer):  # any other session leads to the same server
            self._links[record] = link
            if len(self._links) > _MOST_PLACES:
                del self._links[next(iter(self._links))]

    def find(self, record: str) -> Link | None:
        """The session that knows a task, if that is still up."""
        link = self._links.get(record)
        return None if link is None or link.session is None else link


class TaskCalls:
    """Makes tasks of clients' calls.

    Args:
        parked_calls: Where a call waits for a stateless client before it is a task.
        places: Remembers which sessions know tasks.
    """

    def __init__(
        self,
        runs: TaskRuns,
        calls: ToolCalls,
        jobs: JobRunner,
        parked_calls: ParkedCalls,
        ids: TaskIds,
        *,
        places: TaskPlaces,
    ) -> None:
        self._runs = runs
        self._calls = calls
        self._jobs = jobs
        self._parked_calls = parked_calls
        self._ids = ids
        self._places = places
        self.slow = SLOW

    async def call(self, request: ClientRequest, route: Route, since: float | None) -> Result:
        """Call a tool for a client that takes a task instead of the result."""
        subject = f"tools/call {route.tool.name}"
        if request.is_stateless and self._parked_calls.issued(request.params.request_state):
            return await self._parked_calls.resume(request, subject)
        link = await self._jobs.session(request, route.link)
        job = self._calls.job(request, route, link)
        link = job.link
        if request.is_stateless and _has_extension(link):
            return await self._jobs.run(request, self._relaying(request, route, job), since)
        began = since or anyio.current_time()
        if not request.is_stateless:
            run, _ = self._begin(request, route, job, None, began)
            if route.task_support != "forbidden" or _has_extension(link):
                # its record should say where the task is: then it outlives this process
                with anyio.move_on_after(self.slow):
                    while (
                        not run.record.upstream and not run.record.has_ended and not run.questions
                    ):
                        await run.changed.wait()
            public_id, ttl = await self._sealed(request, run.record), _ttl_of(request)
            # only now: it may have changed while the id was sealed
            run.record = replace(run.record, public_id=public_id, ttl=max(ttl, run.record.ttl))
            await self._publish(run)
            self._tell_of_changes(request, run)
            return jsonrpc.encode({"task": describe(state_of(run.record), stateless=False)})
        return await self._parked_calls.begin(
            request, subject, partial(self._outgrow, request, route, job, began)
        )

    def _relaying(self, request: ClientRequest, route: Route, job: Job) -> Job:
        """A job whose server may answer with a task, which is then the client's."""

        async def do(link: Link, context: CallContext, deadline: Deadline) -> Raw | bytes:
            created = ""

            async def on_task(task_id: str) -> bool:
                nonlocal created
                created = task_id
                return True

            raw = await job.do(link, replace(context, on_task=on_task), deadline)
            return await self._adopt(request, route, link, created, raw) if created else raw

        return replace(job, do=do)

    async def _adopt(
        self, request: ClientRequest, route: Route, link: Link, upstream: str, raw: Raw | bytes
    ) -> bytes:
        """A server's answer with a new task, as its client sees it."""
        answer = parse_table(raw)
        record = replace(self._record(request, route), upstream=upstream)
        self._places.remember(record.id, link)
        if (ttl := jsonrpc.number_of(answer.get("ttlMs"))) is not None:
            record = replace(record, ttl=max(1.0, ttl / 1000))
        sealed = await self._sealed(request, record, upstream)
        # listed, but not needed: the id alone leads to the task
        await self._runs.records.save(replace(record, public_id=sealed))
        return jsonrpc.encode({**answer, "taskId": sealed})

    def _record(self, request: ClientRequest, route: Route) -> TaskRecord:
        tool = route.tool
        return new_record(
            tool.server,
            tool.raw_name,
            tool.name,
            arguments=request.params.arguments,
            principal=request.principal.task_owner,
            caller=request.caller,
        )

    async def _sealed(self, request: ClientRequest, record: TaskRecord, upstream: str = "") -> str:
        task_id = TaskId(record.id, record.server, record.tool, upstream)
        return await self._ids.seal(task_id, request.principal)

    def _begin(
        self,
        request: ClientRequest,
        route: Route,
        job: Job,
        first: CallContext | None,
        since: float,
    ) -> tuple[TaskRun, list[TaskAsker]]:
        askers: list[TaskAsker] = []

        def working(run: TaskRun) -> Work:
            asker = TaskAsker(request, None if first is None else first.client, run)
            askers.append(asker)

            def on_progress(done: float, total: float | None, message: str | None) -> None:
                run.report(done, total, message)
                if first is not None and first.on_progress is not None and not run.is_task:
                    first.on_progress(done, total, message)

            async def on_task(task_id: str) -> bool:
                run.become(run.record.status, run.record.message, upstream=task_id)
                if run.is_task:
                    await self._runs.records.save(run.record)
                return False

            context = CallContext(
                client=asker, on_progress=on_progress, on_task=on_task, outlives_us=run.is_kept
            )

            async def work() -> Raw | bytes:
                raw = await self._jobs.make(request, job, context, since)
                # stored in the handshake era's form, for clients of both eras
                return plain(job.link, raw) if run.is_task else raw

            return work

        record = self._record(request, route)
        return self._runs.begin(record, working, request.client.holder), askers

    async def _outgrow(
        self, request: ClientRequest, route: Route, job: Job, since: float, context: CallContext
    ) -> Result:
        """The result of a call; if that takes long or the server makes a task of it, a task."""
        run, (asker,) = self._begin(request, route, job, context, since)
        until = anyio.current_time() + self.slow
        try:
            while not run.record.has_ended and not run.record.upstream:
                left = until - anyio.current_time()
                # a question that the client answers by repeating its request holds that up
                if left <= 0 and not asker.asked:
                    break
                with anyio.move_on_after(None if asker.asked else left):
                    await run.changed.wait()
            if not run.record.has_ended:
                # as it is now: it may end while its id is sealed, and then this answer, which is
                # no place for a result, must not say so
                state = state_of(run.record)
                public_id = await self._sealed(request, run.record)
                run.record = replace(run.record, public_id=public_id)
                await self._publish(run)
                description = describe(replace(state, id=public_id), stateless=True)
                return jsonrpc.encode({"resultType": "task", **description})
        except BaseException:
            run.scope.cancel()  # its client has left, and does not know of a task
            raise
        if run.failure is not None:
            raise run.failure
        return for_client(request, job.link, run.raw)

    async def _publish(self, run: TaskRun) -> None:
        if not run.record.has_ended:
            await self._runs.publish(run)
            return
        # it ended in the meantime, so nobody else writes its end
        await self._runs.records.save(run.record)

    def _tell_of_changes(self, request: ClientRequest, run: TaskRun) -> None:
        """Send a session the status of its task whenever that changes."""
        outlet = request.client.outlet

        async def tell() -> None:
            last: tuple[str, str | None] | None = None
            while not request.client.has_left:
                record = run.record
                if (record.status, record.message) != last:
                    last = (record.status, record.message)
                    status = describe(state_of(record), stateless=False)
                    outlet.send(jsonrpc.notification("notifications/tasks/status", status))
                if record.has_ended:
                    return
                await run.changed.wait()

        self._runs.start_soon(tell)


def _has_extension(link: Link) -> bool:
    """Whether a server makes tasks in the dialect of the stateless era."""
    session = link.session
    if link.era is not Era.STATELESS or session is None:
        return False
    extensions = session.capabilities.others.get("extensions")
    return is_table(extensions) and jsonrpc.TASKS in extensions


def plain(link: Link, raw: Raw | bytes) -> Raw | bytes:
    """A result as a server of the handshake era would send it."""
    if link.era is not Era.STATELESS:
        return raw
    whole = to_handshake(raw)
    return b"".join(whole) if isinstance(whole, tuple) else Raw(bytes(whole))


def _ttl_of(request: ClientRequest) -> float:
    """Seconds for which a client of the handshake era wants its task kept."""
    try:
        ttl = msgspec.json.decode(parse_table(request.params.task).get("ttl", b"null"))
    except UNPARSABLE:
        raise RpcError(INVALID_PARAMS, "`task` must be an object") from None
    if not isinstance(ttl, int | float) or ttl <= 0:
        return KEPT
    return min(ttl / 1000, LONGEST_KEPT)
