"""The interface to a language model of any vendor."""

import re
import secrets
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, Protocol

import msgspec
from anyio import to_thread
from msgspec import structs

from multitap.agent.conversation import Assistant, Call, Message, ToolAnswer, ToolAnswers, User
from multitap.config import ModelConfig, Scope, expand_model
from multitap.errors import ModelError
from multitap.installation import extra_hint
from multitap.results import ToolResult
from multitap.tools.providers import Offer, ToolCall
from multitap.tools.providers.offers import Answered
from multitap.tools.registry import ToolRegistry
from multitap.trust.vault import model_scope

# The default of both client libraries, which wait longer before each.
RETRIES = 2

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


class Usage(msgspec.Struct, frozen=True):
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


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
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


class TextDelta(msgspec.Struct, frozen=True):
    """The next piece of what the model says."""

    text: str


class Reply(msgspec.Struct, frozen=True, kw_only=True):
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


# what both providers accept as the name of a tool
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64


@asynccontextmanager
async def open_model(
    config: ModelConfig, *, scope: Scope | None = None, retries: int = RETRIES
) -> AsyncGenerator[Model]:
    """Open a model; leaving the block closes its connections.

    Args:
        config: The model's configuration.
        scope: Expands variables in its configuration; by default, this process's.
        retries: How often a request is repeated after no answer, or status 429 or 5xx.

    Raises:
        ConfigError: A variable is not set.
        ModelError: The provider's client library is missing, or there is no key.
    """
    scope = scope or model_scope()
    await to_thread.run_sync(_load, config.provider)
    expanded = expand_model(config, scope)
    # not left to the library, which reads the variables of this process
    usual = scope.env.get(f"{config.provider.upper()}_API_KEY")
    if expanded.api_key is None and expanded.base_url is None and usual:
        expanded = expanded.replace(api_key=usual)
    async with _connect(expanded, retries) as model:
        yield model


def _connect(config: ModelConfig, retries: int) -> AbstractAsyncContextManager[Model]:
    match config.provider:
        case "openai":
            from multitap.agent.models.openai_chat import connect_model  # noqa: PLC0415
        case "anthropic":
            from multitap.agent.models.anthropic_messages import connect_model  # noqa: PLC0415
    return connect_model(config, retries)


def _load(library: str) -> None:
    """Import a client library in a thread, because it takes a second."""
    require_library(library)
    import_module(library)


def require_library(library: str) -> None:
    """Check that the client library of a provider is installed, without importing it.

    Raises:
        ModelError: It is not.
    """
    if find_spec(library) is None:
        raise ModelError(
            f"a model of {library!r} needs its client library",
            hint=extra_hint("chat"),
        )


def for_model(
    messages: Iterable[Message], offer: Offer, model: str
) -> Iterator[User | Assistant | list[Answered]]:
    """The messages for one model, answers together with their calls.

    Args:
        messages: The conversation, maybe with other models.
        offer: Has the provider's names of tools.
        model: The receiver; provider data goes back only to the model that sent it.
    """
    names = {ours: theirs for theirs, ours in offer.names.items()}
    calls: tuple[Call, ...] = ()
    for message in messages:
        match message:
            case User():
                yield message
            case Assistant():
                own = message.model == model
                calls = tuple(_rename(call, names, own=own) for call in message.calls)
                yield structs.replace(message, calls=calls, kept=_own_extras(message, own=own))
            case ToolAnswers(answers):
                yield [*map(_pair, calls, answers)]


def distinct(ids: Iterable[str]) -> tuple[str, ...]:
    """Unique ids for the calls of one answer; some endpoints give none, or the same to all."""
    seen: dict[str, None] = {}
    for call_id in ids:
        is_usable = call_id and call_id not in seen
        seen[call_id if is_usable else f"call_{secrets.token_hex(8)}"] = None
    return tuple(seen)


def _rename(call: Call, names: Mapping[str, str], *, own: bool) -> Call:
    # With a name that this provider does not accept, it would refuse every request.
    fallback = _NO_NAME.sub("_", call.sent)[:_LONGEST_NAME] or "unknown"
    return structs.replace(
        call, sent=names.get(call.name, fallback), kept=_own_extras(call, own=own)
    )


def _own_extras(source: Assistant | Call, *, own: bool) -> Mapping[str, Any]:
    return source.kept if own else {}


def _pair(call: Call, answer: ToolAnswer) -> Answered:
    tool_call = ToolCall(id=call.id, name=call.name, arguments=call.arguments, sent=call.sent)
    return tool_call, ToolResult(answer.result, tool=call.name)
