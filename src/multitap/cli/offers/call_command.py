"""`multitap call`: calls one tool."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import Raw

from multitap.catalog.schemas.argument_words import whole, words
from multitap.catalog.schemas.typed_arguments import to_arguments
from multitap.cli.configuration.chosen_configuration import load_configuration
from multitap.cli.exits import Exit
from multitap.cli.gateways.running_gateways import RunningGateway, choose_gateway, explain_unknown
from multitap.cli.offers.server_questions import at_the_prompt
from multitap.cli.options import CommonOptions
from multitap.cli.running import run_async
from multitap.cli.terminal.output import advise, complain, note, say_json, say_text
from multitap.cli.terminal.progress import ticker
from multitap.cli.terminal.saving import attachments, save_all
from multitap.cli.terminal.typed_lines import is_somebody_there
from multitap.config import Loaded
from multitap.errors import BadArguments, Unavailable
from multitap.events import Phase, Snapshot
from multitap.records import dataclass
from multitap.results import KeptResults, ToolResult

if TYPE_CHECKING:
    from multitap.catalog.catalog import Tool
    from multitap.hub.hub import Hub

Fill = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Converts the typed arguments by a tool's schema."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """The outcome of a call."""

    raw: Raw | bytes
    server: str
    tool: str
    cap: int
    """Characters after which its text is cut."""
    refused: tuple[str, ...] = ()
    """Hosts that its sandbox refused, if it failed."""


def call(
    options: CommonOptions,
    name: str | None,
    given: tuple[str, ...],
    *,
    full: bool,
    save: Path | None,
    as_json: bool,
) -> int:
    """Call the tool, at a running gateway if there is one, and show its answer."""
    # click cannot tell the command of a typed server from the tool and its arguments
    options, tool, given = split(options, name, given)
    fill = filler(given)
    loaded = load_configuration(options)
    live = choose_gateway(options, loaded)
    try:
        if live is not None:
            called = _call_live(live, loaded, options, tool, fill)
        else:
            called = run_async(lambda: _call(loaded, options, tool, fill))
    except BadArguments as exc:
        exc.hint = exc.hint or f"`multitap tools {tool} --schema` shows its arguments"
        raise
    result = _result(called)
    if save is not None:
        save_all(attachments(result.blocks), save, tool)
    if as_json:
        say_json(msgspec.json.decode(bytes(result.raw)))
        return Exit.DONE if result.success else Exit.FAILED
    return _show(called, result, full=full)


def filler(given: tuple[str, ...]) -> Fill:
    """The arguments, as far as they can be parsed before the tool is known."""
    # a JSON object can be parsed without a schema
    if len(given) == 1 and (arguments := whole(given[0])) is not None:
        return lambda _: arguments
    taken = words(given)
    return lambda schema: to_arguments(taken, schema)


def _call_live(
    live: RunningGateway, loaded: Loaded, options: CommonOptions, name: str, fill: Fill
) -> CallResult:
    with explain_unknown(live, loaded, name):
        tool = live.tool(name, options.timeout)
    with ticker() as on_step:
        arguments = fill(tool.input_schema)
        told, raw = live.call(
            name,
            arguments,
            options.timeout,
            on_step,
            at_the_prompt(),
            person=is_somebody_there(),
        )
    called = CallResult(raw, told.server, told.tool, told.cap)
    if _result(called).success:
        return called
    return replace(called, refused=_refused_hosts(live.state().snapshot, told.server))


async def _call(loaded: Loaded, options: CommonOptions, name: str, fill: Fill) -> CallResult:
    # takes 0.5 s, not needed with a gateway
    from multitap.cli.command_hub import adapt, answerable, on_demand, open_command_hub  # noqa: PLC0415
    from multitap.cli.offers.prompt_answers import prompt_handlers  # noqa: PLC0415
    from multitap.hub.calls import cap_of  # noqa: PLC0415
    from multitap.upstream.on_behalf_of import CallContext  # noqa: PLC0415

    may_ask = options.typed is not None or is_somebody_there()
    settings = adapt(loaded, options, answerable if may_ask else on_demand)
    async with open_command_hub(loaded, settings, prompt_handlers()) as hub:
        try:
            tool = await _reach(hub, loaded, options, name)
        except Unavailable as exc:
            # any other failure would be the same in the other era
            if exc.failure is None or exc.failure.phase is not Phase.HANDSHAKE:
                raise
            hub.apply(adapt(loaded, options, on_demand))  # it may support only the newer era
            tool = await _reach(hub, loaded, options, name)
        with ticker() as on_progress:
            context = CallContext(timeout=options.timeout, on_progress=on_progress)
            result = await hub.call(name, fill(tool.input_schema), context=context)
        cap = cap_of(tool, hub.settings.result_cap)
        refused = () if result.success else _refused_hosts(hub.snapshot(), result.server)
        return CallResult(result.raw, result.server, result.tool, cap, refused)


def _refused_hosts(snapshot: Snapshot, server: str) -> tuple[str, ...]:
    sandbox = next((one.sandbox for one in snapshot.servers if one.name == server), None)
    hosts = (one.host for one in sandbox.refused) if sandbox else ()
    # `sandbox allow` means these two ports if none is given
    return tuple(host.removesuffix(":443").removesuffix(":80") for host in hosts)


def _result(called: CallResult) -> ToolResult:
    return ToolResult(called.raw, server=called.server, tool=called.tool)


async def _reach(hub: "Hub", loaded: Loaded, options: CommonOptions, name: str) -> "Tool":
    from multitap.cli.offers.offer_lookup import check_missing, owner_by_name, reach  # noqa: PLC0415
    from multitap.hub.router import find  # noqa: PLC0415

    owns = owner_by_name(loaded, name)
    tool = await reach(hub, options, lambda: hub.catalog.tools.get(name), owns=owns)
    if tool is None:
        # for those, `find` has a better message than a missing server
        if name not in hub.catalog.hidden and not hub.catalog.tools_with_raw_name(name):
            check_missing(loaded, hub, owns)
        tool = find(hub.catalog, name)
    return tool


def _show(called: CallResult, result: ToolResult, *, full: bool) -> Exit:
    text = result.text if full else _cut(result, called.cap)
    if not result.success:
        complain(text or "the tool failed without giving a reason")
        if called.refused:
            hosts = shlex.join(called.refused)
            note(f"the sandbox of {called.server} did not let it reach {', '.join(called.refused)}")
            advise(f"`multitap sandbox allow {called.server} {hosts}` lets it")
        return Exit.FAILED
    if text:
        say_text(text)
    return Exit.DONE


def _cut(result: ToolResult, limit: int) -> str:
    kept = KeptResults()
    result = result.capped(limit, kept)
    if result.result_id is None:
        return result.text
    whole = kept.result(result.result_id)
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
    words = options.typed.command if options.typed else ()
    if "--" in words:
        end = words.index("--")
        command, call = words[:end], words[end + 1 :]
    else:
        end = _tool_at(words)
        command, call = words[:end], words[end:]
    if options.typed is None or not command or not call:
        raise click.UsageError("Missing argument 'NAME'.")
    return replace(options, typed=replace(options.typed, command=command)), call[0], call[1:]


def _tool_at(words: tuple[str, ...]) -> int:
    end = len(words)
    while end and _is_argument(words[end - 1]):
        end -= 1
    return max(end - 1, 0)


def _is_argument(word: str) -> bool:
    return word == "-" or (not word.startswith("-") and bool(_ARGUMENT.match(word)))
