"""The tools an agent can use: its own functions and those of MCP servers, in one set."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import anyio.to_thread
import msgspec
from pydantic import TypeAdapter

from multitap import schemas
from multitap.catalog import Catalog, Tool
from multitap.content import ToolResult, cap
from multitap.errors import MultitapError, UnknownName
from multitap.router import CallContext

logger = logging.getLogger(__name__)

Arguments = Mapping[str, Any]
ToolContext = CallContext
"""On whose behalf a tool is run."""
RESULT_CAP = 5000
_NOBODY = CallContext()


class ToolInfo(Protocol):
    """A tool, as an agent sees it."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON Schema of its arguments."""
        ...

    async def execute(
        self, arguments: Arguments, context: ToolContext = _NOBODY
    ) -> ToolResult:
        """Run it; whatever goes wrong is said by the result."""
        ...


class ToolSource(Protocol):
    """Tools that come and go by themselves."""

    @property
    def tools(self) -> Mapping[str, ToolInfo]:
        """Those there are right now, by name."""
        ...


class Callable_(Protocol):
    """What tools are called through: a hub, or what stands in for one."""


@dataclass(frozen=True)
class ToolDef:
    """A Python function as a tool."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    func: Callable[..., Any] = field(repr=False)
    """Takes the arguments by name; may be `async`."""
    max_result_chars: int = RESULT_CAP
    """The rest of a longer result is cut off; 0: none is."""
