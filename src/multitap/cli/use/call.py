"""`multitap call`: calls one tool."""

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Raw

from multitap.catalog.schemas.typed_arguments import to_arguments, whole, words
from multitap.cli.attachments import attachments, save_all
from multitap.cli.completion import complete_tool
from multitap.cli.configuration import load_configuration
from multitap.cli.options import (
    FILE,
    CommonOptions,
    ServerCommand,
    gateway_or_server_options,
    json_option,
)
from multitap.cli.progress import ticker
from multitap.cli.questions import TerminalUser
from multitap.cli.target import Target, nobody_serves
from multitap.cli.terminal import Exit, advise, complain, note, say_json, say_text
from multitap.cli.use.watch import watch_option
from multitap.control.methods import Control
from multitap.errors import BadArguments
from multitap.events import Snapshot
from multitap.results import KeptResults, ToolResult
from multitap.results.select import choose
from multitap.selectors import SelectFailed, Selector

Fill = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Converts the typed arguments by a tool's schema."""


class CallResult(msgspec.Struct, frozen=True):
    """The outcome of a call."""

    result: ToolResult
    cap: int
    """Characters after which its text is cut."""
    refused: tuple[str, ...] = ()
    """Hosts that its sandbox refused, if it failed."""


@click.command(cls=ServerCommand)
@click.argument("name", required=False, metavar="NAME", shell_complete=complete_tool)
@click.argument("typed", nargs=-1, metavar="[KEY=VALUE | KEY:=JSON | JSON | -]...")
@click.option("--full", is_flag=True, help="Print long results in full")
@click.option(
    "--select", "expression", metavar="JMESPATH", help="Print only these fields of the result"
)
@click.option("--detach", is_flag=True, help="Print the id of a task instead of the result")
@click.option("--save", type=FILE, metavar="DIR", help="Save images and files in DIR")
@gateway_or_server_options
@json_option
@watch_option
def call(
    options: CommonOptions,
    name: str | None,
    typed: tuple[str, ...],
    *,
    full: bool,
    expression: str | None,
    save: Path | None,
    detach: bool,
    as_json: bool,
) -> int:
    """Call a tool

    KEY=VALUE is converted to the type in the tool's schema, KEY=@FILE reads the value from a file,
    and KEY:=JSON is always parsed as JSON. Repeat a key to make a list. To give all arguments at
    once, pass a JSON object, or - to read one from standard input.

    With a COMMAND after -- or with --url, call a tool of that server. NAME and its arguments may
    follow the COMMAND: the last word that is not an argument, and all arguments after it.
    """
    # click cannot tell the command of a typed server from the tool and its arguments
    options, tool, typed = split(options, name, typed)
    fill = filler(typed)
    selector = None if expression is None else Selector(expression)
    target = Target(options, load_configuration(options))
    if detach:
        return _detach(target, tool, fill)
    try:
        called = target.use(
            lambda control: _call(control, tool, fill, options.timeout), name=tool, can_ask=True
        )
    except BadArguments as exc:
        exc.hint = exc.hint or f"`multitap tools {tool} --schema` shows its arguments"
        raise
    result = called.result
    if save is not None:
        save_all(attachments(result.blocks), save, tool)
    if selector is not None and result.success:
        return _show_selected(result, selector)
    if as_json:
        say_json(msgspec.json.decode(bytes(result.raw)))
        return Exit.DONE if result.success else Exit.FAILED
    return _show(called, full=full)


def _detach(target: Target, name: str, fill: Fill) -> Exit:
    """Have the running gateway call a tool, and print the id of the task."""
    if target.gateway is None:
        # a hub of the command's own would end with it
        return nobody_serves()

    async def start(control: Control) -> str:
        tool = await control.tool(name)
        return await control.start(name, Raw(msgspec.json.encode(fill(tool.input_schema))))

    task_id = target.gateway.ask(start)
    say_text(task_id)
    note(f"`multitap tasks {task_id}` shows its result")
    return Exit.DONE


