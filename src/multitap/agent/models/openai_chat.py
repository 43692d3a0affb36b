"""A model behind OpenAI's Chat Completions API or a compatible one."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import openai
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall

from multitap.agent.conversation import Assistant, Call, Part, Text, User
from multitap.agent.models.language_model import (
    Model,
    ModelRequest,
    Reply,
    StopReason,
    TextDelta,
    Usage,
    distinct,
    for_model,
)
from multitap.agent.models.provider_failures import (
    cut,
    limit_gaps,
    no_key,
    readable,
    translate_failures,
)
from multitap.config import ModelConfig
from multitap.tools.providers import Offer
from multitap.tools.registry import ToolRegistry

_STOPS: Mapping[str, StopReason] = {
    "length": StopReason.LENGTH,
    "content_filter": StopReason.REFUSED,
}
_THOUGHTS = ("reasoning_content", "reasoning_details")
"""Fields that some providers add to a message, and require back."""


@asynccontextmanager
async def connect_model(config: ModelConfig, retries: int) -> AsyncGenerator[Model]:
    """Open a model whose variables are already expanded."""
    # The user's key for OpenAI must not reach another endpoint.
    key = config.api_key or (None if config.base_url is None else "none")
    try:
        client = openai.AsyncOpenAI(
            api_key=key, base_url=config.base_url, timeout=config.timeout, max_retries=retries
        )
    except openai.OpenAIError:
        raise no_key(config) from None
    async with client:
        yield ChatModel(config.replace(api_key=client.api_key), client)


class ChatModel(Model):
    """See `Model`."""

    provider = "openai"

    def __init__(self, config: ModelConfig, client: openai.AsyncOpenAI) -> None:
        self.name = config.name
        self._config = config
        self._client = client
        self._id = f"{self.provider}/{config.name}"

    def offer(self, registry: ToolRegistry, *, budget: int | None = None) -> Offer:
        """See `Model.offer`."""
        return registry.for_openai(budget=budget)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[TextDelta | Reply]:
        """See `Model.stream`."""
        config, offer = self._config, request.offer or self.offer(ToolRegistry())
        answer = _IncomingAnswer(self._id)
        with translate_failures(config, openai.OpenAIError, httpx2.HTTPError):
            stream = await self._client.chat.completions.create(
                model=config.name,
                messages=[*_messages(request, offer, self._id)],
                stream=True,
                **self._options(request, offer),
            )
            with readable(config):
                async with stream:
                    async for chunk in limit_gaps(stream, config.timeout):
                        for text in answer.take(chunk):
                            yield TextDelta(text)
                # a broken stream may end like a complete one: only this tells them apart
                if answer.finish is None:
                    raise cut(config)
                yield answer.reply(offer)

    def _options(self, request: ModelRequest, offer: Offer) -> dict[str, Any]:
        config = self._config
        temperature = config.temperature if request.temperature is None else request.temperature
        # OpenAI's own newer models know only the new name, most others only the old one.
        limit = "max_tokens" if config.base_url else "max_completion_tokens"
        options: dict[str, Any] = {
            # otherwise a stream does not say what it cost
            "stream_options": {"include_usage": True},
            limit: request.max_tokens or config.max_tokens,
        }
        if temperature is not None:
            options["temperature"] = temperature
        if request.stop:
            options["stop"] = [*request.stop]
        if offer.tools:
            options |= {"tools": offer.tools, "tool_choice": request.tool_choice}
        return options


def _messages(request: ModelRequest, offer: Offer, model: str) -> Iterator[Any]:
    """The conversation in this protocol's format."""
    if request.system:
        yield {"role": "system", "content": request.system}
    for message in for_model(request.messages, offer, model):
        match message:
            case User(content):
                yield {"role": "user", "content": _parts(content)}
            case Assistant():
                yield _assistant(message)
            case _:
                yield from offer.messages(message)


def _assistant(message: Assistant) -> dict[str, Any]:
    calls = [
        {
            **call.kept,
            "id": call.id,
            "type": "function",
            "function": {
                "name": call.sent,
                "arguments": msgspec.json.encode(call.arguments).decode(),
            },
        }
        for call in message.calls
    ]
    # only a message with calls may be without content
    content = {"role": "assistant", "content": message.text or (None if calls else "")}
    return {**message.kept, **content, **({"tool_calls": calls} if calls else {})}


def _parts(content: Sequence[Part]) -> str | list[dict[str, Any]]:
    if all(isinstance(part, Text) for part in content):
        # compatible endpoints know plain text best; a list only where pictures need it
        return "\n".join(part.text for part in content if isinstance(part, Text))
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, Text)
        else {
            "type": "image_url",
            "image_url": {"url": f"data:{part.mime_type};base64,{part.data}"},
        }
        for part in content
    ]


class _Fragment(msgspec.Struct, eq=False):
    """A call that is still arriving."""

    index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""
    kept: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])

    def take(self, piece: ChoiceDeltaToolCall) -> None:
        # only the first piece of a call has its id
        self.id = self.id or piece.id or ""
        self.kept |= piece.model_extra or {}
        if piece.function is not None:
            self.name += piece.function.name or ""
            self.arguments += piece.function.arguments or ""


class _IncomingAnswer:
    """An answer that is still arriving."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._answered_by = ""
        self._texts: list[str] = []
        self._fragments: list[_Fragment] = []
        self._kept: dict[str, Any] = {}
        self._usage = Usage()
        self._refused = False
        self.finish: str | None = None

    def take(self, chunk: ChatCompletionChunk) -> Iterator[str]:
        """Add a chunk; returns the text in it."""
        self._answered_by = chunk.model or self._answered_by
        # in the last chunk, or growing in each: the latest one counts
        if chunk.usage is not None:
            self._usage = Usage(chunk.usage.prompt_tokens or 0, chunk.usage.completion_tokens or 0)
        for choice in chunk.choices or ():
            self.finish = choice.finish_reason or self.finish
            yield from self._delta(choice.delta)

    def _delta(self, delta: ChoiceDelta) -> Iterator[str]:
        for piece in delta.tool_calls or ():
            self._fragment(piece).take(piece)
        for name in _THOUGHTS:
            if thought := (delta.model_extra or {}).get(name):
                self._kept[name] = self._kept[name] + thought if name in self._kept else thought
        if delta.refusal:
            self._refused = True
        if text := (delta.content or delta.refusal):
            self._texts.append(text)
            yield text

    # The latest first: if numbers repeat, a piece without an id continues the call that came
    # last.
    def _fragment(self, piece: ChoiceDeltaToolCall) -> _Fragment:
        """The call that a piece belongs to; some endpoints number all of them 0, or none."""
        for fragment in reversed(self._fragments):
            if fragment.index == piece.index and (not piece.id or piece.id == fragment.id):
                return fragment
        self._fragments.append(_Fragment(piece.index))
        return self._fragments[-1]

    def reply(self, offer: Offer) -> Reply:
        ids = distinct(fragment.id for fragment in self._fragments)
        calls = tuple(
            offer.call(id_, fragment.name, fragment.arguments)
            for id_, fragment in zip(ids, self._fragments, strict=True)
        )
        extras = (fragment.kept for fragment in self._fragments)
        message = Assistant(
            "".join(self._texts),
            tuple(map(Call.of, calls, extras)),
            self._model,
            self._kept,
        )
        usual = StopReason.TOOLS if calls else StopReason.END
        stop = StopReason.REFUSED if self._refused else _STOPS.get(self.finish or "", usual)
        return Reply(
            message=message,
            calls=calls,
            stop=stop,
            usage=self._usage,
            model=self._answered_by or self._model,
        )
