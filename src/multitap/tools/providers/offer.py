"""A set of tools in one provider's format, and the way back from its calls."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, Protocol

from multitap.records import dataclass
from multitap.results import ToolResult
from multitap.tools.providers.convert import Converted
from multitap.tools.providers.model_answers import UnreadableArguments, arguments
from multitap.tools.providers.restore import SAME, Restoration, restore_value
from multitap.tools.tool import NOBODY, Arguments, ToolContext, text_result


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between an offer and the tool's own definition."""

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
    """A tool that is not offered, and why."""

    tool: str
    why: str

    def __str__(self) -> str:
        return f"{self.tool}: {self.why}"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of a model."""

    id: str
    """The provider's id, which the result must name."""
    name: str
    """The tool's name in the registry."""
    arguments: Arguments
    """The arguments, as the tool expects them."""
    sent: str
    """The tool's name as the model wrote it."""
    problem: ToolResult | None = None
    """Set if the arguments cannot be read: the text for the model, instead of a result."""


Answered = tuple[ToolCall, ToolResult]
RawCall = tuple[str, str, Any]
"""Id, name and arguments as received."""
Execute = Callable[[str, Arguments, ToolContext], Awaitable[ToolResult]]


class Shape(Protocol):
    """The formats of tools, calls and results in one API of a provider."""

    def declare(self, name: str, tool: Converted) -> dict[str, Any]: ...
    def wrap(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]: ...
    def calls(self, answer: Any) -> Iterable[RawCall]: ...
    def messages(self, answered: Iterable[Answered]) -> list[dict[str, Any]]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Tools in the format of one provider, at the time it was made."""

    tools: list[dict[str, Any]]
    """Ready for the `tools` parameter of the provider's API."""
    changes: tuple[Change, ...]
    skipped: tuple[Skipped, ...]
    tokens: int
    """Estimated tokens of `tools` in every request."""
    names: Mapping[str, str]
    """Registry names, by the names that the provider sees."""
    searching: bool
    """Whether the three search tools are offered instead of all tools."""
    _backs: Mapping[str, Restoration] = field(repr=False)
    _shape: Shape = field(repr=False)
    _execute: Execute = field(repr=False)

    def calls(self, answer: Any) -> tuple[ToolCall, ...]:
        """The calls in a model's answer: an object of the provider's client, or plain data."""
        return tuple(self.call(*parts) for parts in self._shape.calls(answer))

    def call(self, call_id: str, name: str, raw: Any) -> ToolCall:
        """One call from its parts, as a stream delivers them.

        Args:
            call_id: The provider's id.
            name: As the model wrote it.
            raw: The arguments: a string of JSON, even if malformed, or an object.
        """
        known = self.names.get(name, name)
        try:
            given = arguments(raw)
        except UnreadableArguments as exc:
            return ToolCall(
                call_id, known, {}, name, text_result(str(exc), is_error=True, tool=known)
            )
        return ToolCall(call_id, known, restore_value(given, self._backs.get(name, SAME)), name)

    async def execute(self, call: ToolCall, context: ToolContext = NOBODY) -> ToolResult:
        """Run a call; a failure becomes a result."""
        return call.problem or await self._execute(call.name, call.arguments, context)

    def messages(self, answered: Iterable[Answered]) -> list[dict[str, Any]]:
        """The messages to append after the model's message, for all its calls."""
        return self._shape.messages(answered)
