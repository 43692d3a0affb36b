"""The tools of one agent: its own functions and those of MCP servers, in one set."""

import logging
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from multitap.content import ToolResult
from multitap.errors import MultitapError, UnknownName
from multitap.tools.tool import NOBODY, Arguments, ToolContext, ToolDef, ToolInfo, failed

logger = logging.getLogger(__name__)


class ToolRegistry:
    """Tools by name.

    A tool that was registered wins over one of the same name that comes with an attached set,
    and an earlier set over a later one; a warning is logged for what is skipped.
    """

    def __init__(self, tools: Iterable[ToolInfo] = ()) -> None:
        self._own: dict[str, ToolInfo] = {}
        self._attached: list[Mapping[str, ToolInfo]] = []
        self._skipped: set[str] = set()
        for tool in tools:
            self.register(tool)

    def register(self, tool: ToolInfo) -> None:
        """Add a tool.

        Raises:
            MultitapError: One of that name was registered before.
        """
        if tool.name in self._own:
            raise MultitapError(
                f"a tool named {tool.name!r} is registered already", hint="unregister it first"
            )
        self._own[tool.name] = tool

    def unregister(self, name: str) -> None:
        """Remove a tool that was registered; one that is not there is fine."""
        self._own.pop(name, None)

    def attach(self, tools: Mapping[str, ToolInfo]) -> None:
        """Have a whole set of tools too, such as `HubTools`, as it is whenever one looks."""
        self._attached.append(tools)
        self.list()  # says what is skipped now, not at the first use

    def detach(self, tools: Mapping[str, ToolInfo]) -> None:
        """No longer have a set that was attached."""
        self._attached = [one for one in self._attached if one is not tools]

    def get(self, name: str) -> ToolInfo | None:
        for tools in (self._own, *self._attached):
            if (tool := tools.get(name)) is not None:
                return tool
        return None

    def list(self) -> tuple[ToolInfo, ...]:
        """Every tool there is right now."""
        found = dict(self._own)
        for tools in self._attached:
            for name, tool in tools.items():
                if found.setdefault(name, tool) is not tool:
                    self._skip(name)
        return tuple(found.values())

    async def execute(
        self, name: str, arguments: Arguments, context: ToolContext = NOBODY
    ) -> ToolResult:
        """Use a tool; whatever goes wrong is said in the result, even that there is none."""
        try:
            tool = self._find(name)
        except UnknownName as exc:
            return failed(exc)
        return await tool.execute(arguments, context)

    def call_tool(self, name: str, arguments: Arguments) -> str:
        """Use a tool and wait for its text.

        Raises:
            UnknownName: There is no such tool.
            MultitapError: It can only be awaited; anything else is what the tool raises.
        """
        tool = self._find(name)
        if not isinstance(tool, ToolDef):
            raise MultitapError(f"the tool {name!r} has to be awaited", hint="use `execute`")
        return tool.call(arguments)

    def _find(self, name: str) -> ToolInfo:
        if (tool := self.get(name)) is not None:
            return tool
        near = get_close_matches(name, [tool.name for tool in self.list()], n=1)
        raise UnknownName(
            f"no tool named {name!r}", hint=f"did you mean {near[0]!r}?" if near else None
        )

    def _skip(self, name: str) -> None:
        if name not in self._skipped:
            self._skipped.add(name)
            logger.warning("the tool %r is skipped: another one has that name", name)
