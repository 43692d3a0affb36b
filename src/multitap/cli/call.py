"""`multitap call`: one tool, once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from multitap.cli.arguments import typed
from multitap.cli.asked import Asked
from multitap.cli.configured import configured
from multitap.cli.data import say_json
from multitap.cli.exits import Exit
from multitap.cli.opening import adapted, on_demand, opened
from multitap.cli.output import complain, note, say_text
from multitap.cli.progress import ticker
from multitap.cli.reaching import check_owner, reach
from multitap.cli.running import run_async
from multitap.cli.saving import attachments, save_all
from multitap.cli.words import whole, words
from multitap.config import Loaded
from multitap.content import ToolResult
from multitap.errors import BadArguments
from multitap.hub import Hub
from multitap.router import find
from multitap.upstream.caller import CallContext

Fill = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From a tool's schema to the arguments that were typed."""


@dataclass(frozen=True, slots=True)
class Show:
    """How a result is to be shown."""

    full: bool = False
    save: Path | None = None
    as_json: bool = False


def call(asked: Asked, name: str, given: tuple[str, ...], show: Show) -> int:
    """Call the tool and show what it answers."""
    fill = _fill(given)
    loaded = configured(asked)
    return run_async(lambda: _called(loaded, asked, name, fill, show))


def _fill(given: tuple[str, ...]) -> Fill:
    """The arguments as far as they can be understood before the tool is known."""
    if len(given) == 1 and (arguments := whole(given[0])) is not None:
        return lambda _: arguments
    taken = words(given)
    return lambda schema: typed(taken, schema)


async def _called(loaded: Loaded, asked: Asked, name: str, fill: Fill, show: Show) -> Exit:
    async with opened(loaded, adapted(loaded, asked, on_demand)) as hub:
        tool = await reach(hub, lambda: hub.catalog.tools.get(name))
        if tool is None:
            check_owner(loaded, hub, name)
            tool = find(hub.catalog, name)
        try:
            with ticker() as on_progress:
                context = CallContext(timeout=asked.timeout, on_progress=on_progress)
                result = await hub.call(name, fill(tool.input_schema), context=context)
        except BadArguments as exc:
            exc.hint = exc.hint or f"`multitap tools {name} --schema` shows what it takes"
            raise
        return _shown(hub, result, name, show)


def _shown(hub: Hub, result: ToolResult, name: str, show: Show) -> Exit:
    if show.save is not None:
        save_all(attachments(result.blocks), show.save, name)
    if show.as_json:
        say_json(msgspec.json.decode(bytes(result.raw)))
        return Exit.DONE if result.success else Exit.FAILED
    text = _text(hub, result, full=show.full)
    if not result.success:
        complain(text or "the tool says that it failed, and not why")
        return Exit.FAILED
    if text:
        say_text(text)
    return Exit.DONE


def _text(hub: Hub, result: ToolResult, *, full: bool) -> str:
    if full:
        return ToolResult(result.raw, server=result.server, tool=result.tool).text
    if result.result_id is None:
        return result.text
    kept = hub.result(result.result_id)
    note(f"cut: {kept.rest}; `--full` prints all")
    return kept.page(1).rstrip("\n")
