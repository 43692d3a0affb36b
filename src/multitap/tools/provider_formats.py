"""A registry's tools as a provider of models accepts them: all of them, or a search among them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from multitap.later import Later
from multitap.tools.tool import ToolInfo

if TYPE_CHECKING:
    from multitap.tools import providers
    from multitap.tools.providers import Offer, Provider
    from multitap.tools.registry import ToolRegistry
else:
    providers = Later("multitap.tools.providers")


class ProviderFormats:
    """Converts the tools of one registry, each once per provider.

    Args:
        registry: The source of the tools.
        whole: The formats of the full registry if `registry` is a part of one; shares conversions.
    """

    def __init__(self, registry: ToolRegistry, whole: ProviderFormats | None = None) -> None:
        self._registry = registry
        self._whole = whole

    @cached_property
    def conversions(self) -> providers.Conversions:
        """Earlier conversions."""
        # shared: the tools of an agent's part of a registry are already converted
        return providers.Conversions() if self._whole is None else self._whole.conversions

    @cached_property
    def search(self) -> Mapping[str, ToolInfo]:
        """The tools that find and call all others, by name."""
        from multitap.tools.search import search_mode  # noqa: PLC0415 - it needs registries itself

        return {tool.name: tool for tool in search_mode(self._registry)}

    def offer(self, provider: Provider, budget: int | None, tool_budget: int) -> Offer:
        """The tools in a provider's format; a search among them if they cost more than `budget`."""
        tools = self._registry.list()
        # made even if it exceeds the budget: only converted definitions show their cost
        everything = self._make_offer(tools, provider, tool_budget)
        if budget is None or (everything.tokens <= budget and provider.holds(len(tools))):
            return everything
        return self._make_offer(tuple(self.search.values()), provider, tool_budget, searching=True)

    def _make_offer(
        self,
        tools: tuple[ToolInfo, ...],
        provider: Provider,
        tool_budget: int,
        *,
        searching: bool = False,
    ) -> Offer:
        return providers.make_offer(
            tools,
            provider,
            tool_budget=tool_budget,
            conversions=self.conversions,
            execute=self._registry.execute,
            searching=searching,
        )
