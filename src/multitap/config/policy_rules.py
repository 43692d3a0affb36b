"""The policy rules of a configuration: allow, ask about or deny calls."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic_core import SchemaError, SchemaValidator

from multitap.config.frozen_model import FrozenModel, setting
from multitap.config.host_lists import is_host
from multitap.config.problems import Place

RuleDecision = Literal["allow", "ask", "deny"]
Hint = Literal["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"]
Scalar = str | int | float | bool

_STEP = r"[^.\[\]]+(?:\[\*\])*"
_ARGUMENT = re.compile(rf"{_STEP}(?:\.{_STEP})*")


def pattern_check(pattern: str) -> SchemaValidator:
    """Compile a pattern that matches in linear time: values are foreign and must not block us.

    Raises:
        ValueError: It is not a regular expression, or one that needs backtracking.
    """
    try:
        # The regular expressions of pydantic-core are Rust's, which never backtrack; Python's `re`
        # does.
        return SchemaValidator({"type": "str", "strict": True, "pattern": pattern})
    except SchemaError as exc:
        reason = str(exc).rpartition("error: ")[2].strip()
        raise ValueError(f"not a regular expression that can be used: {reason}") from None


def _sound_pattern(pattern: str | None) -> str | None:
    if pattern is not None:
        pattern_check(pattern)
    return pattern


def _known_hosts(hosts: tuple[str, ...] | None) -> tuple[str, ...] | None:
    for host in hosts or ():
        if not is_host(host):
            raise ValueError(f"{host!r} is not a host: write a name, an address or a network")
    return hosts


class ArgumentTest(FrozenModel):
    """A condition on one argument; all given tests must hold."""

    inside: tuple[Path, ...] | None = None
    """It is a path within one of these folders, links and `..` resolved."""
    outside: tuple[Path, ...] | None = None
    """It is a path within none of these folders, links and `..` resolved."""
    host_in: tuple[str, ...] | None = setting(default=None, after=_known_hosts)
    """It is a URL of one of these hosts: `example.com`, `*.example.com`, `example.com:8443`,
    `10.0.0.0/8`."""
    host_not_in: tuple[str, ...] | None = setting(default=None, after=_known_hosts)
    """It is a URL of none of these hosts."""
    matches: str | None = setting(default=None, after=_sound_pattern)
    """A regular expression is found in it; look-around and back-references are not supported."""
    one_of: tuple[Scalar, ...] | None = None
    """It is one of these values."""
    none_of: tuple[Scalar, ...] | None = None
    """It is none of these values."""
    longer_than: int | None = setting(default=None, ge=0)
    """It has more characters or, if it is a list, more items."""
    above: float | None = None
    """It is a number greater than this."""
    below: float | None = None
    """It is a number less than this."""
    given: bool | None = None
    """Whether the argument is present."""

    def check_whole(self) -> Self:
        if all(getattr(self, name) is None for name in self.model_fields):
            raise ValueError(f"needs one of: {', '.join(self.model_fields)}")
        return self


class PolicyRule(FrozenModel):
    """One rule of a policy; it applies to calls that meet all of its conditions."""

    decision: RuleDecision
    """`allow` the call, `ask` a person first, or `deny` it."""
    servers: tuple[str, ...] = ("*",)
    """Globs over the names of servers."""
    tools: tuple[str, ...] = ("*",)
    """Globs over the names of tools: those that callers see, and the servers' own; an `allow` goes
    by the servers' own only with `servers`."""
    hints: Mapping[Hint, bool] = {}
    """What the tool's annotations must say; missing ones have MCP's defaults."""
    arguments: Mapping[str, ArgumentTest] = {}
    """Tests by argument name; `options.path` is in an object, `paths[*]` each item of a list."""
    reason: str | None = None
    """Shown to the caller, and to the person who is asked."""

    def check_whole(self) -> Self:
        for name in self.arguments:
            if not _ARGUMENT.fullmatch(name):
                raise ValueError(f"{name!r} is not an argument: write `name`, `a.b` or `items[*]`")
        return self

    @property
    def place(self) -> Place | None:
        """Where it is written; not part of its value, so a moved rule stays equal."""
        place: Place | None = self.__dict__.get("_place")
        return place

    def at(self, place: Place) -> Self:
        """The same rule with its place."""
        copy = self.model_copy()
        copy.__dict__["_place"] = place
        return copy
