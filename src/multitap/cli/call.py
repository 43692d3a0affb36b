"""`multitap call`: one tool, once."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from multitap.cli.arguments import typed
from multitap.cli.asked import Asked
from multitap.cli.configured import configured
from multitap.cli.data import say_json
from multitap.cli.exits import Exit
from multitap.cli.live import Live, chosen, explained
from multitap.cli.output import complain, note, say_text
from multitap.cli.progress import ticker
from multitap.cli.running import run_async
from multitap.cli.saving import attachments, save_all
from multitap.cli.words import whole, words
from multitap.config import Loaded
from multitap.content import KeptResults, ToolResult
from multitap.errors import BadArguments
from multitap.records import dataclass

Fill = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From a tool's schema to the arguments that were typed."""


@dataclass(frozen=True, slots=True)
class Show:
    """How a result is to be shown."""

    full: bool = False
    save: Path | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Called:
    """What came of it."""

    raw: Raw | bytes
    server: str
    tool: str
    cap: int
    """Characters after which its text is cut."""


def call(asked: Asked, name: str, given: tuple[str, ...], show: Show) -> int:
    """Call the tool, of a running gateway if there is one, and show what it answers."""
    fill = _fill(given)
    loaded = configured(asked)
    live = chosen(asked, loaded)
    try:
        if live is not None:
            called = _called_live(live, loaded, asked, name, fill)
        else:
            called = run_async(lambda: _called(loaded, asked, name, fill))
    except BadArguments as exc:
        exc.hint = exc.hint or f"`multitap tools {name} --schema` shows what it takes"
        raise
    return _shown(called, name, show)


def _fill(given: tuple[str, ...]) -> Fill:
    """The arguments as far as they can be understood before the tool is known."""
    if len(given) == 1 and (arguments := whole(given[0])) is not None:
        return lambda _: arguments
    taken = words(given)
    return lambda schema: typed(taken, schema)


def _called_live(live: Live, loaded: Loaded, asked: Asked, name: str, fill: Fill) -> Called:
    with explained(live, loaded, name):
        tool = live.tool(name, asked.timeout)
    with ticker() as on_step:
        arguments = fill(tool.input_schema)
        told, raw = live.call(name, arguments, asked.timeout, on_step)
    return Called(raw, told.server, told.tool, told.cap)


async def _called(loaded: Loaded, asked: Asked, name: str, fill: Fill) -> Called:
    # 0.5 s that a gateway spares
    from multitap.calls import cap_of  # noqa: PLC0415
    from multitap.cli.opening import adapted, on_demand, opened  # noqa: PLC0415
    from multitap.cli.reaching import check_missing, named, reach  # noqa: PLC0415
    from multitap.router import find  # noqa: PLC0415
    from multitap.upstream.caller import CallContext  # noqa: PLC0415

    async with opened(loaded, adapted(loaded, asked, on_demand)) as hub:
        owns = named(loaded, name)
        tool = await reach(hub, asked, lambda: hub.catalog.tools.get(name), owns=owns)
        if tool is None:
            if name not in hub.catalog.hidden and not hub.catalog.named(name):
                check_missing(loaded, hub, owns)
            tool = find(hub.catalog, name)
        with ticker() as on_progress:
            context = CallContext(timeout=asked.timeout, on_progress=on_progress)
            result = await hub.call(name, fill(tool.input_schema), context=context)
        cap = cap_of(tool, hub.settings.result_cap)
        return Called(result.raw, result.server, result.tool, cap)


def _shown(called: Called, name: str, show: Show) -> Exit:
    result = ToolResult(called.raw, server=called.server, tool=called.tool)
    if show.save is not None:
        save_all(attachments(result.blocks), show.save, name)
    if show.as_json:
        say_json(msgspec.json.decode(bytes(result.raw)))
        return Exit.DONE if result.success else Exit.FAILED
    text = result.text if show.full else _cut(result, called.cap)
    if not result.success:
        complain(text or "the tool says that it failed, and not why")
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
