"""Three tools that replace all others when there are too many for a model."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

from multitap.catalog import schemas
from multitap.records import dataclass
from multitap.results import ToolResult
from multitap.tools.registry import ToolRegistry
from multitap.tools.search.tool_finder import (
    CALL,
    DEFINITIONS,
    DESCRIBE,
    SEARCH,
    SearchTool,
    ToolFinder,
)
from multitap.tools.tool import NOBODY, Arguments, ToolContext, ToolInfo, outcome, text_result


def search_mode(tools: ToolRegistry) -> tuple[ToolInfo, ToolInfo, ToolInfo]:
    """`search_tools`, `describe_tool` and `call_tool`, over the current registry at each use."""
    finder = ToolFinder(tools.list, tools.get)

    async def search(arguments: Arguments, _: ToolContext) -> ToolResult:
        return text_result(finder.search(arguments))

    async def describe(arguments: Arguments, _: ToolContext) -> ToolResult:
        return text_result(finder.describe(arguments))

    async def call(arguments: Arguments, context: ToolContext) -> ToolResult:
        name: str = arguments["name"]
        given: Arguments = arguments.get("arguments", {})
        result = await tools.execute(name, given, context)
        if result.success:
            return result
        if tools.get(name) is None:
            return text_result(f"{result.error}; {finder.advice(name)}", is_error=True)
        if (words := finder.misfit(name, given)) is None:
            return result
        return text_result(words, is_error=True, tool=name)

    return (
        _BoundSearchTool(search, DEFINITIONS[SEARCH]),
        _BoundSearchTool(describe, DEFINITIONS[DESCRIBE]),
        _BoundSearchTool(call, DEFINITIONS[CALL]),
    )


@dataclass(frozen=True)
class _BoundSearchTool:
    """One of the three search tools, as a tool of an agent."""

    enter: Callable[[Arguments, ToolContext], Awaitable[ToolResult]] = field(repr=False)
    definition: SearchTool

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def description(self) -> str:
        return self.definition.description

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.definition.schema

    async def execute(self, arguments: Arguments, context: ToolContext = NOBODY) -> ToolResult:
        return await outcome(self._enter(arguments, context))

    @cached_property
    def _checker(self) -> schemas.Checker | schemas.Unchecked:
        return schemas.compile_schema(self.parameters)

    async def _enter(self, arguments: Arguments, context: ToolContext) -> ToolResult:
        self._checker.check(arguments)
        return await self.enter(arguments, context)
