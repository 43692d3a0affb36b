"""Decides which calls are allowed, asked about or denied, as early as possible.

Rules come in two lists, the server's own and that of the settings. In each, the first rule that
applies decides, and a list without one allows. The stricter of the two decisions applies, so a
project's rules can tighten the user's, but never loosen them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Raw

from multitap.config.models import ServerConfig, Settings
from multitap.config.policy_rules import PolicyRule
from multitap.config.problems import Place, Problem, Severity, did_you_mean, nearest
from multitap.errors import Denied
from multitap.names import ToolNames, matches_any
from multitap.trust.arguments import Arguments, Test, decode_arguments, tests_of


class Decision(StrEnum):
    """From the loosest to the strictest."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"

    @property
    def severity(self) -> int:
        return _SEVERITY[self]


_SEVERITY = {Decision.ALLOW: 0, Decision.ASK: 1, Decision.DENY: 2}


class Ruling(msgspec.Struct, frozen=True):
    """A decision, and the rule behind it."""

    decision: Decision
    rule: PolicyRule | None = None
    """None if no rule applies."""

    @property
    def place(self) -> str:
        """The rule's place in a file; empty if it has none."""
        place = self.rule.place if self.rule else None
        return f"{place.file}:{place.line}" if place else ""

    @property
    def because(self) -> str:
        """The rule's own reason, as the end of a message."""
        return f": {self.rule.reason}" if self.rule and self.rule.reason else ""

    @property
    def hint(self) -> str:
        """The hint for a refused call."""
        where = self.place or "the settings"
        return f"the rule is in {where}; `multitap policy explain` shows what applies"


ALLOWED = Ruling(Decision.ALLOW)


class DeniedByRule(Denied):
    """A rule refuses the call, or the person whom it asks."""

    def __init__(
        self, message: str, ruling: Ruling, *, hint: str | None = None, asks: bool = False
    ) -> None:
        super().__init__(message, hint=hint)
        self.ruling = ruling
        self.asks = asks
        """Whether a person could have allowed it."""


class Clause(msgspec.Struct, frozen=True):
    """A rule that concerns a tool, and its condition on the arguments."""

    ruling: Ruling
    tests: tuple[Test, ...]

    def applies(self, arguments: Arguments) -> bool:
        return all(test(arguments) for test in self.tests)


class Guard(msgspec.Struct, frozen=True):
    """The policy for calls of one tool."""

    lists: tuple[tuple[Clause, ...], ...]
    """The rules of each list that concern the tool, up to the first without conditions."""
    always: Ruling | None
    """The decision, if it is the same for all arguments."""

    @property
    def is_closed(self) -> bool:
        """Whether no call of the tool can be allowed."""
        return self.always is not None and self.always.decision is Decision.DENY

    @property
    def may_ask(self) -> bool:
        """Whether a person may have to be asked."""
        return any(
            clause.ruling.decision is Decision.ASK for clauses in self.lists for clause in clauses
        )

    @property
    def rules(self) -> Iterator[PolicyRule]:
        """The rules that concern the tool."""
        for clauses in self.lists:
            for clause in clauses:
                if clause.ruling.rule is not None:
                    yield clause.ruling.rule

    def decide(self, arguments: bytes | Raw) -> Ruling:
        """The decision about one call.

        Raises:
            BadArguments: Rules look at the arguments, and servers may read them differently.
        """
        if self.always is not None:
            return self.always
        values = decode_arguments(arguments)
        # A server's own rules cannot loosen the shared ones: of both decisions, the stricter
        # counts.
        return _strictest(_first(clauses, values) for clauses in self.lists)


class Policy:
    """The rules of the settings, ready to be asked about tools."""

    def __init__(self, settings: Settings) -> None:
        self.shared = settings.policy
        """Rules for all servers."""
        self.own = {
            name: server.policy for name, server in settings.servers.items() if server.policy
        }
        """Rules for single servers."""

    def is_same(self, other: "Policy") -> bool:
        """Whether both have the same rules, wherever those are written."""
        return self.own == other.own and self.shared == other.shared

    def guard(
        self, tool: ToolNames, config: ServerConfig, annotations: Mapping[str, Any]
    ) -> Guard | None:
        """The guard of a tool; None if every call of it is allowed.

        Args:
            tool: Its names.
            config: Has the base of its server's relative paths.
            annotations: As the server states them.
        """
        if not self.shared and tool.server not in self.own:
            return None
        own = (rule for rule in self.own.get(tool.server, ()) if concerns(rule, tool, is_own=True))
        shared = (rule for rule in self.shared if concerns(rule, tool))
        lists = tuple(
            clauses
            for rules in (own, shared)
            if (clauses := tuple(_clauses(rules, config, annotations)))
        )
        if not lists:
            return None
        guard = Guard(lists, _always(lists))
        # Most tools have no guard, so that the policy costs their calls nothing.
        return None if guard.always == ALLOWED else guard


