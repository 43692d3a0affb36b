"""`multitap tools`: what there is to call."""

from typing import Any

from multitap.catalog import Tool
from multitap.cli.asked import Asked
from multitap.cli.data import json_text, say_json
from multitap.cli.exits import Exit
from multitap.cli.listing import fits, listed
from multitap.cli.output import say
from multitap.cli.tables import table
from multitap.wire.stderr import printable


def tools(
    asked: Asked, pattern: str | None, *, server: str | None, schema: bool, as_json: bool
) -> int:
    """List those that fit."""
    found = [
        tool
        for tool in listed(asked, lambda hub: hub.tools(), server=server)
        if server in {None, tool.server} and fits(pattern, tool.name, tool.description)
    ]
    if as_json:
        say_json([_for_programs(tool) for tool in found])
    elif schema:
        say("\n\n".join(_in_full(tool) for tool in found))
    elif found:
        table(("TOOL", "DESCRIPTION"), [(tool.name, _summary(tool)) for tool in found])
    return Exit.DONE


def _summary(tool: Tool) -> str:
    return tool.description.strip().partition("\n")[0]


def _in_full(tool: Tool) -> str:
    words = (printable(text).strip() for text in (tool.name, tool.description))
    return "\n".join(filter(None, (*words, json_text(tool.input_schema))))


def _for_programs(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "server": tool.server,
        "tool": tool.raw_name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": tool.annotations,
    }
