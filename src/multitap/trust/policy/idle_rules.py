"""Finds rules of the policy that are about no tool: probably mistyped, they protect nothing."""

import re
from collections.abc import Iterator, Mapping, Sequence

from multitap.config.models import Settings
from multitap.config.policy_rules import PolicyRule
from multitap.config.problems import Place, Problem, Severity, did_you_mean, nearest
from multitap.names import ToolNames, matches_any
from multitap.trust.policy.policy import concerns

KnownTools = Mapping[str, Sequence[ToolNames] | None]
"""The tools of each configured server; None if they are not known."""

_WORD = re.compile(r"[A-Za-z0-9]+")
_WILDCARDS = re.compile(r"[*?\[]")


def idle_rules(settings: Settings, tools: KnownTools) -> Iterator[Problem]:
    """A warning about each rule that is about none of the known tools.

    A rule may be about a server whose tools are not known, so there is none about such a rule.

    Args:
        settings: The rules.
        tools: What is known of the servers, also of those that cannot be used now.
    """
    for number, rule in enumerate(settings.policy):
        yield from _examine(rule, f"policy[{number}]", tools)
    for server, config in settings.servers.items():
        candidates = {server: tools.get(server)}
        for number, rule in enumerate(config.policy):
            yield from _examine(rule, f"servers.{server}.policy[{number}]", candidates, server)


def _examine(
    rule: PolicyRule, key: str, tools: KnownTools, owner: str | None = None
) -> Iterator[Problem]:
    place = rule.place
    if place is None:
        return  # a program's own rules, which have no file to look at
    servers = [server for server in tools if matches_any(server, rule.servers)]
    if not servers:
        if tools:
            yield _warning(
                f"matches no server: {_quote(rule.servers)}",
                did_you_mean(rule.servers[0], tools) if rule.servers else None,
                place=place, key=key, owner=owner,
            )  # fmt: skip
        return
    candidates: list[ToolNames] = []
    for server in servers:
        offered = tools[server]
        if offered is None:
            return
        candidates += offered
    if candidates and not any(
        concerns(rule, tool, is_own=owner is not None) for tool in candidates
    ):
        yield _warning(
            f"matches no tool: {_quote(rule.tools)}", _advice(rule, candidates),
            place=place, key=key, owner=owner,
        )  # fmt: skip


def _advice(rule: PolicyRule, candidates: Sequence[ToolNames]) -> str | None:
    if rule.decision == "allow" and any(matches_any(tool.own, rule.tools) for tool in candidates):
        return "an `allow` goes by the names that callers see; beside `servers`, also by the own"
    for glob in rule.tools:
        if (meant := _nearest_glob(glob, candidates)) is not None:
            return f"did you mean `{meant}`?"
    return "`multitap tools` lists all tools"


def _nearest_glob(glob: str, candidates: Sequence[ToolNames]) -> str | None:
    names = [name for tool in candidates for name in (tool.exposed, tool.own)]
    if not _WILDCARDS.search(glob):
        return nearest(glob, names)
    # of `*_delet_*`, only the words can be mistyped
    words = dict.fromkeys(word for name in names for word in _WORD.findall(name))
    meant = _WORD.sub(lambda match: nearest(match[0], words) or match[0], glob)
    return meant if any(tool.may_match([meant]) for tool in candidates) else None


def _warning(
    message: str, hint: str | None, *, place: Place, key: str, owner: str | None
) -> Problem:
    return Problem(Severity.WARNING, message, place, key, owner, hint=hint)


def _quote(globs: Sequence[str]) -> str:
    return ", ".join(f"`{glob}`" for glob in globs) or "it names none"
