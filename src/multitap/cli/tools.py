"""`multitap tools`: what there is to call."""

from collections.abc import Iterable

import msgspec

from multitap.cli.asked import Asked
from multitap.cli.configured import configured, require
from multitap.cli.data import json_text, say_json
from multitap.cli.exits import Exit
from multitap.cli.listing import fits, listed, mention
from multitap.cli.live import Live, chosen
from multitap.cli.output import say
from multitap.cli.status import stories_of
from multitap.cli.tables import table
from multitap.config import Loaded
from multitap.errors import UnknownName
from multitap.serve.control_words import ToolLine
from multitap.wire.stderr import printable


def tools(
    asked: Asked, pattern: str | None, *, server: str | None, schema: bool, as_json: bool
) -> int:
    """List those that fit."""
    loaded = configured(asked)
    live = chosen(asked, loaded)
    offered = _served(live, loaded, server) if live else _asked_for(asked, server)
    found = [
        tool
        for tool in offered
        if server in {None, tool.server} and fits(pattern, tool.name, tool.description)
    ]
    if as_json:
        say_json([msgspec.to_builtins(tool) for tool in found])
    elif schema:
        say("\n\n".join(_in_full(tool) for tool in found))
    elif found:
        table(("TOOL", "DESCRIPTION"), [(tool.name, _summary(tool)) for tool in found])
    return Exit.DONE


def _served(live: Live, loaded: Loaded, server: str | None) -> Iterable[ToolLine]:
    told = stories_of(live, loaded)
    if server not in {None, *(story.name for story in told)}:
        if live.runs(loaded):
            require(loaded, server or "")
        raise UnknownName(
            f"the gateway has no server named {server!r}",
            hint="`multitap status` lists what there is",
        )
    mention(told, server)
    return live.tools()


def _asked_for(asked: Asked, server: str | None) -> Iterable[ToolLine]:
    from multitap.serve.control import line_of  # noqa: PLC0415 - 0.5 s that a gateway spares

    return [
        line_of(tool)
        for tool in listed(asked, lambda hub: hub.catalog.tools.values(), server=server)
    ]


def _summary(tool: ToolLine) -> str:
    return tool.description.strip().partition("\n")[0]


def _in_full(tool: ToolLine) -> str:
    words = (printable(text).strip() for text in (tool.name, tool.description))
    return "\n".join(filter(None, (*words, json_text(tool.input_schema))))
