"""`multitap tools`: lists the tools."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from multitap.cli.exits import Exit
from multitap.cli.offers.offer_listing import fits, list_offers
from multitap.cli.options import CommonOptions
from multitap.cli.terminal.output import json_text, say, say_json
from multitap.cli.terminal.tables import table
from multitap.gateway.fronts.control_messages import ToolLine
from multitap.printable import printable

if TYPE_CHECKING:
    from multitap.hub.hub import Hub


def tools(
    options: CommonOptions, pattern: str | None, *, server: str | None, schema: bool, as_json: bool
) -> int:
    """List the matching tools."""
    offered = list_offers(options, lines_of, lambda live: live.tools(), server=server)
    found = [tool for tool in offered if fits(pattern, tool.name, tool.description)]
    if as_json:
        say_json([msgspec.to_builtins(tool) for tool in found])
    elif schema:
        say("\n\n".join(_in_full(tool) for tool in found))
    elif found:
        table(("TOOL", "DESCRIPTION"), [(tool.name, _summary(tool)) for tool in found])
    return Exit.DONE


def lines_of(hub: "Hub") -> Iterable[ToolLine]:
    """The tools of our own hub, in the format of a gateway's answer."""
    from multitap.gateway.fronts.control_actions import tool_line  # noqa: PLC0415 - 0.5 s of imports

    return map(tool_line, hub.catalog.tools.values())


def _summary(tool: ToolLine) -> str:
    return tool.description.strip().partition("\n")[0]


def _in_full(tool: ToolLine) -> str:
    words = (printable(text).strip() for text in (tool.name, tool.description))
    return "\n".join(filter(None, (*words, json_text(tool.input_schema))))
