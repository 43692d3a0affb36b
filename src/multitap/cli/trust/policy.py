"""`multitap policy`: shows which rule decides about a call."""

from collections.abc import Mapping
from typing import Any

import click
import msgspec

from multitap.catalog.catalog import Tool
from multitap.cli import configuration
from multitap.cli.completion import complete_tool, rule_warnings
from multitap.cli.configuration import load_configuration, near
from multitap.cli.options import CommandGroup, CommonOptions, json_option, server_options
from multitap.cli.own_hub import (
    adapt,
    check_missing,
    on_demand,
    open_command_hub,
    owner_by_name,
    reach,
)
from multitap.cli.signals import run_async
from multitap.cli.terminal import Exit, say, say_json, table
from multitap.cli.use.call import filler
from multitap.config import Loaded
from multitap.config.checks import table_of
from multitap.config.policy_rules import PolicyRule
from multitap.hub.hub import Hub
from multitap.hub.routes import find
from multitap.trust.arguments import decode_arguments
from multitap.trust.policy import ALLOWED, Guard, Policy, Ruling
from multitap.wire.jsonrpc import encode

_HEADER = ("RULE", "OF", "DECISION", "APPLIES", "CONDITIONS")


class CallRuling(msgspec.Struct, frozen=True):
    """The policy's decision about a call."""

    tool: Tool
    guard: Guard | None
    arguments: bytes | None
    """The typed arguments; None if there are none."""

    @property
    def ruling(self) -> Ruling | None:
        """The decision; None if it depends on the arguments."""
        if self.guard is None:
            return ALLOWED
        if self.arguments is None:
            return self.guard.always
        return self.guard.decide(self.arguments)


@click.group(cls=CommandGroup)
def policy() -> None:
    """Show which calls are allowed, asked about or denied"""


@policy.command("explain")
@click.argument("name", shell_complete=complete_tool)
@click.argument("typed", nargs=-1, metavar="[KEY=VALUE | KEY:=JSON | JSON | -]...")
@server_options
@json_option
def explain_policy(
    options: CommonOptions, name: str, typed: tuple[str, ...], *, as_json: bool
) -> int:
    """Show the decision about a call of a tool, and the rules behind it

    Nothing is called. Without arguments, shows what applies to every call.
    """
    loaded = load_configuration(options)
    explained = run_async(lambda: _explain(loaded, options, name, typed))
    # after the run, which has stored what the servers offer
    warnings = rule_warnings(loaded)
    if as_json:
        say_json(
            {
                **_table(explained),
                "problems": [configuration.problem_json(problem) for problem in warnings],
            }
        )
        return Exit.DONE
    say(_headline(explained))
    rows = [
        (row["rule"], row["of"], row["decision"], row["applies"], row["conditions"])
        for row in _rows(explained)
    ]
    if rows:
        table(_HEADER, rows)
    configuration.show_problems(warnings)
    return Exit.DONE


async def _explain(
    loaded: Loaded, options: CommonOptions, name: str, typed: tuple[str, ...]
) -> CallRuling:
    async with open_command_hub(loaded, adapt(loaded, options, on_demand)) as hub:
        owns = owner_by_name(loaded, name)
        tool = await reach(hub, options, lambda: _find_tool(hub, name), owns=owns)
        if tool is None:
            if not hub.catalog.tools_with_raw_name(name):
                check_missing(loaded, hub, owns)
            tool = find(hub.catalog, name)
        arguments = encode(filler(typed)(tool.input_schema)) if typed else None
        policy = Policy(loaded.settings)
        guard = policy.guard(tool.names, tool.link.config, tool.annotations)
        return CallRuling(tool, guard, arguments)


def _find_tool(hub: Hub, name: str) -> Tool | None:
    # a tool that the policy always denies is not listed, but users ask about it
    hidden = hub.catalog.hidden.get(name)
    return hidden.tool if hidden else hub.catalog.tools.get(name)


def _headline(explained: CallRuling) -> str:
    name, ruling = explained.tool.name, explained.ruling
    if ruling is None:
        return f"{name}: depends on the arguments; type some to see the decision"
    what = "every call" if explained.arguments is None else "this call"
    place = f" by {_place(ruling.rule)}" if ruling.rule else ": no rule applies"
    return f"{name}: {ruling.decision} {what}{place}"


def _rows(explained: CallRuling) -> list[dict[str, str]]:
    arguments = None if explained.arguments is None else decode_arguments(explained.arguments)
    rows: list[dict[str, str]] = []
    for clauses in explained.guard.lists if explained.guard else ():
        for clause in clauses:
            rule = clause.ruling.rule
            if rule is None:
                continue
            applies = "yes" if not clause.tests else "?"
            if clause.tests and arguments is not None:
                applies = "yes" if clause.applies(arguments) else "no"
            rows.append(
                {
                    "rule": _place(rule),
                    "of": "server" if rule in explained.tool.link.config.policy else "settings",
                    "decision": clause.ruling.decision.value,
                    "applies": applies,
                    "conditions": _conditions(rule),
                }
            )
    return rows


def _conditions(rule: PolicyRule) -> str:
    fields = {
        key: value for key, value in table_of(rule).items() if key not in {"decision", "reason"}
    }
    parts = [f"{key} {_words(value)}" for key, value in fields.items()]
    if rule.reason:
        parts.append(f"({rule.reason})")
    return "; ".join(parts) or "-"


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(member)}" for key, member in value.items())  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return " ".join(map(_words, value))  # pyright: ignore[reportUnknownArgumentType]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _place(rule: PolicyRule) -> str:
    return str(near(rule.place)) if rule.place else "-"


def _table(explained: CallRuling) -> dict[str, Any]:
    ruling, tool = explained.ruling, explained.tool
    return {
        "tool": tool.name,
        "server": tool.server,
        "decision": ruling.decision.value if ruling else None,
        "rule": _place(ruling.rule) if ruling and ruling.rule else None,
        "reason": ruling.rule.reason if ruling and ruling.rule else None,
        "rules": _rows(explained),
    }
