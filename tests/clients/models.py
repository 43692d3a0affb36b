"""A stand-in for the models of real agents, in the protocols of OpenAI, Anthropic and Google."""

import json
from itertools import repeat

import msgspec
from aiohttp import web

from tests.agent.models.scripted import Anthropic, Say, ScriptedModel

RESULTS = ('"tool_result"', '"role": "tool"', '"function_call_output"', '"functionResponse"')
"""How the result of a call is marked in what a model is sent, in any of the protocols."""


class EveryModel(ScriptedModel):
    """Speaks OpenAI's Responses and Gemini's protocol as well; both are streamed."""

    def routes(self):
        gemini = web.post("/v1beta/models/{model}:streamGenerateContent", self.gemini)
        return (*super().routes(), web.post("/v1/responses", self.responses), gemini)

    async def anthropic(self, request):
        return await self._answer(request, Numbered(len(self.requests)))

    async def responses(self, request):
        return await self._stream_next(request, Responses())

    async def gemini(self, request):
        return await self._stream_next(request, Gemini())

    async def _stream_next(self, request, protocol):
        body = await request.json()
        self.requests.append(body)
        return await self._stream(request, next(self._script)(body), protocol)


class Numbered(Anthropic):
    """Never uses the id of a call again, which Claude Code takes for the same call."""

    def __init__(self, turn):
        self._turn = turn

    def _use(self, at, use):
        return {**super()._use(at, use), "id": f"toolu_{self._turn}_{at}"}


class Responses:
    """OpenAI's newer protocol."""

    def events(self, say):
        text = {"type": "output_text", "text": say.text, "annotations": []}
        message = {"type": "message", "role": "assistant", "id": "msg_1", "content": [text]}
        items = [message] if say.text else []
        items += [self._call(at, use) for at, use in enumerate(say.uses)]
        response = {"id": "resp_1", "object": "response", "model": "scripted", "output": items}
        yield self._event("response.created", response={**response, "status": "in_progress"})
        for at, item in enumerate(items):
            yield self._event("response.output_item.added", output_index=at, item=item)
            yield self._event("response.output_item.done", output_index=at, item=item)
        usage = dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), 1)
        done = {**response, "status": "completed", "usage": usage}
        yield self._event("response.completed", response=done)

    def _call(self, at, use):
        namespace, _, name = use.tool.rpartition("/")
        call = {"type": "function_call", "id": f"fc_{at}", "call_id": f"call_{at}", "name": name}
        return {**call, "namespace": namespace, "arguments": use.json, "status": "completed"}

    def _event(self, kind, **fields):
        data = msgspec.json.encode({"type": kind, **fields})
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


class Gemini:
    """Google's protocol."""

    def events(self, say):
        parts = [{"text": say.text}] if say.text else []
        parts += [{"functionCall": {"name": use.tool, "args": use.arguments}} for use in say.uses]
        content = {"role": "model", "parts": parts}
        candidate = {"index": 0, "content": content, "finishReason": "STOP"}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        answer = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}
        yield b"data: %s\n\n" % msgspec.json.encode(answer)


def script(*uses):
    """What a model says that uses tools one after the other, where it has the last of them."""
    left = (Say(uses=(use,)) for use in uses)
    known = f'"{uses[-1].tool.rpartition("/")[2]}"'

    def turn(body):
        if known not in json.dumps(body.get("tools", [])):
            return Say("nothing to do")
        return next(left, Say("it is done"))

    return repeat(turn)
