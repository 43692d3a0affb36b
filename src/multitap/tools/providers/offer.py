"""What one provider is told of a set of tools, and the way back from its calls to ours."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, Protocol

from multitap.content import ToolResult
from multitap.records import dataclass
from multitap.tools.providers.convert import Converted
from multitap.tools.providers.reading import Unreadable, arguments
from multitap.tools.providers.restore import SAME, Back, restored
from multitap.tools.tool import NOBODY, Arguments, ToolContext, said


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that a provider is told otherwise than the tool says it."""

    tool: str
    """The tool's name in the registry."""
    path: str
    """Where in its schema, as a JSON pointer; empty for the whole."""
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.tool}{self.path}: {self.what}, because {self.why}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A tool that is not offered."""

    tool: str
    why: str

    def __str__(self) -> str:
        return f"{self.tool}: {self.why}"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a model wants to have done."""

    id: str
    """The provider's, which the result has to name."""
    name: str
    """The tool's name in the registry."""
    arguments: Arguments
    """As the tool takes them."""
    sent: str
    """The tool's name as the model wrote it."""
    problem: ToolResult | None = None
    """Set where the arguments can not be read: what to tell the model in place of a result."""


Answered = tuple[ToolCall, ToolResult]
RawCall = tuple[str, str, Any]
"""Id, name and arguments as they came."""
Execute = Callable[[str, Arguments, ToolContext], Awaitable[ToolResult]]


class Shape(Protocol):
    """How one interface of a provider writes tools, calls and results."""

    def declared(self, name: str, tool: Converted) -> dict[str, Any]: ...
    def listed(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]: ...
    def calls(self, answer: Any) -> Iterable[RawCall]: ...
    def messages(self, answered: Iterable[Answered]) -> list[dict[str, Any]]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Tools as one provider takes them, as they were when it was made."""

    tools: list[dict[str, Any]]
    """For the `tools` parameter of the provider's interface, as it is."""
    changes: tuple[Change, ...]
    skipped: tuple[Skipped, ...]
    tokens: int
    """What `tools` costs in every request; an estimate."""
    names: Mapping[str, str]
    """Names in the registry by the names the provider knows."""
    searching: bool
    """The three tools that find and call all others are offered in their place."""
    _backs: Mapping[str, Back] = field(repr=False)
    _shape: Shape = field(repr=False)
    _execute: Execute = field(repr=False)

    def calls(self, answer: Any) -> tuple[ToolCall, ...]:
        """The calls in a model's answer: an object of the provider's client, or plain data."""
        return tuple(self.call(*parts) for parts in self._shape.calls(answer))

    def call(self, call_id: str, name: str, raw: Any) -> ToolCall:
        """One call from its parts, for whoever gathers them from a stream.

        Args:
            call_id: The provider's.
            name: As the model wrote it.
            raw: The arguments: JSON in a string, however broken, or an object.
        """
        known = self.names.get(name, name)
        try:
            given = arguments(raw)
        except Unreadable as exc:
            return ToolCall(call_id, known, {}, name, said(str(exc), is_error=True, tool=known))
        return ToolCall(call_id, known, restored(given, self._backs.get(name, SAME)), name)

    async def execute(self, call: ToolCall, context: ToolContext = NOBODY) -> ToolResult:
        """Do what a call wants; whatever goes wrong is said in the result."""
        return call.problem or await self._execute(call.name, call.arguments, context)

    def messages(self, answered: Iterable[Answered]) -> list[dict[str, Any]]:
        """What to add to the conversation after the model's message, once for all its calls."""
        return self._shape.messages(answered)
