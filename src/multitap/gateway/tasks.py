"""What clients ask about their tasks, in both dialects.

A task of a server of the extension is relayed to a client of the extension: its id, sealed, says
where it is, so any replica can ask for it, also after a restart. Every other task runs here
(`hub/task_runs.py`): a call, or the wait for a server's task of the other dialect.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import anyio
from msgspec import Raw
from msgspec.structs import replace

from multitap.catalog.audience import Audience
from multitap.catalog.catalog import Tool
from multitap.config import HttpServer
from multitap.errors import Denied, ServerError, Unavailable, quoted
from multitap.gateway import client_errors
from multitap.gateway.calls import JobRunner
from multitap.gateway.client import ClientRequest, OnOtherReplica
from multitap.gateway.lists import Cursor, Cursors
from multitap.gateway.task_calls import TaskAsker, TaskPlaces, plain
from multitap.gateway.task_dialects import (
    TaskId,
    TaskIds,
    declares_tasks,
    describe,
    detailed,
    moment,
    state_of,
)
from multitap.gateway.view import View
from multitap.hub.hub import Hub
from multitap.hub.routes import Route
from multitap.hub.task_runs import KEPT, TaskRun, Work, new_record
from multitap.store.task_records import TaskRecord
from multitap.trust.policy import Decision
from multitap.upstream.link import Link
from multitap.upstream.questions import CallContext
from multitap.upstream.tasks import LOST, MISSING_EXTENSION, ServerTask, TaskState, poll_pause
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import (
    EMPTY,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    Result,
    RpcError,
    parse_table,
)
from multitap.wire.request import Deadline, Request

PAGE = 50
"""Tasks on one page of `tasks/list`."""
_USUAL_PAUSE = 1.0  # seconds until a server that is away is asked again
_ACK = b'{"resultType":"complete"}'


class ClientTasks:
    """Answers what clients ask about their tasks.

    Args:
        places: Knows which sessions know tasks.
        is_alive: Whether another replica runs; None outside a cluster.
    """

    def __init__(
        self,
        hub: Hub,
        view: Callable[[Audience], View],
        jobs: JobRunner,
        ids: TaskIds,
        *,
        places: TaskPlaces,
        cursors: Cursors,
        is_alive: Callable[[str], bool] | None = None,
    ) -> None:
        self._hub = hub
        self._view = view
        self._jobs = jobs
        self._ids = ids
        self._places = places
        self._cursors = cursors
        self._is_alive = is_alive
        self.methods: Mapping[str, Callable[[ClientRequest, Raw], Awaitable[Result]]] = {
            "tasks/get": self.get,
            "tasks/update": self.update,
            "tasks/cancel": self.cancel,
            "tasks/result": self.result,
            "tasks/list": self.list,
        }

    async def get(self, request: ClientRequest, _: Raw) -> Result:
        state = await self.state(request, request.params.task_id)
        if not request.is_stateless:
            return jsonrpc.encode(describe(state, stateless=False))
        return jsonrpc.encode({"resultType": "complete", **detailed(state)})

    async def state(self, request: ClientRequest, public_id: str) -> TaskState:
        """The state of a client's task, with the id that the client knows.

        Raises:
            RpcError: There is no such task of this client.
            Denied: The client may not use its tool any more.
        """
        task = await self._open(request, public_id)
        if task.upstream:
            return replace(await self._relayed(request, task), id=public_id)
        run = await self._run(request, task)
        if isinstance(run, TaskRun):
            await self._permit(request, task, run.record)
            return replace(state_of(run.record, run.questions), id=public_id)
        await self._permit(request, task, run)
        return replace(state_of(run), id=public_id)

    async def update(self, request: ClientRequest, _: Raw) -> Result:
        self._check_dialect(request, is_new=True)
        task = await self._open(request, request.params.task_id)
        raw = request.params.input_responses
        responses = parse_table(raw) if len(raw) else {}
        if task.upstream:
            await self._permit(request, task, await self._hub.runs.records.load(task.record))
            link = await self._session(request, task)
            await self._server_task(request, link, task).update(raw if len(raw) else EMPTY)
            return _ACK
        run = await self._run(request, task)
        if isinstance(run, TaskRun):
            await self._permit(request, task, run.record)
            run.answer(responses)
        return _ACK

    async def cancel(self, request: ClientRequest, _: Raw) -> Result:
        # never refused by a policy: a client may always stop what it started
        task = await self._open(request, request.params.task_id)
        if task.upstream:
            try:
                link = await self._session(request, task)
                await self._server_task(request, link, task).cancel()
            except ServerError as exc:
                if exc.code != INVALID_PARAMS:  # it has ended, or is forgotten
                    raise
        else:
            run = await self._run(request, task)
            if isinstance(run, TaskRun) and not run.record.has_ended:
                await self._hub.runs.cancel(run)
            elif not request.is_stateless:
                raise RpcError(INVALID_PARAMS, "the task has already ended")
        if request.is_stateless:
            return _ACK
        state = await self.state(request, request.params.task_id)
        return jsonrpc.encode(describe(replace(state, status="cancelled"), stateless=False))

    async def result(self, request: ClientRequest, _: Raw) -> Result:
        """The result of a task, once it has ended; what it asks meanwhile is asked here."""
        self._check_dialect(request, is_new=False)
        public_id = request.params.task_id
        related = {jsonrpc.RELATED_TASK_KEY: {"taskId": public_id}}
        task = await self._open(request, public_id)
        while True:
            coming = None
            # before the state is read: a change between the two must not be missed
            run = self._hub.runs.running.get(task.record)
            if run is not None:
                coming = run.changed.coming()
            state = await self.state(request, public_id)
            if state.has_ended:
                break
            if run is not None and run.questions:
                await self._ask_now(request, run, related)
            elif coming is not None:
                await coming.wait()
            else:
                await anyio.sleep(poll_pause(state))
        if state.status == "cancelled":
            raise RpcError(jsonrpc.SERVER_ERROR, "the task was cancelled", {"reason": "cancelled"})
        if state.status == "failed":
            error = jsonrpc.parse_error(state.error)
            raise RpcError(error.code, error.message, error.data)
        table = parse_table(state.result)
        meta = parse_table(table.get("_meta", EMPTY))
        table.pop("resultType", None)
        return jsonrpc.encode({**table, "_meta": {**meta, **related}})

    async def known(self, request: ClientRequest, task_ids: Sequence[str]) -> Sequence[str]:
        """Those of the ids that are of the client's tasks."""
        if not declares_tasks(request):
            return []
        opened = [await self._ids.unseal(task_id, request.principal) for task_id in task_ids]
        return [task_id for task_id, task in zip(task_ids, opened, strict=True) if task is not None]

    async def watch(self, request: ClientRequest, task_id: str, tell: Callable[..., None]) -> None:
        """Tell of every change of a task until it ends."""
        task = await self._open(request, task_id)
        last: bytes = b""
        while True:
            run = self._hub.runs.running.get(task.record)
            coming = None if run is None else run.changed.coming()
            try:
                state = await self.state(request, task_id)
            except OnOtherReplica:
                record = await self._hub.runs.records.load(task.record) or _forgotten(task)
                state = replace(state_of(record), id=task_id)
            except Unavailable:  # its server may come back
                await anyio.sleep(_USUAL_PAUSE)
                continue
            description = detailed(state)
            if (encoded := jsonrpc.encode(description)) != last:
                last = encoded
                tell("notifications/tasks", **description)
            if state.has_ended:
                return
            if coming is None:
                await anyio.sleep(poll_pause(state))
            else:
                await coming.wait()

    async def _ask_now(
        self, request: ClientRequest, run: TaskRun, related: Mapping[str, Any]
    ) -> None:
        """Put a question of a task to its client, during `tasks/result`."""
        key, question = next(iter(run.questions.items()))
        params = {**question["params"], "_meta": related}
        try:
            answer = await request.client.ask(question["method"], params, request.outlet)
        except RpcError as exc:
            run.answer({key: exc})
        else:
            run.answer({key: answer})

    async def list(self, request: ClientRequest, params: Raw) -> Result:
        owner = request.principal.task_owner
        if request.is_stateless or not owner:
            raise RpcError(METHOD_NOT_FOUND, "Method not found")
        at = self._cursors.read(params, "tasks/list", request.principal).after
        own = [
            record
            for record in await self._hub.runs.records.recent()
            if record.principal == owner and record.public_id
        ]
        page = [self._current(record) for record in own[at : at + PAGE]]
        tasks = [describe(state_of(record), stateless=False) for record in page]
        content: dict[str, Any] = {"tasks": tasks}
        if len(own) > at + PAGE:
            following = Cursor(at + PAGE)
            content["nextCursor"] = self._cursors.seal(following, "tasks/list", request.principal)
        return jsonrpc.encode(content)

    def _current(self, record: TaskRecord) -> TaskRecord:
        run = self._hub.runs.running.get(record.id)
        return record if run is None else run.record

    def _check_dialect(self, request: ClientRequest, *, is_new: bool) -> None:
        if request.is_stateless is not is_new:
            raise RpcError(METHOD_NOT_FOUND, "Method not found")

    async def _open(self, request: ClientRequest, public_id: str) -> TaskId:
        """What a client's task id says.

        Raises:
            RpcError: It is not one of this client's, or the client takes no tasks.
        """
        if request.is_stateless and not declares_tasks(request):
            message = "Missing required client capability: tasks"
            raise RpcError(MISSING_CAPABILITY, message, MISSING_EXTENSION)
        task = await self._ids.unseal(public_id, request.principal)
        if task is None:
            # the same for ids of others: nobody learns that they exist
            raise RpcError(INVALID_PARAMS, "no such task")
        return task

    async def _relayed(self, request: ClientRequest, task: TaskId) -> TaskState:
        """The state of a task at its server, as its client may see it."""
        records = self._hub.runs.records
        record = await records.load(task.record)
        if self._link(request, task) is None:
            return _lost(task, f"the server {quoted(task.server)} is no longer configured")
        route = await self._permit(request, task, record)
        link = await self._session(request, task)
        try:
            state = await self._server_task(request, link, task).state()
        except ServerError as exc:
            if exc.code != INVALID_PARAMS:
                raise
            # every id that was given has an end
            state = _lost(task, LOST)
        if len(state.questions) and link.session is not None:
            state = replace(state, questions=link.session.screen_inputs(state.questions))
        if len(state.result) and route is not None:
            result = (await self._hub.calls.vet(route.over(link), state.result)).raw
            references = self._view(request.client.audience).references(link.name)
            if references is not None:
                result = references.in_result(result)
            state = replace(state, result=Raw(bytes(result)))
        if record is not None and (record.status, record.message) != (state.status, state.message):
            # for lists and screens: the server has the last word
            await records.save(replace(record, status=state.status, message=state.message))
        return state

    async def _permit(
        self, request: ClientRequest, task: TaskId, record: TaskRecord | None
    ) -> Route | None:
        """Ask the policy again: what was allowed when a task began may be forbidden now.

        Raises:
            Denied: It is.
        """
        view = self._view(request.client.audience)
        tool = self._tool(view, task)
        if tool is None:
            return None  # its server is gone for now
        if not view.shows(tool):
            raise Denied(f"the tool {quoted(tool.name)} is hidden from this client")
        route = view.route(tool)
        if route.guard is not None:
            ruling = route.guard.decide(b"{}" if record is None else record.arguments)
            # what a person was asked about is not asked again
            if ruling.decision is Decision.DENY:
                self._hub.calls.permissions.check(route, ruling)
        return route

    def _link(self, request: ClientRequest, task: TaskId) -> Link | None:
        link, audience = self._hub.links.get(task.server), request.client.audience
        if link is not None and link.config.is_per_user:
            # people have sessions of their own with the server
            return self._view(audience).catalog.links.get(task.server)
        return link

    @staticmethod
    def _tool(view: View, task: TaskId) -> Tool | None:
        catalog = view.catalog
        hidden = (hides.tool for hides in catalog.hidden.values())
        if any((tool.server, tool.raw_name) == (task.server, task.tool) for tool in hidden):
            raise Denied(f"the tool {quoted(task.tool)} of {quoted(task.server)} is hidden now")
        tools = catalog.tools_with_raw_name(task.tool)
        return next((tool for tool in tools if tool.server == task.server), None)

    async def _session(self, request: ClientRequest, task: TaskId) -> Link:
        if (place := self._places.find(task.record)) is not None:
            return place
        link = self._link(request, task)
        if link is None:
            raise Unavailable(task.server, "it is no longer configured")
        return await self._jobs.session(request, link)

    @staticmethod
    def _server_task(request: ClientRequest, link: Link, task: TaskId) -> ServerTask:
        context = CallContext(client=request)
        return ServerTask(link, task.upstream, call=context, slot_holder=request.slot_holder)

    async def _run(self, request: ClientRequest, task: TaskId) -> TaskRun | TaskRecord:
        """A task that runs here, or the record of its end.

        Raises:
            OnOtherReplica: Another replica runs it.
        """
        runs = self._hub.runs
        record = await runs.find(task.record)
        if record is None:
            return _forgotten(task)
        if isinstance(record, TaskRun) or record.has_ended:
            return record
        if self._is_alive is not None and record.runner != runs.runner:
            if self._is_alive(record.runner):
                raise OnOtherReplica(record.runner)
        elif not runs.is_lost(record):
            return record
        link = self._link(request, task)
        # a program ends with its gateway, a server elsewhere goes on
        if record.upstream and link is not None and isinstance(link.config, HttpServer):
            return self._resume(request, record, link)
        return await runs.fail(record)

    def _resume(self, request: ClientRequest, record: TaskRecord, link: Link) -> TaskRun:
        """Follow a server's task again that another process followed before."""

        def working(run: TaskRun) -> Work:
            run.is_task = True
            asker = TaskAsker(request, None, run)
            context = CallContext(client=asker, outlives_us=run.is_kept)

            async def work() -> Raw | bytes:
                task = ServerTask(link, record.upstream, call=context)
                now = anyio.current_time()
                request = Request(
                    method="tools/call",
                    params=None,
                    deadline=Deadline.since(now, None, KEPT),
                    on_progress=run.report,
                )
                state = TaskState(id=record.upstream)
                raw = await task.wait(state, request, may_extend=True)
                tool = self._tool(
                    self._view(asker_audience),
                    TaskId(record.id, record.server, record.tool),
                )
                if tool is not None:
                    route = self._view(asker_audience).route(tool)
                    raw = Raw(bytes((await self._hub.calls.vet(route.over(link), raw)).raw))
                return plain(link, raw)

            return work

        asker_audience = request.client.audience
        # another request may have resumed it while this one looked for its record
        if (run := self._hub.runs.running.get(record.id)) is not None:
            return run
        return self._hub.runs.begin(record, working, request.client.holder)


def _lost(task: TaskId, reason: str) -> TaskState:
    error = Raw(jsonrpc.encode({"code": client_errors.INTERNAL, "message": reason}))
    now = moment(datetime.now(UTC).timestamp())
    return TaskState(
        id=task.upstream or task.record,
        status="failed",
        message=reason,
        created_at=now,
        updated_at=now,
        error=error,
    )


def _forgotten(task: TaskId) -> TaskRecord:
    reason = "the result of this task is no longer kept"
    record = new_record(task.server, task.tool, task.tool, status="failed", message=reason)
    error = jsonrpc.encode({"code": client_errors.INTERNAL, "message": reason})
    return replace(record, error=error)
