"""The tools of one agent: its own functions and those of MCP servers, in one set."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from multitap.catalog.catalog import allowed
from multitap.config import ToolFilter
from multitap.config.problems import nearest
from multitap.errors import MultitapError, NotAllowed, UnknownName, join_hints, quoted
from multitap.later import Later
from multitap.records import dataclass
from multitap.results import ToolResult
from multitap.tools.provider_formats import ProviderFormats
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
    from multitap.tools import providers
    from multitap.tools.providers import Offer
else:
    providers = Later("multitap.tools.providers")

logger = logging.getLogger(__name__)

TOOL_BUDGET = 5_000
"""Tokens of one tool's definition; some real ones have 82 KB, four times as much."""
SEARCH_TOOLS = frozenset({"search_tools", "describe_tool", "call_tool"})
"""Names of the search tools; reserved."""

_Registered = TypeVar("_Registered", bound=ToolInfo | Callable[..., Any])


@dataclass(frozen=True, slots=True)
class TokenCost:
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
        made = _as_tool(tool)
        if made.name in SEARCH_TOOLS:
            raise MultitapError(f"the name {made.name!r} is taken by a search tool")
        if made.name in self._own:
            raise MultitapError(
                f"a tool named {made.name!r} is registered already", hint="unregister it first"
            )
        self._own[made.name] = made
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
        self._attached = [one for one in self._attached if one is not tools]

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
        found = dict(self._own)
        for tools in self._attached:
            for name, tool in tools.items():
                # a server must not replace the search tools, which call all others
                if name in SEARCH_TOOLS or found.setdefault(name, tool) is not tool:
                    self._skip(name)
        return tuple(found.values())

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
        provider = providers.openai_provider(strict=strict, api=api)
        return self._formats.offer(provider, budget, tool_budget)

    def for_anthropic(self, *, budget: int | None = None, tool_budget: int = TOOL_BUDGET) -> Offer:
        """The tools in the format of Anthropic; see `for_openai`."""
        return self._formats.offer(providers.ANTHROPIC, budget, tool_budget)

    def for_gemini(
        self, *, budget: int | None = None, tool_budget: int = TOOL_BUDGET, images: bool = True
    ) -> Offer:
        """The tools in the format of Gemini; see `for_openai`.

        Args:
            budget: Tokens for all definitions.
            tool_budget: Tokens for one definition.
            images: Send images of results; models before Gemini 3 accept none.
        """
        return self._formats.offer(providers.gemini_provider(images=images), budget, tool_budget)

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
        if name not in self._skipped:
            self._skipped.add(name)
            logger.warning("the tool %r is skipped: another one has that name", name)


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
