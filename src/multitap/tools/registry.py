"""The tools of one agent: its own functions and those of MCP servers, in one set."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from multitap.catalog.catalog import allowed
from multitap.config.models import ToolFilter
from multitap.config.problems import nearest
from multitap.errors import MultitapError, NotAllowed, UnknownName, join_hints, quoted
from multitap.results import ToolResult
from multitap.tools.tool import (
    NOBODY,
    Arguments,
    HubTool,
    HubTools,
    ToolContext,
    ToolDef,
    ToolInfo,
    failure,
    names_of,
)

if TYPE_CHECKING:
    from multitap.tools.providers import Conversions, Offer, Provider

logger = logging.getLogger(__name__)

TOOL_BUDGET = 5_000
"""Tokens of one tool's definition; some real ones have 82 KB, four times as much."""
SEARCH_TOOLS = frozenset({"search_tools", "describe_tool", "call_tool"})
"""Names of the search tools; reserved."""

_Registered = TypeVar("_Registered", bound=ToolInfo | Callable[..., Any])


class TokenCost(msgspec.Struct, frozen=True):
    """Estimated tokens that tool definitions cost in every request to a model."""

    tools: Mapping[str, int]
    servers: Mapping[str | None, int]
    """By server name; None for tools without a server."""

    @property
    def total(self) -> int:
        return sum(self.tools.values())


class ToolRegistry:
    """Tools by name.

    A tool that was registered wins over one of the same name that comes with an attached set,
    and an earlier set over a later one; a warning is logged for each skipped tool.
    """

    def __init__(self, tools: Iterable[ToolInfo | Callable[..., Any]] = ()) -> None:
        self._own: dict[str, ToolInfo] = {}
        self._attached: list[Mapping[str, ToolInfo]] = []
        self._skipped: set[str] = set()
        self._formats = ProviderFormats(self)
        for tool in tools:
            self.register(tool)

    def __iter__(self) -> Iterator[ToolInfo]:
        return iter(self.list())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def register(self, tool: _Registered) -> _Registered:
        """Add a tool, or a function as one; returns its argument.

        Raises:
            MultitapError: The name is taken.
        """
        added = _as_tool(tool)
        if added.name in SEARCH_TOOLS:
            raise MultitapError(f"the name {added.name!r} is taken by a search tool")
        if added.name in self._own:
            raise MultitapError(
                f"a tool named {added.name!r} is registered already", hint="unregister it first"
            )
        self._own[added.name] = added
        return tool

    def unregister(self, name: str) -> None:
        """Remove a registered tool; ignores unknown names."""
        self._own.pop(name, None)

    def attach(self, tools: Mapping[str, ToolInfo]) -> None:
        """Add a set of tools, such as `HubTools`, which may change at any time."""
        self._attached.append(tools)
        self.list()  # logs skipped tools now, not at the first use

    def detach(self, tools: Mapping[str, ToolInfo]) -> None:
        """Remove a set that was attached."""
        # by identity: two sets with the same tools are equal
        self._attached = [attached for attached in self._attached if attached is not tools]

    def get(self, name: str) -> ToolInfo | None:
        """The tool of that name; the search tools are found too, although they are not listed."""
        if name in SEARCH_TOOLS:
            return self._formats.search[name]
        for tools in (self._own, *self._attached):
            if (tool := tools.get(name)) is not None:
                return tool
        return None

    def list(self) -> tuple[ToolInfo, ...]:
        """All current tools."""
        by_name = dict(self._own)
        for tools in self._attached:
            for name, tool in tools.items():
                # a server must not replace the search tools, which call all others
                if name in SEARCH_TOOLS or by_name.setdefault(name, tool) is not tool:
                    self._skip(name)
        return tuple(by_name.values())

    def narrowed(self, by: ToolFilter | Callable[[ToolInfo], bool]) -> ToolRegistry:
        """The tools that a filter or a function accepts; follows changes."""
        if isinstance(by, ToolFilter):
            return _Narrowed(self, lambda tool: allowed(names_of(tool), by))
        return _Narrowed(self, by)

    def description(self) -> str:
        """One line per tool, for a system prompt."""
        return "\n".join(f"  - {tool.name}: {tool.description}" for tool in self.list())

    def tokens(self) -> TokenCost:
        """Estimated tokens of each tool and server in every request."""
        servers: Counter[str | None] = Counter()
        tools: dict[str, int] = {}
        for tool in self.list():
            tools[tool.name] = self._formats.conversions.cost(tool)
            servers[tool.server if isinstance(tool, HubTool) else None] += tools[tool.name]
        return TokenCost(tools, servers)

    def for_openai(
        self,
        *,
        strict: bool = False,
        api: Literal["chat", "responses"] = "chat",
        budget: int | None = None,
        tool_budget: int = TOOL_BUDGET,
    ) -> Offer:
        """The tools in the format of OpenAI and compatible endpoints.

        Args:
            strict: Make the model follow the schema exactly, for tools that allow it.
            api: Chat Completions or Responses.
            budget: Tokens for all definitions; above it, search tools are offered instead.
            tool_budget: Tokens for one definition; larger ones are shortened.
        """
        from multitap.tools.providers import openai_provider  # noqa: PLC0415 - many never offer tools

        provider = openai_provider(strict=strict, api=api)
        return self._formats.offer(provider, budget, tool_budget)

    def for_anthropic(self, *, budget: int | None = None, tool_budget: int = TOOL_BUDGET) -> Offer:
        """The tools in the format of Anthropic; see `for_openai`."""
        from multitap.tools.providers import ANTHROPIC  # noqa: PLC0415 - many never offer tools

        return self._formats.offer(ANTHROPIC, budget, tool_budget)

    def for_gemini(
        self, *, budget: int | None = None, tool_budget: int = TOOL_BUDGET, images: bool = True
    ) -> Offer:
        """The tools in the format of Gemini; see `for_openai`.

        Args:
            budget: Tokens for all definitions.
            tool_budget: Tokens for one definition.
            images: Send images of results; models before Gemini 3 accept none.
        """
        from multitap.tools.providers import gemini_provider  # noqa: PLC0415 - many never offer tools

        return self._formats.offer(gemini_provider(images=images), budget, tool_budget)

    async def execute(
        self, name: str, arguments: Arguments, context: ToolContext = NOBODY
    ) -> ToolResult:
        """Run a tool; every failure becomes a result, even an unknown name."""
        try:
            tool = self._find(name)
        except UnknownName as exc:
            return failure(exc)
        return await tool.execute(arguments, context)

    def call_tool(self, name: str, arguments: Arguments) -> str:
        """Call a tool and wait for its text.

        Raises:
            UnknownName: There is no such tool.
            MultitapError: It can only be awaited; other exceptions come from the tool.
        """
        tool = self._find(name)
        if not isinstance(tool, ToolDef):
            raise MultitapError(f"the tool {quoted(name)} must be awaited", hint="use `execute`")
        return tool.call(arguments)

    def _find(self, name: str) -> ToolInfo:
        if (tool := self.get(name)) is not None:
            return tool
        raise UnknownName(f"no tool named {quoted(name)}", hint=self.advice(name))

    def advice(self, name: str) -> str | None:
        """A hint for an unknown name: a similar one, and what is not trusted."""
        near = nearest(name, [tool.name for tool in self.list()])
        guess = f"did you mean {quoted(near)}?" if near else None
        return join_hints(guess, _withheld_words(self._attached))

    def _skip(self, name: str) -> None:
        # once for each name, because tools are listed at every use
        if name not in self._skipped:
            self._skipped.add(name)
            logger.warning("the tool %r is skipped: another one has that name", name)


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
    def conversions(self) -> Conversions:
        """Earlier conversions."""
        from multitap.tools.providers import Conversions  # noqa: PLC0415 - many never offer tools

        # shared: the tools of an agent's part of a registry are already converted
        return Conversions() if self._whole is None else self._whole.conversions

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
        from multitap.tools.providers import make_offer  # noqa: PLC0415 - as above

        return make_offer(
            tools,
            provider,
            tool_budget=tool_budget,
            conversions=self.conversions,
            execute=self._registry.execute,
            searching=searching,
        )


