"""A tool as an agent sees it, wherever it runs."""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from copy import deepcopy
from functools import cached_property, partial
from typing import Any, Protocol

import msgspec
from anyio import to_thread

from multitap.catalog import schemas
from multitap.catalog.catalog import Catalog, Tool, allowed
from multitap.config.models import Settings
from multitap.errors import MultitapError
from multitap.events import Withheld, untrusted_words
from multitap.names import ToolNames
from multitap.results import ToolResult, cap
from multitap.upstream.questions import CallContext

RESULT_CAP = 5000
NOBODY = CallContext()

Arguments = Mapping[str, Any]
ToolContext = CallContext
"""On whose behalf a tool is used: session id, agent id."""


_SECTION = re.compile(r"^(Args|Arguments|Parameters):\s*$")
_PARAMETER = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


class ToolInfo(Protocol):
    """A tool: its definition, and how to run it."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON Schema of its arguments."""
        ...

    async def execute(self, arguments: Arguments, context: ToolContext = NOBODY) -> ToolResult:
        """Run it; every failure becomes a result."""
        ...


class ToolDef(msgspec.Struct, frozen=True, dict=True):
    """A function as a tool."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    func: Callable[..., Any]
    """Called with the arguments by name; may be `async`."""
    max_result_chars: int = RESULT_CAP
    """Characters after which the text is cut; 0 for no limit."""

    @classmethod
    def of(cls, function: Callable[..., Any], *, name: str | None = None) -> "ToolDef":
        """Make a tool from a function's signature and docstring, including `Args:`."""
        import pydantic  # noqa: PLC0415 - slow to import, and many programs have no functions

        shape: Any = function  # pydantic accepts functions, although its annotations do not say so
        description, parameters = parse_docstring(inspect.getdoc(function) or "")
        return cls(
            name or function.__name__,
            description,
            _describe_properties(pydantic.TypeAdapter(shape).json_schema(), parameters),
            pydantic.validate_call(function),
        )

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.input_schema

    def call(self, arguments: Arguments) -> str:
        """Call it and wait.

        Raises:
            BadArguments: They do not match its schema; other exceptions come from the function.
        """
        if inspect.iscoroutinefunction(self.func):
            raise MultitapError(f"the tool {self.name!r} must be awaited", hint="use `execute`")
        self._checker.check(arguments)
        return self._text(self.func(**arguments))

    async def execute(self, arguments: Arguments, context: ToolContext = NOBODY) -> ToolResult:  # noqa: ARG002 - a function is not told for whom it works
        """See `ToolInfo.execute`; a function that is not `async` runs in a thread."""
        return await outcome(self._await_result(arguments))

    @cached_property
    def _checker(self) -> schemas.Checker | schemas.Unchecked:
        return schemas.compile_schema(self.input_schema)

    async def _await_result(self, arguments: Arguments) -> ToolResult:
        self._checker.check(arguments)
        work = partial(self.func, **arguments)
        if inspect.iscoroutinefunction(self.func):
            output = await work()
        else:
            # A thread cannot be stopped: when the call is cancelled, nobody waits for it.
            output = await to_thread.run_sync(work, abandon_on_cancel=True)
        return text_result(self._text(output), tool=self.name)

    def _text(self, output: Any) -> str:
        text = output if isinstance(output, str) else _json(output)
        return cap(text, self.max_result_chars).text if self.max_result_chars else text


def parse_docstring(docstring: str) -> tuple[str, Mapping[str, str]]:
    """A docstring without its `Args:`, and the description of each parameter."""
    text: list[str] = []
    section: list[str] = []
    within = False
    for line in docstring.splitlines():
        if _SECTION.match(line):
            within = True
        # a line that is not indented ends the section, as in Google's style
        elif within and (not line or line[0].isspace()):
            section.append(line)
        else:
            within = False
            text.append(line)
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(text)).strip()
    return description, dict(_parameters(section))


def _describe_properties(
    schema: Mapping[str, Any], parameters: Mapping[str, str]
) -> dict[str, Any]:
    """A schema with descriptions added to properties that have none."""
    copy = deepcopy(dict(schema))
    for name, member in copy.get("properties", {}).items():
        if text := parameters.get(name):
            # `Field(description=…)` takes precedence: it is meant for models
            member.setdefault("description", text)
    return copy


