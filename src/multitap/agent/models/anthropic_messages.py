"""A model behind Anthropic's Messages API or a compatible one."""

import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import msgspec
from anthropic.types import (
    RawContentBlockDeltaEvent,
    RawContentBlockStartEvent,
    RawMessageDeltaEvent,
    RawMessageStartEvent,
    RawMessageStreamEvent,
)

from multitap.agent.conversation import Assistant, Call, Part, Text, User
from multitap.agent.models.language_model import (
    Model,
    ModelRequest,
    Reply,
    StopReason,
    TextDelta,
    ToolChoice,
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
from multitap.tools.providers import Offer, ToolCall
from multitap.tools.registry import ToolRegistry

_STOPS: Mapping[str, StopReason] = {
    "max_tokens": StopReason.LENGTH,
    "model_context_window_exceeded": StopReason.LENGTH,
    "stop_sequence": StopReason.STOPPED,
    "refusal": StopReason.REFUSED,
}
_CHOICES: Mapping[ToolChoice, str] = {"auto": "auto", "required": "any", "none": "none"}
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})
# Anthropic refuses any other character; ids may come from another provider's turn.
_NO_ID = re.compile(r"[^A-Za-z0-9_-]")


@asynccontextmanager
async def connect_model(config: ModelConfig, retries: int) -> AsyncGenerator[Model]:
    """Open a model whose variables are already expanded."""
    # The user's key for Anthropic must not reach another endpoint.
    key = config.api_key or (None if config.base_url is None else "none")
    try:
        client = anthropic.AsyncAnthropic(
            api_key=key, base_url=config.base_url, timeout=config.timeout, max_retries=retries
        )
    except anthropic.AnthropicError as exc:
        raise no_key(config) from exc
    async with client:
        if not (client.api_key or client.auth_token or client.credentials):
            raise no_key(config)
        yield MessagesModel(config.replace(api_key=client.api_key), client)


class MessagesModel(Model):
    """See `Model`."""

    provider = "anthropic"

    def __init__(self, config: ModelConfig, client: anthropic.AsyncAnthropic) -> None:
        self.name = config.name
        self._config = config
        self._client = client
        self._id = f"{self.provider}/{config.name}"

    def offer(self, registry: ToolRegistry, *, budget: int | None = None) -> Offer:
        """See `Model.offer`."""
        return registry.for_anthropic(budget=budget)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[TextDelta | Reply]:
        """See `Model.stream`."""
        config, offer = self._config, request.offer or self.offer(ToolRegistry())
        answer = _IncomingAnswer(self._id)
        with translate_failures(config, anthropic.AnthropicError, httpx2.HTTPError):
            stream = await self._client.messages.create(
                model=config.name,
                messages=[*_messages(request, offer, self._id)],
                max_tokens=request.max_tokens or config.max_tokens,
                stream=True,
                **self._options(request, offer),
            )
            with readable(config):
                async with stream:
                    async for event in limit_gaps(stream, config.timeout):
                        for text in answer.take(event):
                            yield TextDelta(text)
                if answer.stop is None:
                    raise cut(config)
                yield answer.reply(offer)

    def _options(self, request: ModelRequest, offer: Offer) -> dict[str, Any]:
        config = self._config
        options: dict[str, Any] = {}
        if config.base_url is None:  # every step repeats the whole conversation
            options["cache_control"] = {"type": "ephemeral"}
        if request.system:
            options["system"] = request.system
        if (
            config.temperature is not None
        ):  # newer models refuse it, so it is sent only if configured
            temperature = config.temperature if request.temperature is None else request.temperature
            options["extra_body"] = {"temperature": temperature}
        if request.stop:
            options["stop_sequences"] = [*request.stop]
        if offer.tools:
            choice = {"type": _CHOICES[request.tool_choice]}
            options |= {"tools": offer.tools, "tool_choice": choice}
        return options