class _Narrowed(ToolRegistry):
    def __init__(self, whole: ToolRegistry, shows: Callable[[ToolInfo], bool]) -> None:
        super().__init__()
        self._whole = whole
        self._shown = _Shown(whole, shows, lambda: _withheld_words(whole._attached))  # noqa: SLF001 - as above
        self._formats = ProviderFormats(self, whole._formats)  # noqa: SLF001 - the same tools
        self.attach(self._shown)

    def _find(self, name: str) -> ToolInfo:
        if self.get(name) is None and self._shown.hides(name):
            raise NotAllowed(
                f"the tool {quoted(name)} may not be used here", hint="use another one"
            )
        return super()._find(name)


class _Shown(Mapping[str, ToolInfo]):
    """The tools of a registry that a filter accepts."""

    def __init__(
        self,
        whole: ToolRegistry,
        shows: Callable[[ToolInfo], bool],
        withheld: Callable[[], str],
    ) -> None:
        self._whole = whole
        self._shows = shows
        self._withheld = withheld

    def __getitem__(self, name: str) -> ToolInfo:
        tool = self._whole.get(name)
        if tool is None or not self._shows(tool):
            raise KeyError(name)
        return tool

    def __iter__(self) -> Iterator[str]:
        return (tool.name for tool in self._whole.list() if self._shows(tool))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def withheld(self) -> str:
        return self._withheld()

    def hides(self, name: str) -> bool:
        tool = self._whole.get(name)
        return tool is not None and not self._shows(tool)


def _withheld_words(attached: Iterable[Mapping[str, ToolInfo]]) -> str:
    """What hubs do not offer because nobody has trusted it; empty if nothing."""
    sets = (tools for tools in attached if isinstance(tools, HubTools | _Shown))
    return join_hints(*(tools.withheld for tools in sets)) or ""


def _as_tool(tool: ToolInfo | Callable[..., Any]) -> ToolInfo:
    return ToolDef.of(tool) if callable(tool) else tool