def _parameters(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Names and texts; further indented lines continue the previous text."""
    lines = [line for line in lines if line.strip()]
    indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    name, texts = "", [""]
    for line in lines:
        if match := _PARAMETER.match(line[indent:]):
            if name:
                yield name, " ".join(texts).strip()
            name, texts = match[1], [match[2]]
        else:
            texts.append(line.strip())
    if name:
        yield name, " ".join(texts).strip()


class Caller(Protocol):
    """A hub, or an object with the same methods, through which tools are called."""

    @property
    def settings(self) -> Settings: ...
    @property
    def catalog(self) -> Catalog: ...
    @property
    def withheld(self) -> tuple[Withheld, ...]: ...

    async def call(
        self, name: str, arguments: Arguments | None = None, *, context: CallContext = NOBODY
    ) -> ToolResult: ...


class HubTool(msgspec.Struct, frozen=True):
    """One tool of an MCP server."""

    tool: Tool
    hub: Caller
    agent: str | None = None

    @property
    def name(self) -> str:
        return self.tool.name

    @property
    def server(self) -> str:
        return self.tool.server

    @property
    def title(self) -> str | None:
        return self.tool.title

    @property
    def annotations(self) -> Mapping[str, Any]:
        """The tool's annotations, as the server states them; they may be wrong."""
        return self.tool.annotations

    @property
    def description(self) -> str:
        # a model chooses by the description, so there is always one
        return self.tool.description or self.title or f"MCP tool: {self.tool.raw_name}"

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.tool.input_schema

    async def execute(self, arguments: Arguments, context: ToolContext = NOBODY) -> ToolResult:
        """See `ToolInfo.execute`."""
        if self.agent is not None:
            context = msgspec.structs.replace(context, agent_id=self.agent)
        return await outcome(self.hub.call(self.name, arguments, context=context))


def server_of(tool: ToolInfo) -> str | None:
    """The MCP server that has a tool; None for a function of the program."""
    return tool.server if isinstance(tool, HubTool) else None


def names_of(tool: ToolInfo) -> ToolNames:
    """The names that filters go by; a function of the program has only one."""
    return tool.tool.names if isinstance(tool, HubTool) else ToolNames(tool.name, tool.name)


class HubTools(Mapping[str, ToolInfo]):
    """The current tools of a hub, by name.

    Tools of a server that is down are not listed, but still found: calling one says why it is down.

    Args:
        hub: The source of the tools.
        agent: The agent whose filter applies.
    """

    def __init__(self, hub: Caller, *, agent: str | None = None) -> None:
        self._hub = hub
        self._agent = agent

    def __getitem__(self, name: str) -> ToolInfo:
        catalog = self._hub.catalog
        tool = catalog.tools.get(name) or catalog.absent[name]
        if not self._is_shown(tool):
            raise KeyError(name)
        return self._to_info(tool)

    def __iter__(self) -> Iterator[str]:
        return (name for name, tool in self._hub.catalog.tools.items() if self._is_shown(tool))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def withheld(self) -> str:
        """What the hub does not offer because nobody has trusted it."""
        return untrusted_words(self._hub.withheld)

    def _to_info(self, tool: Tool) -> ToolInfo:
        return HubTool(tool, self._hub, self._agent)

    def _is_shown(self, tool: Tool) -> bool:
        if not tool.is_for_model:
            return False
        filter_ = self._hub.settings.agents.get(self._agent) if self._agent else None
        return filter_ is None or allowed(tool.names, filter_)


async def outcome(call: Awaitable[ToolResult]) -> ToolResult:
    """The result of a call; a failure becomes a result that a model can act on."""
    try:
        result = await call
        _ = result.text  # an unreadable answer fails here, not when it is read later
    except MultitapError as exc:
        return failure(exc)
    except Exception as exc:  # noqa: BLE001 - boundary: a tool's failure is its result
        return text_result(f"{type(exc).__name__}: {exc}", is_error=True)
    else:
        return result


def failure(exc: MultitapError) -> ToolResult:
    """A result that describes an error and its hint to a model."""
    return text_result(f"{exc}; {exc.hint}" if exc.hint else str(exc), is_error=True)


def text_result(text: str, *, is_error: bool = False, tool: str = "") -> ToolResult:
    """A result of plain text."""
    # a function may return lone surrogates, for example from file names, and no provider takes them
    valid = text.encode("utf-8", "replace").decode()
    answer = {"content": [{"type": "text", "text": valid}], "isError": is_error}
    return ToolResult(msgspec.json.encode(answer), tool=tool)


def _json(value: Any) -> str:
    # paths, dates and the like become text, because a model reads it
    return msgspec.json.encode(value, enc_hook=str).decode()
