"""Three tools that stand for all the others, when those are too many to show to a model."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import msgspec

from multitap.catalog import schemas
from multitap.errors import BadArguments, UnknownName, counted, quoted
from multitap.records import dataclass
from multitap.results import ToolResult
from multitap.tools.registry import ToolRegistry
from multitap.tools.search.index import Index
from multitap.tools.search.outline import outline
from multitap.tools.search.tool_document import server_of, summary
from multitap.tools.tool import NOBODY, Arguments, ToolContext, ToolInfo, outcome, said

USUAL_HITS = 10
MOST_HITS = 20
LONGEST_SUMMARY = 300
NEAR = 3
"""How many names are offered for one that does not exist."""

SEARCH: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "description": "What you want to do, in plain words, with the service if you know it; "
            "or the name of a tool. Empty: an overview of what there is.",
        },
        "limit": {
            "type": "integer",
            "description": f"How many tools to show; {USUAL_HITS} if not given.",
            "minimum": 1,
            "maximum": MOST_HITS,
        },
    },
    "required": ["query"],
}
DESCRIBE: Mapping[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "description": "The tool's exact name."}},
    "required": ["name"],
}
CALL: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "The tool's exact name."},
        "arguments": {"type": "object", "description": "What the tool takes, by name."},
    },
    "required": ["name"],
}


def search_mode(tools: ToolRegistry) -> tuple[ToolInfo, ToolInfo, ToolInfo]:
    """`search_tools`, `describe_tool` and `call_tool`, over the registry as it is at each use."""
    shelf = _Shelf(tools)
    return (
        _Door(
            "search_tools",
            "Find tools by what they do. Shows names, arguments (`?`: optional) and what they are "
            "for; use one with `call_tool`. Search before you say that something cannot be done.",
            SEARCH,
            shelf.search,
        ),
        _Door(
            "describe_tool",
            "Everything about one tool: its whole description and the JSON Schema of its "
            "arguments. Only needed where `search_tools` does not say enough.",
            DESCRIBE,
            shelf.describe,
        ),
        _Door(
            "call_tool",
            "Use a tool that `search_tools` found.",
            CALL,
            shelf.call,
        ),
    )


@dataclass(frozen=True)
class _Door:
    """One of the three."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(repr=False)
    enter: Callable[[Arguments, ToolContext], Awaitable[ToolResult]] = field(repr=False)

    async def execute(self, arguments: Arguments, context: ToolContext = NOBODY) -> ToolResult:
        return await outcome(self._entered(arguments, context))

    @cached_property
    def _checker(self) -> schemas.Checker | schemas.Unchecked:
        return schemas.compile_schema(self.parameters)

    async def _entered(self, arguments: Arguments, context: ToolContext) -> ToolResult:
        self._checker.check(arguments)
        return await self.enter(arguments, context)


class _Shelf:
    """The tools behind the three doors."""

    def __init__(self, tools: ToolRegistry) -> None:
        self._tools = tools
        self._known = Index()

    async def search(self, arguments: Arguments, _: ToolContext) -> ToolResult:
        index = self._index()
        hits = index.search(arguments["query"], arguments.get("limit", USUAL_HITS))
        found = "\n\n".join(_shown(hit.tool) for hit in hits)
        return said(found or _overview(arguments["query"], index.tools))

    async def describe(self, arguments: Arguments, _: ToolContext) -> ToolResult:
        tool = self._find(arguments["name"])
        return said(f"{tool.name}\n\n{tool.description}\n\narguments: {_schema(tool)}")

    async def call(self, arguments: Arguments, context: ToolContext) -> ToolResult:
        name: str = arguments["name"]
        given: Arguments = arguments.get("arguments", {})
        result = await self._tools.execute(name, given, context)
        if result.success:
            return result
        if (tool := self._tools.get(name)) is None:
            return said(f"{result.error}; {self._advice(name)}", is_error=True)
        if (misfit := _misfit(tool, given)) is None:
            return result
        return said(f"{misfit}; its arguments: {_schema(tool)}", is_error=True, tool=name)

    def _index(self) -> Index:
        self._known.update(self._tools.list())
        return self._known

    def _find(self, name: str) -> ToolInfo:
        if (tool := self._tools.get(name)) is not None:
            return tool
        raise UnknownName(f"no tool named {quoted(name)}", hint=self._advice(name))

    def _advice(self, name: str) -> str:
        index = self._index()
        alike = get_close_matches(name, [tool.name for tool in index.tools], n=NEAR)
        meant = [hit.tool.name for hit in index.search(name, NEAR)]
        near = [repr(one) for one in dict.fromkeys(alike + meant)][:NEAR]
        return f"the closest are {', '.join(near)}" if near else "`search_tools` finds tools"


def _shown(tool: ToolInfo) -> str:
    return f"{tool.name}{outline(tool.parameters)}\n{_short(summary(tool))}"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_SUMMARY else f"{text[:LONGEST_SUMMARY]}…"


def _schema(tool: ToolInfo) -> str:
    return msgspec.json.encode(tool.parameters).decode()


def _misfit(tool: ToolInfo, arguments: Arguments) -> BadArguments | None:
    try:
        schemas.compile_schema(tool.parameters).check(arguments)
    except BadArguments as exc:
        return exc
    return None


def _overview(query: str, tools: tuple[ToolInfo, ...]) -> str:
    """What to tell who found nothing: where there would be something."""
    count = Counter(server_of(tool) or "built in" for tool in tools)
    places = ", ".join(f"{place} ({number})" for place, number in sorted(count.items()))
    found = f"nothing matches {quoted(query)}; " if query.strip() else ""
    return (
        f"{found}{counted(len(tools), 'tool')} available: {places}"
        if tools
        else "there are no tools"
    )
