"""`multitap tasks`: shows calls that run by themselves."""

import time

import click
import msgspec

from multitap.cli.configuration import load_configuration
from multitap.cli.options import CommonOptions, gateway_options, json_option
from multitap.cli.target import choose_gateway, nobody_serves
from multitap.cli.terminal import Exit, complain, note, say_json, say_text, table
from multitap.control.messages import TaskLine
from multitap.results import ToolResult


@click.command()
@click.argument("task_id", required=False, metavar="ID")
@click.option("--cancel", is_flag=True, help="Cancel it")
@gateway_options
@json_option
def tasks(options: CommonOptions, task_id: str | None, *, cancel: bool, as_json: bool) -> int:
    """List calls that run by themselves, or print the result of one

    These are the tasks of clients, and what `multitap call --detach` started. They are listed
    for an hour after they end.
    """
    live = choose_gateway(options, load_configuration(options))
    if live is None:
        return nobody_serves()
    if task_id is None:
        if cancel:
            raise click.UsageError("`--cancel` needs the ID of a task.")
        lines = live.ask(lambda control: control.tasks())
        return _list(lines, as_json=as_json)
    if cancel:
        line = live.ask(lambda control: control.cancel_task(task_id))
    else:
        line = live.ask(lambda control: control.task(task_id))
    return _show(line, as_json=as_json)


def _list(lines: list[TaskLine], *, as_json: bool) -> Exit:
    if as_json:
        say_json([msgspec.to_builtins(line) for line in lines])
    elif not lines:
        note("there are no tasks")
    else:
        header = ("ID", "TOOL", "STATUS", "AGE", "FOR", "MESSAGE")
        rows = [
            (line.id, line.name, line.status, _age(line), line.caller, line.message or "")
            for line in lines
        ]
        table(header, rows, right=("AGE",))
    return Exit.DONE


def _age(line: TaskLine) -> str:
    seconds = time.time() - line.created
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"  # noqa: PLR2004 - two minutes


def _show(line: TaskLine, *, as_json: bool) -> Exit:
    has_failed = line.status in {"failed", "cancelled"}
    if as_json:
        say_json(msgspec.to_builtins(line))
        return Exit.FAILED if has_failed else Exit.DONE
    if line.status == "completed" and bytes(line.result) != b"null":
        result = ToolResult(line.result, server=line.server, tool=line.name)
        if result.success:
            say_text(result.text)
            return Exit.DONE
        complain(result.text or "the tool failed without giving a reason")
        return Exit.FAILED
    text = f"{line.status}: {line.message}" if line.message else line.status
    if has_failed:
        complain(text)
        return Exit.FAILED
    note(text)
    return Exit.DONE
