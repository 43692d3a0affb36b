"""The interface to a language model of any vendor."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from enum import StrEnum
from typing import Literal, Protocol

from multitap.agent.conversation import Assistant, Message
from multitap.records import dataclass
from multitap.tools.providers import Offer, ToolCall
from multitap.tools.registry import ToolRegistry

ToolChoice = Literal["auto", "required", "none"]


class StopReason(StrEnum):
    """Why the model stopped."""

    END = "end"
    TOOLS = "tools"
    """It wants to use tools first."""
    LENGTH = "length"
    """The answer was cut at its limit."""
    STOPPED = "stopped"
    """It came to one of the texts where it was to stop."""
    REFUSED = "refused"
    """The model, or a filter of its maker, does not want to."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, as the provider counts them."""

    input_tokens: int = 0
    """What was read, from a cache or not."""
    output_tokens: int = 0

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """What a model is asked."""

    messages: Sequence[Message]
    system: str | None = None
    offer: Offer | None = None
    """The tools it may use, as `Model.offer` made it."""
    tool_choice: ToolChoice = "auto"
    max_tokens: int | None = None
    """Of the answer; what the model is configured with where not given."""
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    """Texts at which the answer is to end."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of what the model says."""

    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    message: Assistant
    """For the conversation."""
    calls: tuple[ToolCall, ...]
    """The tools it wants to use, side by side."""
    stop: StopReason
    usage: Usage
    model: str
    """Who answered, in the provider's words."""

    @property
    def text(self) -> str:
        return self.message.text


class Model(Protocol):
    """A language model; made by `open_model`."""

    @property
    def name(self) -> str: ...
    @property
    def provider(self) -> str: ...

    def offer(self, registry: ToolRegistry, *, budget: int | None = None) -> Offer:
        """The tools in the shape that this model takes.

        Args:
            registry: Which tools.
            budget: Tokens; where all of them would cost more, they are offered to be searched.
        """
        ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[TextDelta | Reply]:
        """Pieces of the answer as they come, and last the whole.

        Raises:
            ModelError: There is no answer, or only a part of one; says why.
        """
        ...

    async def complete(self, request: ModelRequest) -> Reply:
        """The whole answer.

        Raises:
            ModelError: There is none; says why.
        """
        async with aclosing(self.stream(request)) as stream:
            async for piece in stream:
                if isinstance(piece, Reply):
                    return piece
        raise AssertionError("a stream ends with the reply, or raises")