def _messages(request: ModelRequest, offer: Offer, model: str) -> Iterator[Any]:
    """The conversation in this protocol's format."""
    for message in for_model(request.messages, offer, model):
        match message:
            case User(content):
                yield {"role": "user", "content": [*map(_part, content)]}
            case Assistant():
                if blocks := _blocks(message):  # an empty answer would be refused
                    yield {"role": "assistant", "content": blocks}
            case _:
                yield from offer.messages(
                    (msgspec.structs.replace(call, id=_id(call.id)), result)
                    for call, result in message
                )


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    source = {"type": "base64", "media_type": part.mime_type, "data": part.data}
    return {"type": "image", "source": source}


def _blocks(message: Assistant) -> Sequence[dict[str, Any]]:
    calls = [
        {"type": "tool_use", "id": _id(call.id), "name": call.sent, "input": call.arguments}
        for call in message.calls
    ]
    # Anthropic refuses a text of only white space, and thoughts that do not come first
    text = [{"type": "text", "text": message.text}] if message.text.strip() else []
    return [*message.kept.get("thoughts", ()), *text, *calls]


def _id(call_id: str) -> str:
    """An id of any provider, with only the characters that are accepted here."""
    return _NO_ID.sub("_", call_id)


class _Block(msgspec.Struct, eq=False):
    """One block of an answer that is still arriving."""

    fields: dict[str, Any]
    pieces: list[str] = msgspec.field(default_factory=list[str])

    @property
    def joined(self) -> str:
        return "".join(self.pieces)


class _IncomingAnswer:
    """An answer that is still arriving."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._answered_by = model
        self._blocks: dict[int, _Block] = {}
        self._usage = Usage()
        self.stop: str | None = None

    def take(self, event: RawMessageStreamEvent) -> Iterator[str]:
        """Add an event; returns the text in it."""
        match event:
            case RawMessageStartEvent(message=message):
                self._answered_by = message.model
                self._usage = _add_usage(message.usage, self._usage)
            case RawContentBlockStartEvent(index=index, content_block=block):
                started = self._blocks[index] = _Block(block.to_dict())
                if text := started.fields.get("text"):
                    started.pieces.append(text)
                    yield text
            case RawContentBlockDeltaEvent(index=index, delta=delta):
                yield from self._delta(self._blocks[index], delta)
            case RawMessageDeltaEvent(delta=delta, usage=usage):
                self.stop = delta.stop_reason or self.stop
                self._usage = _add_usage(usage, self._usage)
            case _:
                pass  # pings, the end of a block, the end of the message

    def _delta(self, block: _Block, delta: Any) -> Iterator[str]:
        match delta.type:
            case "text_delta":
                block.pieces.append(delta.text)
                yield delta.text
            case "input_json_delta":
                block.pieces.append(delta.partial_json)
            case "thinking_delta":
                block.fields["thinking"] += delta.thinking
            case "signature_delta":
                block.fields["signature"] = delta.signature
            case _:
                pass  # citations, and kinds that do not exist yet

    def reply(self, offer: Offer) -> Reply:
        blocks = [self._blocks[index] for index in sorted(self._blocks)]
        uses = [block for block in blocks if block.fields["type"] == "tool_use"]
        ids = distinct(block.fields["id"] for block in uses)
        calls = tuple(_call(offer, *pair) for pair in zip(ids, uses, strict=True))
        thoughts = [block.fields for block in blocks if block.fields["type"] in _THOUGHTS]
        text = "".join(block.joined for block in blocks if block.fields["type"] == "text")
        message = Assistant(
            text,
            tuple(map(Call.of, calls)),
            self._model,
            {"thoughts": thoughts} if thoughts else {},
        )
        stop = _STOPS.get(self.stop or "", StopReason.TOOLS if calls else StopReason.END)
        return Reply(
            message=message, calls=calls, stop=stop, usage=self._usage, model=self._answered_by
        )


def _call(offer: Offer, call_id: str, block: _Block) -> ToolCall:
    return offer.call(call_id, block.fields["name"], block.joined or block.fields["input"])


def _add_usage(usage: Any, before: Usage) -> Usage:
    """The tokens so far; input is reported at the start, output at the end."""
    counted = (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens)
    return Usage(
        sum(count or 0 for count in counted) or before.input_tokens,
        usage.output_tokens or before.output_tokens,
    )
