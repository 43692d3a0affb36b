"""Tasks, as commands and screens see them: those of all clients, and of commands."""

from msgspec import Raw

from multitap.control.messages import TaskLine
from multitap.errors import MultitapError, UnknownName, quoted
from multitap.gateway.gateway import Gateway
from multitap.hub.task_runs import TaskRun
from multitap.store.task_records import TaskRecord


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
