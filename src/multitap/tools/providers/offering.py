"""Makes offers from tools."""

import re
from collections.abc import Collection, Sequence
from dataclasses import field
from hashlib import blake2s
from typing import Any

import msgspec

from multitap.names import MAX_LENGTH, slug
from multitap.records import dataclass
from multitap.tools.providers.convert import CannotOffer, Converted, Dialect, convert_tool
from multitap.tools.providers.offer import Change, Execute, Offer, Shape, Skipped
from multitap.tools.providers.token_cost import estimate
from multitap.tools.tool import ToolInfo

_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_-]{{0,{MAX_LENGTH - 1}}}")  # accepted by all providers
_MOST_KEPT = 4096  # more than any set of tools; without a bound, reloads would add up


@dataclass(frozen=True, slots=True)
class Provider:
    """The limits and formats of one provider."""

    name: str
    dialect: Dialect
    shape: Shape
    most_tools: int | None = None
    strict: bool = False

    def holds(self, count: int) -> bool:
        return self.most_tools is None or count <= self.most_tools


@dataclass(slots=True)
class Conversions:
    """A cache, so that each definition is converted once."""

    _kept: dict[tuple[Any, ...], tuple[Any, Converted | CannotOffer]] = field(
        default_factory=dict[tuple[Any, ...], tuple[Any, Converted | CannotOffer]]
    )
    _costs: dict[tuple[int, str, str], tuple[Any, int]] = field(
        default_factory=dict[tuple[int, str, str], tuple[Any, int]]
    )

    def of(self, tool: ToolInfo, provider: Provider, budget: int) -> Converted:
        """The tool in the provider's format.

        Raises:
            CannotOffer: It cannot be offered.
        """
        schema = tool.parameters
        # by identity: hashing a large schema costs as much as converting a small one
        key = (id(schema), tool.description, provider.dialect, provider.strict, budget)
        known = self._kept.get(key)
        if known is None or known[0] is not schema:
            # All at once: this happens rarely, and keeping track of which is oldest would cost each
            # lookup.
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            known = self._kept[key] = (schema, _convert(tool, provider, budget))
        if isinstance(known[1], CannotOffer):
            raise CannotOffer(str(known[1]))
        return known[1]

    def cost(self, tool: ToolInfo) -> int:
        """Tokens of the tool's unconverted definition."""
        schema = tool.parameters
        key = (id(schema), tool.name, tool.description)
        known = self._costs.get(key)
        if known is None or known[0] is not schema:
            if len(self._costs) >= _MOST_KEPT:
                self._costs.clear()
            known = self._costs[key] = (schema, _cost(tool))
        return known[1]


def make_offer(
    tools: Sequence[ToolInfo],
    provider: Provider,
    *,
    tool_budget: int,
    conversions: Conversions,
    execute: Execute,
    searching: bool = False,
) -> Offer:
    """All tools that the provider accepts, with a reason for each that it does not."""
    skipped: list[Skipped] = []
    made: dict[str, tuple[ToolInfo, Converted]] = {}
    changes: list[Change] = []
    for tool in tools:
        sent = provider_name(tool.name)
        if reason := _no_room(sent, made, provider):
            skipped.append(Skipped(tool.name, reason))
            continue
        try:
            found = conversions.of(tool, provider, tool_budget)
        except CannotOffer as exc:
            skipped.append(Skipped(tool.name, str(exc)))
            continue
        made[sent] = tool, found
        if sent != tool.name:
            changes.append(Change(tool.name, "", f"it is called {sent!r}", _why_named(provider)))
        changes += [Change(tool.name, *note) for note in found.notes]
    declared = [provider.shape.declare(sent, one) for sent, (_, one) in made.items()]
    encoded = msgspec.json.encode(provider.shape.wrap(declared))
    return Offer(
        msgspec.json.decode(encoded),  # a copy: conversions are reused
        tuple(changes),
        tuple(skipped),
        sum(map(estimate, declared)),
        {sent: tool.name for sent, (tool, _) in made.items()},
        searching,
        {sent: one.back for sent, (_, one) in made.items() if one.back},
        provider.shape,
        execute,
    )


def provider_name(name: str) -> str:
    """The tool's name if all providers accept it, otherwise a similar one for all of them."""
    if _NAME.fullmatch(name):
        return name
    plain = slug(name)
    plain = plain if plain[:1].isalpha() or plain[:1] == "_" else f"_{plain}"
    # of the whole name: names that differ only in replaced characters stay distinct
    digest = blake2s(name.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{plain[: MAX_LENGTH - 9]}_{digest}"


def _no_room(sent: str, taken: Collection[str], provider: Provider) -> str | None:
    if sent in taken:
        return f"another tool is called {sent!r} already"
    if not provider.holds(len(taken) + 1):
        return f"{provider.name} takes {provider.most_tools} tools; a `budget` offers a search"
    return None


def _convert(tool: ToolInfo, provider: Provider, budget: int) -> Converted | CannotOffer:
    try:
        estimate((tool.description, tool.parameters))
    except (TypeError, ValueError, RecursionError) as exc:
        return CannotOffer(f"its definition cannot be written as JSON: {exc}")
    try:
        return convert_tool(
            tool.description,
            tool.parameters,
            provider.dialect,
            wants_strict=provider.strict,
            budget=budget,
        )
    except CannotOffer as exc:
        return exc


def _cost(tool: ToolInfo) -> int:
    definition = (tool.name, tool.description, tool.parameters)
    try:
        return estimate(definition)
    except (TypeError, ValueError, RecursionError):
        return 0  # such a tool cannot be offered


def _why_named(provider: Provider) -> str:
    return f"{provider.name} takes names of at most {MAX_LENGTH} letters, digits, _ and -"
