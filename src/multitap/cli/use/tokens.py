"""`multitap tokens`: shows what the tools cost in a model's context."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import click
import msgspec

from multitap.cli.completion import complete_server
from multitap.cli.options import (
    CommonOptions,
    ServerCommand,
    gateway_or_server_options,
    json_option,
)
from multitap.cli.terminal import note, say_json, table
from multitap.cli.use.listing import check_matches, fits, list_offers
from multitap.control.messages import Figures, ToolLine
from multitap.control.methods import Control
from multitap.errors import counted
from multitap.tools.providers.offers import estimate_tokens


class ToolCost(msgspec.Struct, frozen=True):
    """One tool, and the tokens of its definition in every request to a model."""

    server: str
    tool: str
    tokens: int


@click.command(cls=ServerCommand)
@click.argument("pattern", required=False)
@click.option("-s", "--server", shell_complete=complete_server, help="Only tools of this server")
@click.option("--summary", is_flag=True, help="Show servers only, not their tools")
@gateway_or_server_options
@json_option
def tokens(
    options: CommonOptions, pattern: str | None, *, server: str | None, summary: bool, as_json: bool
) -> int:
    """Show what each tool costs in a model's context

    Counts names, descriptions and arguments of all tools, or of those that match PATTERN. With a
    running gateway, also what the clients of each profile list, and how much shaping saved.
    """
    counts: list[Figures] = []

    async def look(control: Control) -> list[ToolLine]:
        from multitap.cli.own_hub import OwnHub  # noqa: PLC0415 - brings the hub with it

        if not isinstance(control, OwnHub):  # only a gateway has clients
            counts.append(await control.figures())
        return await control.tools()

    offered = list_offers(options, look, server=server)
    figures = counts[0] if counts else None
    costs = rank(cost_of(tool) for tool in offered if fits(pattern, tool.name, tool.description))
    if as_json:
        say_json({**_plain(costs), **_plain_figures(figures)})
    elif costs:
        rows = [row for group in costs for row in _rows(group, summary=summary)]
        table(("SERVER", "TOOL", "TOKENS"), [*rows, _total(costs)], right=("TOKENS",))
        # they count all tools, not only those that match
        if figures is not None and pattern is None and server is None:
            _show_figures(figures)
        note("tokens are estimates: models and providers count differently")
    return check_matches(pattern, offered, costs)


def cost_of(tool: ToolLine) -> ToolCost:
    """The approximate tokens of a tool's definition."""
    tokens = visible_cost(tool.name, tool.description, tool.input_schema)
    return ToolCost(tool.server, tool.name, tokens)


def visible_cost(name: str, description: str, schema: object) -> int:
    """About how many tokens a tool takes, by the three things that every model is shown."""
    return estimate_tokens({"name": name, "description": description, "parameters": schema})


def rank(costs: Iterable[ToolCost]) -> list[list[ToolCost]]:
    """Tools by server, both with the most expensive first."""
    groups: defaultdict[str, list[ToolCost]] = defaultdict(list)
    for cost in costs:
        groups[cost.server].append(cost)
    for group in groups.values():
        group.sort(key=lambda cost: (-cost.tokens, cost.tool))
    return sorted(groups.values(), key=lambda group: (-_sum(group), group[0].server))


def _rows(group: Sequence[ToolCost], *, summary: bool) -> Iterable[tuple[str, str, str]]:
    yield group[0].server, f"({counted(len(group), 'tool')})", f"{_sum(group):,}"
    for cost in () if summary else group:
        yield "", cost.tool, f"{cost.tokens:,}"


def _total(groups: Sequence[Sequence[ToolCost]]) -> tuple[str, str, str]:
    count = sum(map(len, groups))
    return "total", f"({counted(count, 'tool')})", f"{sum(map(_sum, groups)):,}"


def _sum(group: Iterable[ToolCost]) -> int:
    return sum(cost.tokens for cost in group)


def _plain(groups: Sequence[Sequence[ToolCost]]) -> dict[str, object]:
    return {
        "tokens": sum(map(_sum, groups)),
        "servers": {
            group[0].server: {
                "tokens": _sum(group),
                "tools": {cost.tool: cost.tokens for cost in group},
            }
            for group in groups
        },
    }


def _show_figures(figures: Figures) -> None:
    lists = [
        (
            cost.profile or "(none)",
            cost.mode,
            f"{cost.tools:,}",
            f"{cost.all_tokens:,}",
            f"{cost.tokens:,}",
            _share(cost.all_tokens, cost.tokens),
        )
        for cost in figures.lists
    ]
    header = ("PROFILE", "LISTS", "TOOLS", "ALL TOOLS", "LISTED", "SAVED")
    table(header, lists, right=header[2:])
    results = [
        (
            name,
            f"{server.shaped.results:,}",
            f"{server.shaped.before:,}",
            f"{server.shaped.after:,}",
            _share(server.shaped.before, server.shaped.after),
        )
        for name, server in figures.servers.items()
        if server.shaped.results
    ]
    if results:
        columns = ("SERVER", "RESULTS", "BEFORE", "AFTER", "SAVED")
        table(columns, results, right=columns[1:])


def _share(before: int, after: int) -> str:
    return f"{1 - after / before:.0%}" if before else "-"


def _plain_figures(figures: Figures | None) -> dict[str, object]:
    if figures is None:
        return {}
    return {
        "lists": [msgspec.to_builtins(cost) for cost in figures.lists],
        "results": {
            name: msgspec.to_builtins(server.shaped)
            for name, server in figures.servers.items()
            if server.shaped.results
        },
    }
