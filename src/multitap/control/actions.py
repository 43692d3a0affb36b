"""What a gateway does for a person: calls during which it may ask them, and tasks."""

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping
from itertools import count
from typing import Any

import anyio
import msgspec
from msgspec import Raw

from multitap.control.messages import PersonReply, ProgressStep, ServerQuestion, TaskLine
from multitap.control.methods import ActionUser
from multitap.errors import MultitapError, UnknownName, quoted
from multitap.gateway.gateway import Gateway
from multitap.hub.task_runs import TaskRun
from multitap.principal import local_principal
from multitap.store.task_records import TaskRecord
from multitap.tasks import Latch
from multitap.wire.jsonrpc import INVALID_REQUEST, METHOD_NOT_FOUND, RpcError

BEAT = 5.0
"""Seconds between two keep-alives to somebody who waits."""

_LONGEST_MESSAGE = 500  # characters; a server chooses them, for one line of a screen
_CAPABILITIES = Raw(b'{"elicitation":{"form":{},"url":{}},"sampling":{}}')
_NONE = Raw(b"{}")
_encode = msgspec.json.Encoder().encode


class RemoteUser(ActionUser):
    """Progress and questions of one action, for a person in another process.

    Only the latest unread progress is kept.
    """

    def __init__(self, caller: str, *, can_answer: bool) -> None:
        self.id = secrets.token_urlsafe(16)
        """Known only to the person, who shows with it that an answer is theirs."""
        self.caller = caller
        self.can_answer = can_answer
        self.is_over = False
        self._latest: ProgressStep | None = None
        self._changed = Latch()
        self._numbers = count(1)
        self._unsent: deque[ServerQuestion] = deque()
        self._open: dict[int, asyncio.Future[PersonReply]] = {}

    def on_progress(self, step: ProgressStep) -> None:
        self._latest = step
        self._changed.set()

    async def answer(self, question: ServerQuestion) -> PersonReply:
        if self.is_over:  # a login continues without the person who left
            return PersonReply(error="the person left")
        number = next(self._numbers)
        reply: asyncio.Future[PersonReply] = asyncio.get_running_loop().create_future()
        # before it is announced: the answer must find it
        self._open[number] = reply
        self._unsent.append(msgspec.structs.replace(question, number=number))
        self._changed.set()
        try:
            return await reply
        finally:
            self._open.pop(number, None)

    def on_reply(self, number: int, reply: PersonReply) -> bool:
        """Deliver an answer; False if no question has this number."""
        # removed: a second answer to the same question is ignored
        waiting = self._open.pop(number, None)
        if waiting is None or waiting.done():
            return False
        waiting.set_result(reply)
        return True

    async def next(self) -> ServerQuestion | ProgressStep | None:
        """The next question or step; None after `BEAT` seconds without any, or if it is over."""
        with anyio.move_on_after(BEAT):
            await self._changed.wait()
        if self._unsent:
            self._changed.set()  # there may be more
            return self._unsent.popleft()
        step, self._latest = self._latest, None
        return step

    def end(self) -> None:
        """Fail the open questions, for which a login may wait in its own task."""
        self.is_over = True
        for reply in self._open.values():
            if not reply.done():
                reply.set_result(PersonReply(error="the person left"))
        self._changed.set()


class CommandUser:
    """The person who waits for an action, as an `OnBehalfOf`.

    Args:
        server: The server that may ask them; empty if none may.
    """

    holder = ""
    log_level = None
    drives_rounds = False
    can_be_asked_now = True

    def __init__(self, person: ActionUser, server: str = "") -> None:
        self.caller = person.caller
        self.principal = local_principal()
        self._person = person
        self._server = server
        self.capabilities = _CAPABILITIES if server else _NONE

    @property
    def owner(self) -> object:
        return self

    @property
    def slot_holder(self) -> object:
        return self

    def on_notification(self, method: str, params: Raw) -> None:
        """Ignore notifications of the call: progress has its own callback."""

    def on_progress(self, done: float, total: float | None, message: str | None) -> None:
        self._person.on_progress(ProgressStep(done, total, message and message[:_LONGEST_MESSAGE]))

    async def ask(self, method: str, params: Mapping[str, Any]) -> Raw:
        if not self._server:
            raise RpcError(METHOD_NOT_FOUND, "a command line cannot answer questions", None)
        reply = await self._person.answer(
            ServerQuestion(self._server, method, Raw(_encode(params)))
        )
        if reply.error is not None:
            raise RpcError(INVALID_REQUEST, reply.error)
        return reply.result


async def task_lines(gateway: Gateway) -> list[TaskLine]:
    """All tasks that are still kept, newest first."""
    lines: list[TaskLine] = []
    for record in await gateway.hub.runs.records.recent():
        run = gateway.hub.runs.running.get(record.id)
        lines.append(_line(await _settled(gateway, record) if run is None else run.record))
    return lines


async def task_line(gateway: Gateway, task_id: str) -> TaskLine:
    """One task, with its result.

    Raises:
        UnknownName: There is none, or no longer.
    """
    task = await gateway.hub.runs.find(task_id)
    if task is None:
        raise UnknownName(f"no task {quoted(task_id)}", hint="`multitap tasks` lists all tasks")
    if isinstance(task, TaskRun):
        return _line(task.record, whole=True)
    return _line(await _settled(gateway, task), whole=True)


async def cancel_task(gateway: Gateway, task_id: str) -> TaskLine:
    """Cancel a task that runs here.

    Raises:
        UnknownName: There is none, or no longer.
        MultitapError: Its server, or another gateway, runs it.
    """
    line = await task_line(gateway, task_id)
    run = gateway.hub.runs.running.get(task_id)
    if run is not None:
        await gateway.hub.runs.cancel(run)
        return _line(run.record)
    if line.status in {"working", "input_required"}:
        raise MultitapError(
            f"the task {quoted(task_id)} does not run in this gateway",
            hint="its client can cancel it",
        )
    return line


async def _settled(gateway: Gateway, record: TaskRecord) -> TaskRecord:
    """A task whose gateway is gone has failed, unless its server goes on with it."""
    runs = gateway.hub.runs
    # in a cluster, replicas know of each other, and the one that is asked decides
    if gateway.bus is None and not record.upstream and runs.is_lost(record):
        return await runs.fail(record)
    return record


def _line(record: TaskRecord, *, whole: bool = False) -> TaskLine:
    return TaskLine(
        id=record.id,
        server=record.server,
        name=record.name,
        status=record.status,
        message=record.message,
        created=record.created,
        updated=record.updated,
        caller=record.caller or "command line",
        result=Raw(record.result) if whole and record.result else Raw(b"null"),
    )