def filler(typed: tuple[str, ...]) -> Fill:
    """The arguments, as far as they can be parsed before the tool is known."""
    # a JSON object can be parsed without a schema
    if len(typed) == 1 and (arguments := whole(typed[0])) is not None:
        return lambda _: arguments
    pairs = words(typed)
    return lambda schema: to_arguments(pairs, schema)


async def _call(control: Control, name: str, fill: Fill, timeout: float | None) -> CallResult:
    tool = await control.tool(name, timeout)
    with ticker() as on_step:
        arguments = Raw(msgspec.json.encode(fill(tool.input_schema)))
        delivery = await control.call(name, arguments, timeout, person=TerminalUser(on_step))
    result = ToolResult(delivery.result, server=delivery.server, tool=delivery.tool)
    if result.success:
        return CallResult(result, delivery.cap)
    state = await control.state()
    return CallResult(result, delivery.cap, _refused_hosts(state.snapshot, delivery.server))


def _refused_hosts(snapshot: Snapshot, server: str) -> tuple[str, ...]:
    sandbox = next((other.sandbox for other in snapshot.servers if other.name == server), None)
    hosts = (refusal.host for refusal in sandbox.refused) if sandbox else ()
    # `sandbox allow` means these two ports if none is given
    return tuple(host.removesuffix(":443").removesuffix(":80") for host in hosts)


def _show(called: CallResult, *, full: bool) -> Exit:
    result = called.result
    text = result.text if full else _cut(result, called.cap)
    if not result.success:
        complain(text or "the tool failed without giving a reason")
        if called.refused:
            hosts = shlex.join(called.refused)
            note(f"the sandbox of {result.server} did not let it reach {', '.join(called.refused)}")
            advise(f"`multitap sandbox allow {result.server} {hosts}` lets it")
        return Exit.FAILED
    if text:
        say_text(text)
    return Exit.DONE


def _show_selected(result: ToolResult, selector: Selector) -> Exit:
    try:
        value = choose(result.raw, selector)
    except SelectFailed as exc:
        complain(f"`--select` failed: {exc}", "without it, the whole result is printed")
        return Exit.FAILED
    if isinstance(value, str):
        say_text(value)
    else:
        say_json(value)
    return Exit.DONE


def _cut(result: ToolResult, limit: int) -> str:
    results = KeptResults()
    result = result.capped(limit, results)
    if result.result_id is None:
        return result.text
    whole = results.result(result.result_id)
    note(f"cut: {whole.rest}; `--full` prints all")
    return whole.page(1).rstrip("\n")


_ARGUMENT = re.compile(r"\A(-|[\w.-]*\w:?=.*|\{.*\})\Z", re.DOTALL)
"""`key=value`, `key:=json`, a JSON object, or `-` for standard input; not an option."""


def split(
    options: CommonOptions, name: str | None, arguments: tuple[str, ...]
) -> tuple[CommonOptions, str, tuple[str, ...]]:
    """The server, the tool and its arguments, wherever they were typed.

    All three forms mean the same: `add a=1 -- python server.py`, `-- python server.py -- add a=1`,
    and `-- python server.py add a=1`, where the tool is the last word that is not an argument.
    """
    if name is not None:
        return options, name, arguments
    command_words = options.typed.command if options.typed else ()
    if "--" in command_words:
        end = command_words.index("--")
        command, call = command_words[:end], command_words[end + 1 :]
    else:
        end = _tool_at(command_words)
        command, call = command_words[:end], command_words[end:]
    if options.typed is None or not command or not call:
        raise click.UsageError("Missing argument 'NAME'.")
    typed = msgspec.structs.replace(options.typed, command=command)
    return msgspec.structs.replace(options, typed=typed), call[0], call[1:]


def _tool_at(arguments: tuple[str, ...]) -> int:
    end = len(arguments)
    while end and _is_argument(arguments[end - 1]):
        end -= 1
    return max(end - 1, 0)


def _is_argument(word: str) -> bool:
    return word == "-" or (not word.startswith("-") and bool(_ARGUMENT.match(word)))
