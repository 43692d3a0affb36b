"""A model that says what a script tells it, on a loopback port, in the providers' own protocols.

It stands in for a language model where there is none: `/v1/chat/completions` as OpenAI and
`/v1/messages` as Anthropic have it, streamed or not.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from aiohttp import web

PIECE = 7
"""Characters of a text or of arguments that come at once."""


@dataclass(frozen=True)
class Use:
    """A tool the model wants to use."""

    tool: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    """A text is sent as it is, be it JSON or not."""

    @property
    def json(self) -> str:
        given = self.arguments
        return given if isinstance(given, str) else msgspec.json.encode(given).decode()


@dataclass(frozen=True)
class Say:
    """An answer: text, then calls side by side."""

    text: str = ""
    uses: tuple[Use, ...] = ()
    usage: tuple[int, int] = (100, 20)
    cut_short: bool = False
    """The answer came to its limit of tokens."""
    breaks: Literal["off", "down"] | None = None
    """In the middle: the connection breaks off, or nothing more comes."""


@dataclass(frozen=True)
class Fail:
    """An error in place of an answer."""

    status: int
    message: str = "no"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Garbage:
    """An answer that is none."""

    body: str
    content_type: str = "text/event-stream"


class Silence:
    """No answer at all."""


class Pings:
    """Signs of life, and no answer."""


Turn = Say | Fail | Garbage | Silence | Pings
Answer = Turn | Callable[[dict[str, Any]], Turn]
Script = Iterable[Answer]
"""One turn after the other; a function makes its turn out of what the model was sent."""


class ScriptedModel:
    """Where it is, and what it was asked."""

    def __init__(self, script: Script) -> None:
        self._script = iter(script)
        self.port = 0
        self.requests: list[dict[str, Any]] = []
        """The bodies that were sent to it."""
        self.headers: list[Mapping[str, str]] = []
        self.reached = asyncio.Event()
        """Set once a turn has come to where it breaks down."""

    @property
    def anthropic_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai_url(self) -> str:
        return f"{self.anthropic_url}/v1"

    def routes(self) -> Iterable[web.RouteDef]:
        """What it answers to."""
        return (
            web.post("/v1/chat/completions", self.openai),
            web.post("/v1/messages", self.anthropic),
        )

    async def openai(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, OpenAI())

    async def anthropic(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, Anthropic())

    async def _answer(
        self, request: web.Request, protocol: "OpenAI | Anthropic"
    ) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(request.headers)
        turn = next(self._script, Fail(400, "the script has come to its end"))
        turn = turn(body) if callable(turn) else turn
        match turn:
            case Say() if body.get("stream"):
                return await self._stream(request, turn, protocol)
            case Say():
                return web.json_response(protocol.whole(turn))
            case Fail():
                error = protocol.error(turn.message)
                return web.json_response(error, status=turn.status, headers=turn.headers)
            case Garbage():
                return web.Response(text=turn.body, content_type=turn.content_type)
            case Silence():
                return await self._nothing()
            case Pings():
                return await self._ping(request)

    async def _stream(
        self, request: web.Request, say: Say, protocol: "OpenAI | Anthropic"
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        events = [*protocol.events(say)]
        for event in events[: len(events) // 2] if say.breaks else events:
            await response.write(event)
        if say.breaks == "off" and request.transport is not None:
            request.transport.abort()
        if say.breaks == "down":
            await self._nothing()
        return response

    async def _ping(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(b'event: ping\ndata: {"type": "ping"}\n\n')
            await asyncio.sleep(0.05)

    async def _nothing(self) -> web.StreamResponse:
        self.reached.set()
        await asyncio.Event().wait()  # until the client goes
        raise AssertionError


class OpenAI:
    """Chat completions."""

    def error(self, message: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": "error", "param": None, "code": None}}

    def whole(self, say: Say) -> dict[str, Any]:
        calls = [
            {"id": f"call_{at}", "type": "function", "function": _function(use.tool, use.json)}
            for at, use in enumerate(say.uses)
        ]
        message = {"role": "assistant", "content": say.text or None, "tool_calls": calls or None}
        choice = {"index": 0, "message": message, "finish_reason": self._reason(say)}
        return {**self._head("chat.completion"), "choices": [choice], "usage": self._usage(say)}

    def events(self, say: Say) -> Iterator[bytes]:
        yield self._chunk({"role": "assistant", "content": ""})
        for piece in _pieces(say.text):
            yield self._chunk({"content": piece})
        for at, use in enumerate(say.uses):
            start = {"index": at, "id": f"call_{at}", "type": "function"}
            yield self._chunk({"tool_calls": [{**start, "function": _function(use.tool, "")}]})
        for at, piece in _interleaved(say.uses):
            yield self._chunk({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
        yield self._chunk({}, self._reason(say))
        usage = {**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage(say)}
        yield b"data: %s\n\n" % msgspec.json.encode(usage)
        yield b"data: [DONE]\n\n"

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice], "usage": None}
        return b"data: %s\n\n" % msgspec.json.encode(chunk)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "scripted"}

    def _reason(self, say: Say) -> str:
        return "length" if say.cut_short else "tool_calls" if say.uses else "stop"

    def _usage(self, say: Say) -> dict[str, int]:
        read, said = say.usage
        return {"prompt_tokens": read, "completion_tokens": said, "total_tokens": read + said}


class Anthropic:
    """Messages."""

    def error(self, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": "api_error", "message": message}}

    def whole(self, say: Say) -> dict[str, Any]:
        text = [{"type": "text", "text": say.text}] if say.text else []
        uses = [{**self._use(at, use), "input": use.arguments} for at, use in enumerate(say.uses)]
        content, usage = (
            [*text, *uses],
            {"input_tokens": say.usage[0], "output_tokens": say.usage[1]},
        )
        return {
            **self._head(),
            "content": content,
            "stop_reason": self._reason(say),
            "usage": usage,
        }

    def events(self, say: Say) -> Iterator[bytes]:
        usage = {"input_tokens": say.usage[0], "output_tokens": 1}
        start = {**self._head(), "content": [], "stop_reason": None, "usage": usage}
        yield self._event("message_start", message=start)
        yield self._event("ping")
        if say.text:
            yield from self._block(0, {"type": "text", "text": ""}, "text_delta", "text", say.text)
        for at, use in enumerate(say.uses):
            block, number = self._use(at, use), at + bool(say.text)
            yield from self._block(number, block, "input_json_delta", "partial_json", use.json)
        delta = {"stop_reason": self._reason(say), "stop_sequence": None}
        yield self._event("message_delta", delta=delta, usage={"output_tokens": say.usage[1]})
        yield self._event("message_stop")

    def _block(
        self, at: int, block: dict[str, Any], kind: str, key: str, text: str
    ) -> Iterator[bytes]:
        yield self._event("content_block_start", index=at, content_block=block)
        for piece in _pieces(text):
            yield self._event("content_block_delta", index=at, delta={"type": kind, key: piece})
        yield self._event("content_block_stop", index=at)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = msgspec.json.encode({"type": kind, **fields})
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)

    def _head(self) -> dict[str, Any]:
        return {"id": "msg_1", "type": "message", "role": "assistant", "model": "scripted"}

    def _use(self, at: int, use: Use) -> dict[str, Any]:
        return {"type": "tool_use", "id": f"toolu_{at}", "name": use.tool, "input": {}}

    def _reason(self, say: Say) -> str:
        return "max_tokens" if say.cut_short else "tool_use" if say.uses else "end_turn"


def _function(name: str, arguments: str) -> dict[str, str]:
    return {"name": name, "arguments": arguments}


def _pieces(text: str) -> Iterator[str]:
    return (text[at : at + PIECE] for at in range(0, len(text), PIECE))


def _interleaved(uses: Iterable[Use]) -> Iterator[tuple[int, str]]:
    """The pieces of all arguments, a piece of each in turn."""
    left = {at: [*_pieces(use.json)] for at, use in enumerate(uses)}
    while left := {at: pieces for at, pieces in left.items() if pieces}:
        for at, pieces in left.items():
            yield at, pieces.pop(0)


@asynccontextmanager
async def scripted_model(
    script: Script, kind: type[ScriptedModel] = ScriptedModel
) -> AsyncGenerator[ScriptedModel]:
    """A model on a port of its own, which goes with the block."""
    model = kind(script)
    app = web.Application()
    app.add_routes(model.routes())
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        model.port = runner.addresses[0][1]
        yield model
    finally:
        await runner.cleanup()
