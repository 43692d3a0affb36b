"""`multitap tools`: lists the tools."""

import click
import msgspec

from multitap.cli.completion import complete_server
from multitap.cli.options import (
    CommonOptions,
    ServerCommand,
    gateway_or_server_options,
    json_option,
)
from multitap.cli.terminal import json_text, say, say_json, table
from multitap.cli.use.listing import check_matches, fits, list_offers
from multitap.cli.use.watch import watch_option
from multitap.control.messages import ToolLine
from multitap.printable import printable


@click.command(cls=ServerCommand)
@click.argument("pattern", required=False)
@click.option("-s", "--server", shell_complete=complete_server, help="Only tools of this server")
@click.option("--schema", is_flag=True, help="Show the arguments of each tool")
@gateway_or_server_options
@json_option
@watch_option
def tools(
    options: CommonOptions, pattern: str | None, *, server: str | None, schema: bool, as_json: bool
) -> int:
    """List the tools, or those that match PATTERN

    PATTERN is a text to find in names and descriptions, or a shell-style glob that matches the
    whole name. Asks a running gateway with the same configuration files, if there is one.
    With a COMMAND after -- or with --url, list the tools of that server alone.
    """
    offered = list_offers(options, lambda control: control.tools(), server=server)
    listed = [tool for tool in offered if fits(pattern, tool.name, tool.description)]
    if as_json:
        say_json([msgspec.to_builtins(tool) for tool in listed])
    elif schema and listed:
        say("\n\n".join(_in_full(tool) for tool in listed))
    elif listed:
        table(("TOOL", "DESCRIPTION"), [(tool.name, _summary(tool)) for tool in listed])
    return check_matches(pattern, offered, listed)


def _summary(tool: ToolLine) -> str:
    return tool.description.strip().partition("\n")[0]


def _in_full(tool: ToolLine) -> str:
    texts = (printable(text).strip() for text in (tool.name, tool.description))
    return "\n".join(filter(None, (*texts, json_text(tool.input_schema))))
