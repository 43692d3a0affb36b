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
    """The answer reached its token limit."""
    STOPPED = "stopped"
    """It reached one of the stop sequences."""
    REFUSED = "refused"
    """The model, or the provider's filter, refused."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, as the provider counts them."""

    input_tokens: int = 0
    """Input tokens, cached or not."""
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
    """A request to a model."""

    messages: Sequence[Message]
    system: str | None = None
    offer: Offer | None = None
    """The tools it may use, from `Model.offer`."""
    tool_choice: ToolChoice = "auto"
    max_tokens: int | None = None
    """Tokens of the answer; by default, as configured for the model."""
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    """Stop sequences."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of what the model says."""

    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    message: Assistant
    """The message to add to the conversation."""
    calls: tuple[ToolCall, ...]
    """The tools it wants to use, side by side."""
    stop: StopReason
    usage: Usage
    model: str
    """The model that answered, by the provider's name for it."""

    @property
    def text(self) -> str:
        return self.message.text


class Model(Protocol):
    """A language model, opened by `open_model`."""

    name: str
    provider: str

    def offer(self, registry: ToolRegistry, *, budget: int | None = None) -> Offer:
        """The tools in the format of this model.

        Args:
            registry: The tools.
            budget: Tokens; if all tools cost more, the search tools are offered instead.
        """
        ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[TextDelta | Reply]:
        """Pieces of the answer as they arrive, and finally the whole reply.

        Raises:
            ModelError: There is no answer, or only a part of one; the message says why.
        """
        ...

    async def complete(self, request: ModelRequest) -> Reply:
        """The whole answer.

        Raises:
            ModelError: There is none; the message says why.
        """
        async with aclosing(self.stream(request)) as stream:
            async for piece in stream:
                if isinstance(piece, Reply):
                    return piece
        raise AssertionError("a stream ends with the reply, or raises")