def hints_of(annotations: Mapping[str, Any]) -> dict[str, bool]:
    """A tool's hints, with MCP's defaults for missing ones."""
    hints = {name: value for name, value in annotations.items() if isinstance(value, bool)}
    reads = hints.get("readOnlyHint", False)
    # a read-only tool destroys nothing
    defaults = {"destructiveHint": not reads, "idempotentHint": False, "openWorldHint": True}
    return {"readOnlyHint": reads, **defaults, **hints}


def concerns(rule: PolicyRule, tool: ToolNames, *, is_own: bool = False) -> bool:
    """Whether a rule is about a tool, by its names.

    A rule that denies or asks goes by any of the tool's names. One that allows goes by the name
    that callers see and, if it names its servers, by the server's own.

    Args:
        rule: The rule.
        tool: The tool's names.
        is_own: Whether the rule is of the list of the tool's server.
    """
    if not matches_any(tool.server, rule.servers):
        return False
    if rule.decision == "allow":
        servers = (tool.server,) if is_own else rule.servers
        return tool.surely_matches(rule.tools, servers=servers)
    return tool.may_match(rule.tools)


def _clauses(
    rules: Iterable[PolicyRule], config: ServerConfig, annotations: Mapping[str, Any]
) -> Iterable[Clause]:
    hints = hints_of(annotations)
    for rule in rules:
        if all(hints[name] is value for name, value in rule.hints.items()):
            yield Clause(Ruling(Decision(rule.decision), rule), tests_of(rule, config))
            if not rule.arguments:
                return  # the rules after it are never reached


def _first(clauses: Iterable[Clause], arguments: Arguments) -> Ruling:
    return next((clause.ruling for clause in clauses if clause.applies(arguments)), ALLOWED)


def _strictest(rulings: Iterable[Ruling]) -> Ruling:
    return max(rulings, key=lambda ruling: ruling.decision.severity)


def _always(lists: Iterable[tuple[Clause, ...]]) -> Ruling | None:
    """The decision, if arguments cannot change it."""
    steady = [_steady(clauses) for clauses in lists]
    for ruling in steady:
        if ruling is not None and ruling.decision is Decision.DENY:
            return ruling  # nothing is stricter
    rulings = [ruling for ruling in steady if ruling is not None]
    return _strictest(rulings) if len(rulings) == len(steady) else None


def _steady(clauses: tuple[Clause, ...]) -> Ruling | None:
    """The only decision that a list can reach, given its last rule."""
    possible = {clause.ruling.decision for clause in clauses}
    last = clauses[-1]
    if last.tests:
        possible.add(Decision.ALLOW)
        return ALLOWED if possible == {Decision.ALLOW} else None
    return last.ruling if len(possible) == 1 else None


KnownTools = Mapping[str, Sequence[ToolNames] | None]
"""The tools of each configured server; None if they are not known."""

_WORD = re.compile(r"[A-Za-z0-9]+")
_WILDCARDS = re.compile(r"[*?\[]")


def idle_rules(settings: Settings, tools: KnownTools) -> Iterator[Problem]:
    """A warning about each rule that is about none of the known tools.

    A rule may be about a server whose tools are not known, so there is none about such a rule.
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
    vocabulary = dict.fromkeys(word for name in names for word in _WORD.findall(name))
    meant = _WORD.sub(lambda match: nearest(match[0], vocabulary) or match[0], glob)
    return meant if any(tool.may_match([meant]) for tool in candidates) else None


def _warning(
    message: str, hint: str | None, *, place: Place, key: str, owner: str | None
) -> Problem:
    return Problem(
        severity=Severity.WARNING, message=message, place=place, key=key, server=owner, hint=hint
    )


def _quote(globs: Sequence[str]) -> str:
    return ", ".join(f"`{glob}`" for glob in globs) or "it names none"
