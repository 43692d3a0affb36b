"""`multitap tokens`: shows what the tools cost in a model's context."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from multitap.cli.exits import Exit
from multitap.cli.offers.offer_listing import fits, list_offers
from multitap.cli.offers.tools_command import lines_of
from multitap.cli.options import CommonOptions
from multitap.cli.terminal.output import note, say_json
from multitap.cli.terminal.tables import table
from multitap.errors import counted
from multitap.gateway.fronts.control_messages import ToolLine
from multitap.records import dataclass
from multitap.tools.providers.token_cost import estimate


@dataclass(frozen=True, slots=True)
class ToolCost:
    """One tool, and the tokens of its definition in every request to a model."""

    server: str
    tool: str
    tokens: int


def tokens(
    options: CommonOptions, pattern: str | None, *, server: str | None, summary: bool, as_json: bool
) -> int:
    """Show what each server and each tool costs, the most expensive first."""
    offered = list_offers(options, lines_of, lambda live: live.tools(), server=server)
    costs = rank(cost_of(tool) for tool in offered if fits(pattern, tool.name, tool.description))
    if as_json:
        say_json(_plain(costs))
        return Exit.DONE
    if costs:
        rows = [row for group in costs for row in _rows(group, summary=summary)]
        table(("SERVER", "TOOL", "TOKENS"), [*rows, _total(costs)], right=("TOKENS",))
        note("tokens are estimates: models and providers count differently")
    return Exit.DONE


def cost_of(tool: ToolLine) -> ToolCost:
    """The approximate tokens of a tool's definition."""
    tokens = visible_cost(tool.name, tool.description, tool.input_schema)
    return ToolCost(tool.server, tool.name, tokens)


def visible_cost(name: str, description: str, schema: object) -> int:
    """About how many tokens a tool takes, by the three things that every model is shown."""
    return estimate({"name": name, "description": description, "parameters": schema})


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
